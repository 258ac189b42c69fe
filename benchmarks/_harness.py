"""What every benchmark shares: interleaved timing, and rows that say claim, ratio and bar.

A benchmark is a module `bench_<topic>.py` with a function `run() -> list[Row]`; it ends with
`if __name__ == "__main__": show(run())`. Contestants are timed in turns, not one after the other, so that
a noisy neighbour hits all of them alike, and in another order each time, so that none always inherits
the caches and the heap of the same predecessor; the median is quoted.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measured claim.

    Attributes:
        claim: what is claimed, in words a user understands.
        us: our figure.
        reference: the figure it is compared with (the floor or the peer, as `against` says).
        against: what the reference is.
        bar: the largest allowed `us / reference`; `None` when the row only informs.
        unit: of `us` and `reference`.
        note: set-up cost, versions, anything a reader needs beside the ratio.
    """

    claim: str
    us: float
    reference: float
    against: str
    bar: float | None = None
    unit: str = "s"
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.us / self.reference

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.ratio <= self.bar


MANY_TURNS: dict[str, Any] = {"rounds": 301, "min_round_s": 0.003}
"""For contestants that are nearly the same program: a slow moment of the machine hits both."""


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    min_round_s: float = 0.02,
) -> dict[str, float]:
    """Median seconds per call of every contestant, timed in turns.

    Args:
        contestants: name → function of no arguments; it must block until its work is done.
        rounds: how many times each contestant gets a turn.
        min_round_s: a turn repeats the call until about this long, so that short calls are measurable.
    """
    repeats = {name: _repeats(call, min_round_s) for name, call in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = random.Random(0).shuffle
    turns = list(contestants.items())
    for _ in range(rounds):
        shuffle(turns)
        for name, call in turns:
            count = repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            samples[name].append((time.perf_counter() - start) / count)
    return {name: statistics.median(values) for name, values in samples.items()}


def _repeats(call: Callable[[], object], seconds: float) -> int:
    call()
    once = _duration(call)
    if once < seconds:  # the first calls may still prepare something, and be several times as long
        once = min(once, *(_duration(call) for _ in range(3)))
    return max(1, int(seconds / max(once, 1e-9)))


def _duration(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


_COLUMNS = ("claim", "us", "peer", "floor", "ratio", "bar", "met", "note")
# Who else does this; every other reference is a floor: what the machine, or code by hand, needs for it.
_PEERS = re.compile(
    r"tesseract|umbridge|graphax|pcx|flax|nnx|eqx|asdex|jacrev|jacfwd|pure_callback|best known",
    re.I,
)


def show(rows: list[Row]) -> None:
    """Print rows as a table."""
    table = Table(*_COLUMNS)
    for row in rows:
        table.add_row(*_cells(row))
    Console(width=160).print(table)


def markdown(rows: list[Row]) -> str:
    """Rows as a table for the docs."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "| " + " | ".join("---" for _ in _COLUMNS) + " |"]
    lines += [
        "| " + " | ".join(cell.replace("|", "/") for cell in _cells(row)) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: "NO"}[row.met]
    bar = "" if row.bar is None else f"≤ {row.bar:.3g}"
    us, reference = quantity(row.us, row.unit), quantity(row.reference, row.unit)
    named = f"{reference} ({row.against})"
    peer, floor = (named, "") if is_peer(row) else ("", named)
    return row.claim, us, peer, floor, f"{row.ratio:.3g}", bar, met, row.note


def is_peer(row: Row) -> bool:
    """Whether the reference is another package, not a floor."""
    return _PEERS.search(row.against) is not None


def quantity(value: float, unit: str) -> str:
    """A figure with its unit, in three digits."""
    if unit != "s":
        return f"{value:,.6g} {unit}"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"
