#!/bin/sh
# Prints a Python newer than 3.11 if this machine has one: it gets the newest JAX, which 3.11 does not.
for candidate in python3.13 python3.12 "$HOME"/.pyenv/versions/3.13*/bin/python "$HOME"/.pyenv/versions/3.12*/bin/python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
        command -v "$candidate"
        exit 0
    fi
done
