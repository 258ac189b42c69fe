"""Which engine evaluates orders on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chainrule.elimination._search._native_engine import MOST_STRUCTURES, NativeEngine, load_engine
from chainrule.elimination._search._problem import Problem
from chainrule.elimination._search._python_engine import PythonEngine

_MOST_VERTICES = 4096
"""The engine in C keeps edges as a square of this size, 64 MB; Python keeps those there are."""


class Engine(Protocol):
    """What the portfolio asks of an engine. Deterministic for a seed."""

    sweeps_per_call: int
    """How many annealing passes take about a hundredth of a second, to the nearest order."""

    exact_width: int
    """The widest window that is put into its best order in less than a second or so."""

    deadline: float
    """When to raise `OutOfBudgetError` rather than go on, or ask for another product, which may be slow."""

    @property
    def evaluations(self) -> int:
        """Eliminations tried so far."""
        ...

    def costs(self, order: Sequence[int]) -> list[int]:
        """What every step of an order costs."""
        ...

    def greedy(self, look_ahead: float, noise: float, seed: int) -> list[int]:
        """An order by repeatedly taking the vertex with the smallest score."""
        ...

    def anneal(
        self,
        order: Sequence[int],
        temperatures: Sequence[float],
        window: int,
        tries: int,
        seed: int,
    ) -> tuple[list[int], list[int]]:
        """One pass per temperature: the order after the last, and the best after any."""
        ...

    def windows(self, order: Sequence[int], width: int) -> list[int]:
        """Every window of an order put into its best order."""
        ...


def make_engine(problem: Problem) -> Engine:
    """The engine in C where it can be built and has room, the one in Python otherwise."""
    library = load_engine()
    most = max((structure for *_, structure in problem.edges), default=0)
    if library is None or problem.size > _MOST_VERTICES or most >= MOST_STRUCTURES:
        return PythonEngine(problem)
    return NativeEngine(problem, library)
