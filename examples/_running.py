"""What the example pipelines share: their command line, and programs behind `chainrule serve`."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def read_options(about: str) -> tuple[bool, Path]:
    """Whether the run is a small one, and the folder for its pictures and reports."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--small",
        action="store_true",
        help="run a small size, in a few seconds",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"),
        help="leave pictures and reports in this folder (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    return options.small, options.output


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """`chainrule serve PATH` in the background; its address."""
    command = [
        sys.executable,
        "-m",
        "chainrule",
        "serve",
        str(path),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            _, _, url = server.stderr.readline().partition("Serving at ")
            yield url.strip()
        finally:
            server.terminate()
