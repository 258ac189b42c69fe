#!/bin/sh
# Finds conda, mamba or micromamba in the base image, or fetches Miniforge. Not part of the finished image.
set -eu
trap '[ $? -eq 0 ] || echo "chainrule-build-failed: conda"' EXIT

for name in conda mamba micromamba; do
    if command -v $name; then exit 0; fi
done
release=https://github.com/conda-forge/miniforge/releases/download/26.7.2-0
url=${CONDA_INSTALLER_URL:-$release/Miniforge3-26.7.2-0-Linux-$(uname -m).sh}
installer=$(mktemp)
if ! python3 -c 'import sys, urllib.request as r; r.urlretrieve(*sys.argv[1:])' "$url" "$installer"; then
    echo "conda cannot be fetched from $url. Name a base image that has it, or set CONDA_INSTALLER_URL"
    echo "in build_env to where it can be had."
    exit 1
fi
bash "$installer" -b -p /opt/miniforge
rm "$installer"
