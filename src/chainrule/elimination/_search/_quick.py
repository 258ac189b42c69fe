"""A short search that finds the same order everywhere: it counts its work instead of looking at the clock.

What `order="auto"` takes. A search that stops by the time finds another order on a machine that is busy, and
JAX then compiles another program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from chainrule.elimination._search._construct import relative_markowitz
from chainrule.elimination._search._problem import OutOfBudgetError, Problem
from chainrule.elimination._search._python_engine import PythonEngine

_MOST_WORK = 300_000
"""Pairs of edges that are looked at: about as many microseconds."""

_SWEEPS, _WINDOW, _TRIES = 10, 24, 2
"""Of the annealing. On the graphs of the literature they end within a few percent of a long search."""


def quick_search(problem: Problem, *, reverse_first: bool) -> list[int]:
    """An order that is no worse than forward or reverse, whichever comes first.

    Args:
        problem: the graph.
        reverse_first: which of the two is evaluated in any case.
    """
    engine = PythonEngine(problem)
    forward = list(problem.eliminable)
    pure = [forward[::-1], forward] if reverse_first else [forward, forward[::-1]]
    best, lowest = pure[0], sum(engine.costs(pure[0]))
    engine.most_work = engine.work + _MOST_WORK
    makers: list[Callable[[], Sequence[int]]] = [
        lambda: pure[1],
        lambda: relative_markowitz(engine),
        lambda: engine.greedy(0.0, 0.0, 0),
        lambda: _annealed(engine, best, lowest),
    ]
    with contextlib.suppress(OutOfBudgetError):
        for make in makers:
            order = list(make())
            cost = sum(engine.costs(order))
            if cost < lowest:
                best, lowest = order, cost
    return best


def _annealed(engine: PythonEngine, order: list[int], cost: int) -> list[int]:
    """The best order after any pass; that of the last pass for which there was room."""
    mean_cost = cost / max(1, len(order))
    hottest, coldest = max(1.0, 0.08 * mean_cost), 0.05 * max(1.0, 0.02 * mean_cost)
    best, lowest = order, cost
    for sweep in range(_SWEEPS if len(order) > 1 else 0):
        temperature = hottest * (coldest / hottest) ** (sweep / (_SWEEPS - 1))
        window = min(len(order) - 1, _WINDOW)
        try:
            order, _ = engine.anneal(order, [temperature], window, _TRIES, sweep)
        except OutOfBudgetError:
            break
        found = sum(engine.costs(order))
        if found < lowest:
            best, lowest = order, found
    engine.most_work = engine.work + _MOST_WORK  # room to evaluate what was found
    return best
