"""Every Python block of the README and of every page of the docs runs as a test.

The blocks of one page share a namespace, in order, as a reader would type them.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
).pytest()
