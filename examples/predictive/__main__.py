"""`python -m examples.predictive`: train every network in both ways and print what they reach."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chainrule import Component
from examples.predictive import _tasks

COMPONENT = Path(__file__).parent / "oscillator" / "component.py"


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


def main() -> None:
    table = Table(
        "task",
        "measure",
        "predictive coding",
        "backpropagation",
        "untrained",
    )
    results = [
        _tasks.two_moons(),
        _tasks.deep_classifier(),
        _tasks.convolutional_classifier(),
        _tasks.autoencoder(),
    ]
    with served(COMPONENT) as url, Component.from_url(url) as component:
        results.append(_tasks.component_as_decoder(component))
    for r in results:
        figures = (
            f"{x:.4f}"
            for x in (r.predictive, r.backpropagation, r.untrained)
        )
        table.add_row(r.task, r.measure, *figures)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
