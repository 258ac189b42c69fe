#!/usr/bin/env bash
# Fills .device-packages with what the tests on a GPU machine need and that machine lacks: it has Python 3.12,
# JAX, torch, CuPy and pytest, and reaches no package index.
set -eu
cd "$(dirname "$0")/.."
target=.device-packages
rm -rf "$target"
${PYTHON:-python3.11} -m pip install --quiet --no-compile --target "$target" --python-version 3.12 \
    --only-binary=:all: --no-deps --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any \
    pydantic pydantic-core annotated-types typing-inspection typing-extensions orjson httptools pybase64 lz4 zstandard \
    starlette uvicorn jiter jsonschema jsonschema-specifications referencing rpds-py pint flexcache flexparser platformdirs
rm -f "$target"/zstandard/_cffi*
du -sh "$target"
