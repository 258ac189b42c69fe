#!/bin/sh
# An environment of conda, with Chainrule in it.
#
#   conda_install.sh CHAINRULE ENVIRONMENT_FILE [PREFIX]
set -eu
chainrule=$1 environment=$2 prefix=${3:-/opt/venv}
here=$(cd "$(dirname "$0")" && pwd)
step="conda environment"
. "$here/login.sh"
export CONDA_PKGS_DIRS=/build-cache/conda PATH="$PATH:/opt/miniforge/bin"

cd "$here"
for tool in conda mamba micromamba none; do
    if command -v $tool >/dev/null; then break; fi
done
case $tool in
    micromamba) set -- micromamba create --yes --quiet ;;
    *) set -- $tool env create --quiet ;;
esac
if ! "$@" --file "$environment" --prefix "$prefix"; then
    echo "$tool cannot make the environment: a package does not exist, or a channel cannot be reached"
    echo "from where images are built. Channels are named in the environment file; a mirror of them can be"
    echo "set by CONDA_CHANNEL_ALIAS in build_env."
    exit 1
fi
python=$prefix/bin/python
if [ ! -x "$python" ]; then
    echo "The environment has no Python: add one to its dependencies, such as python=3.12."
    exit 1
fi

# pip, not uv: uv does not see every package of conda and would install it again.
step=requirements
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip
"$python" -m pip install "$chainrule"
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$prefix/lib" >/dev/null || true
