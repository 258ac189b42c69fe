"""Multiplications of searched elimination orders against AlphaGrad's and the best known ones.

Seconds include tracing the function and building its graph. Where our rendering of a task has other
forward and reverse counts than the published one, the row informs and sets no bar.
"""

from __future__ import annotations

import time

from benchmarks._harness import Row, show
from chainrule.elimination import find_order, linearization
from chainrule.elimination.examples import TASKS, Task

# task: best known multiplications, nontrivial ones of the best unit-aware order (None: not published),
# seconds to search, whether forward and reverse counts of our rendering equal the published ones
PUBLISHED = {
    "RoeFlux_1d": (295, 184, 4.0, True),
    "RobotArm_6DOF": (221, 151, 4.0, True),
    "HumanHeartDipole": (148, 48, 1.0, True),
    "PropaneCombustion": (88, 24, 1.0, True),
    "BlackScholes_Jacobian": (297, None, 6.0, False),
    "RoeFlux_3d": (639, None, 12.0, False),
    "Perceptron": (308, None, 3.0, False),
    "Encoder": (4348, None, 8.0, False),
}


def run() -> list[Row]:
    rows = []
    for task in TASKS:
        best, best_nontrivial, budget_s, is_same = PUBLISHED[task.name]
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
                    1.0 if is_same else None, unit="",
                    note=f"{_pure(task, objective)}; found after {order.seconds:.2g} s of {seconds:.2g} s"
                    + bound,
                )
            )  # fmt: skip
    return rows


def _pure(task: Task, objective: str) -> str:
    """What forward and reverse accumulation cost."""
    arguments = task.arguments()
    argnums = tuple(range(len(arguments)))
    counts = {
        order: linearization(task.function, argnums, order=order)(*arguments).counts
        for order in ("forward", "reverse")
    }
    return ", ".join(f"{order} {getattr(found, objective):,}" for order, found in counts.items())


if __name__ == "__main__":
    show(run())
