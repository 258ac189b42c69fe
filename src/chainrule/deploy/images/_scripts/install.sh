#!/bin/sh
# A virtual environment with Chainrule and the component's requirements, compiled to bytecode.
#
#   install.sh CHAINRULE REQUIREMENTS [PYTHON] [--inherit]
#
# uv installs them where tools.sh could get it, pip otherwise.
set -eu
chainrule=$1 requirements=$2 python=${3:-} inherit=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
step=python
. "$here/login.sh"
export UV_CACHE_DIR=/build-cache/uv UV_LINK_MODE=copy UV_PYTHON_INSTALL_DIR=/opt/python
# Older versions of podman share one cache between all users of a machine; it may belong to another user.
if [ ! -w /build-cache ]; then export UV_NO_CACHE=1; fi

uv=/opt/uv/bin/uv
if [ -x $uv ]; then
    $uv venv --quiet ${inherit:+--system-site-packages} --python "${python:-python3}" /opt/venv
    install() { $uv pip install --python /opt/venv/bin/python "$@"; }
else
    if [ -n "$python" ] && ! command -v "python$python" >/dev/null; then
        echo "The base image has no Python $python, and uv, which could fetch it, is not available."
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

# uv records when it first saw a local file; the image must not depend on that.
for note in /opt/venv/lib/python*/site-packages/*.dist-info/uv_cache.json; do
    if [ -f "$note" ]; then
        rm "$note"
        sed -i '/uv_cache\.json/d' "${note%/*}/RECORD"
    fi
done

# Checked by hash: the files of a layer may all have the same time. The tests of packages are left out.
/opt/venv/bin/python -m compileall -q -j 0 -x '/tests/' --invalidation-mode unchecked-hash /opt/venv/lib >/dev/null \
    || true
