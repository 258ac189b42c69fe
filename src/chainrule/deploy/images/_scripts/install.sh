#!/bin/sh
# A virtual environment with Chainrule and the component's requirements, compiled to bytecode.
#
#   install.sh CHAINRULE REQUIREMENTS [PYTHON] [--inherit]
#
# uv installs them where tools.sh could get it, pip otherwise. Secrets of the build are files in
# /run/secrets: one that is named like a variable becomes that variable; `credentials` has lines
# "host user secret", from which a netrc file is made.
set -eu
chainrule=$1 requirements=$2 python=${3:-} inherit=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
step=python
netrc=$(mktemp)
trap 'code=$?; rm -f "$netrc"; [ $code -eq 0 ] || echo "chainrule-build-failed: $step"' EXIT

for file in /run/secrets/*; do
    name=${file##*/}
    case $name in
        *[!A-Za-z0-9_]* | [0-9]*) ;;
        *) if [ -f "$file" ]; then export "$name=$(cat "$file")"; fi ;;
    esac
done
while read -r host user secret; do
    echo "machine $host login $user password $(cat "/run/secrets/$secret")" >>"$netrc"
done <"$here/credentials"
export NETRC="$netrc" PIP_CACHE_DIR=/build-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
export UV_CACHE_DIR=/build-cache/uv UV_LINK_MODE=copy UV_PYTHON_INSTALL_DIR=/opt/python

uv=/opt/uv/bin/uv
if [ -x $uv ]; then
    $uv venv --quiet ${inherit:+--system-site-packages} --python "${python:-python3}" /opt/venv
    install() { $uv pip install --python /opt/venv/bin/python "$@"; }
else
    if [ -n "$python" ] && ! command -v "python$python" >/dev/null; then
        echo "The base image has no Python $python, and uv, which could fetch it, is not to be had."
        exit 1
    fi
    "python${python:-3}" -m venv --without-pip ${inherit:+--system-site-packages} /opt/venv
    install() { /opt/uv/bin/pip --python /opt/venv/bin/python install "$@"; }
fi

step=requirements
cd "$here"
case $requirements in
    *.toml)
        install --requirement "$requirements"
        install "$chainrule"
        ;;
    *) install "$chainrule" --requirement "$requirements" ;;
esac

# Not bound to the time of a file: layers of an image may all get the same one.
/opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib >/dev/null || true
