"""Every Python block of the README and of every page of the docs runs as a test.

The blocks of one page share a namespace, in order, as a reader would type them.
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def _forget_precision(namespace):
    """A page may switch to double precision; the tests that follow in this process start in single."""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", False)


pytest_collect_file = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    teardown=_forget_precision,
).pytest()
