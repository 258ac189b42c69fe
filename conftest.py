"""Every Python block and every `sh` block of the README and of every page of the docs runs as a test.

The blocks of one page share a namespace and a folder, in order, as a reader would type them. A shell block
that needs what a test does not have (a free port, a container engine, a cluster) is marked `bash`: its
commands are parsed only (tests/project/test_docs.py).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

_SHELL = "shell folder of the page"


def _run_shell(example):
    """In the `folder` that the page has made, or else in an empty one; every command has to succeed."""
    folder = example.namespace.get("folder") or example.namespace.get(_SHELL)
    if folder is None:
        folder = example.namespace[_SHELL] = tempfile.mkdtemp()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", str(example.parsed)],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-2000:]}"


def _clean_up(namespace):
    """A page may switch to double precision; the tests that follow in this process start in single."""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", False)
    if _SHELL in namespace:
        shutil.rmtree(namespace[_SHELL])


pytest_collect_file = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser(), CodeBlockParser("sh", _run_shell)],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    teardown=_clean_up,
).pytest()
