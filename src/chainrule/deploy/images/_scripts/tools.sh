#!/bin/sh
# The tools that install packages: uv, or only pip where uv cannot be fetched. Not part of the finished image.
set -eu
trap '[ $? -eq 0 ] || echo "chainrule-build-failed: tools"' EXIT

export PIP_CACHE_DIR=/build-cache/pip
python3 -m venv /opt/uv
/opt/uv/bin/pip install --quiet --disable-pip-version-check uv \
    || echo "uv is not available; pip installs the packages"
