"""Multiplications of searched elimination orders against AlphaGrad's and the best known ones.

Seconds include tracing the function and building its graph. `make bench` also writes the table of
docs/explanation/elimination.md from what is measured here.
"""

from __future__ import annotations

import time

from benchmarks._harness import Row, show
from chainrule.elimination import find_order
from chainrule.elimination._counting import published_counts
from chainrule.elimination._objectives import as_problem
from chainrule.elimination._search import PartialGraph, lower_bound
from chainrule.elimination._search._improve import anneal, greedy
from chainrule.elimination.examples import TASKS, Task
from chainrule.elimination.internal import trace_function

# task: AlphaGrad's and the best known multiplications, nontrivial ones of the best unit-aware order (None:
# not published), seconds to search
PUBLISHED = {
    "RoeFlux_1d": (320, 295, 184, 4.0),
    "RobotArm_6DOF": (231, 221, 151, 4.0),
    "HumanHeartDipole": (148, 148, 48, 1.0),
    "PropaneCombustion": (88, 88, 24, 1.0),
    "BlackScholes_Jacobian": (312, 297, None, 6.0),
    "RoeFlux_3d": (793, 639, None, 30.0),
    "Perceptron": (389, 308, None, 3.0),
    "Encoder": (4656, 4348, None, 20.0),
}

# What is asked for in half a minute; the best known one may take longer.
_BARS = {"RoeFlux_3d": 642 / 639}

_MOVES_PER_S = 1e5


def run() -> list[Row]:
    rows = []
    for task in TASKS:
        _, best, best_nontrivial, budget_s = PUBLISHED[task.name]
        for objective, reference in (("multiplications", best), ("nontrivial", best_nontrivial)):
            if reference is None:
                continue
            start = time.perf_counter()
            order = find_order(
                task.function, *task.arguments(), objective=objective, budget_s=budget_s
            )
            seconds = time.perf_counter() - start
            proof = ", optimal" if order.optimal else ""
            bound = f", lower bound {order.bound}{proof}" if order.bound is not None else ""
            rows.append(
                Row(
                    f"{task.name}: {objective}", order.cost, reference, "best known",
                    _BARS.get(task.name, 1.0), unit="",
                    note=f"{_pure(task, objective)}; found by {order.method} after {order.seconds:.2g} s of "
                    f"{seconds:.2g} s{bound}",
                )
            )  # fmt: skip
    return rows + [_moves(task) for task in TASKS if task.name in ("RoeFlux_1d", "RoeFlux_3d")]


def _graph(task: Task) -> object:
    arguments = task.arguments()
    return trace_function(task.function, tuple(range(len(arguments))), arguments, {}).graph


def _pure(task: Task, objective: str) -> str:
    """What forward and reverse accumulation cost."""
    graph = _graph(task)
    counts = {order: published_counts(graph, order) for order in ("forward", "reverse")}
    return ", ".join(f"{order} {getattr(found, objective):,}" for order, found in counts.items())


def _moves(task: Task) -> Row:
    """How many moves of a vertex annealing tries in a second, once the structures have been met."""
    graph = PartialGraph(as_problem(_graph(task), "multiplications")[0], compiled=True)
    order = greedy(graph, 0.5, 0.0, 1)
    passes, window, tries = [1.0] * 20, 24, 4
    anneal(graph, order, passes, window, tries, 1)
    start = time.perf_counter()
    anneal(graph, order, passes, window, tries, 1)
    seconds = time.perf_counter() - start
    moves = len(passes) * tries * (len(order) - 1)
    return Row(
        f"{task.name}: one move of a vertex evaluated", seconds / moves, 1 / _MOVES_PER_S,
        "bar: 10⁵ moves per second", 1.0,
        note=f"{moves / seconds:,.0f} moves per second on {len(order)} vertices",
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The table of the explanation: every task, what is known of it, and what was found."""
    found = {row.claim.removesuffix(": multiplications"): int(row.us) for row in rows}
    lines = [
        "| function | forward | reverse | AlphaGrad | best known | found by search | no order can be below |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        graph = _graph(task)
        pure = [published_counts(graph, way).multiplications for way in ("forward", "reverse")]
        known = PUBLISHED[task.name][:2]
        bound = lower_bound(as_problem(graph, "multiplications")[0])
        cells = [
            *(f"{n:,}" for n in (*pure, *known, found[task.name])),
            "" if bound is None else str(bound),
        ]
        lines.append(f"| {task.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    show(run())
