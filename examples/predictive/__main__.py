"""`python -m examples.predictive`: train every network in both ways and print what they reach."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from chainrule import Component
from examples._running import served
from examples.predictive import _tasks

COMPONENT = Path(__file__).parent / "oscillator" / "component.py"


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
