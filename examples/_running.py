"""What the example pipelines share: a command line, a check of gradients, `chainrule serve`."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree


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


def compare_gradient(function: Callable[[Any], Any], at: Any) -> None:
    """Print one directional derivative, by the gradient and by a central difference."""
    place, restore = ravel_pytree(at)
    direction = np.random.default_rng(0).normal(size=place.size)
    step = 1e-6 * np.linalg.norm(place) / np.linalg.norm(direction)
    chain = direction @ ravel_pytree(jax.grad(function)(at))[0]
    above, below = (
        function(restore(place + side * step * direction))
        for side in (1, -1)
    )
    print(
        f"gradient {chain:.4g} by the chain rule,",
        f"{(above - below) / (2 * step):.4g} by differences",
    )


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
