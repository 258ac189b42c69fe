"""Choosing how to compute a Jacobian, and saying why."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from chainrule._jaxpr import evaluate
from chainrule.elimination._choose import choose_order
from chainrule.elimination._counting import count_operations
from chainrule.elimination._graph import Graph
from chainrule.elimination._linearize import Traced, linearize_traced, trace_function
from chainrule.elimination._rules import real_shape
from chainrule.elimination._work import Estimate, estimate_elimination, estimate_sweeps

__all__ = ["Candidate", "Explanation", "choose_method", "explain_jacobian"]


@dataclass(frozen=True)
class Candidate:
    """One way of computing a Jacobian.

    Attributes:
        method: `"elimination"`, `"jacrev"` or `"jacfwd"`.
        operations: estimated scalar operations.
        entries: estimated numbers held at once.
        multiplications: of the elimination, by the convention of the literature; else `None`.
        seconds: measured time of a compiled call; `None` when not measured.
    """

    method: str
    operations: float
    entries: float
    multiplications: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Explanation:
    """The candidates for a Jacobian, best estimate first, and the one that `method="auto"` takes."""

    candidates: tuple[Candidate, ...]
    chosen: str

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table("method", "operations", "entries held", "multiplications", "measured")
        for c in self.candidates:
            mark = " *" if c.method == self.chosen else ""
            muls = "" if c.multiplications is None else f"{c.multiplications:,}"
            measured = "" if c.seconds is None else f"{c.seconds * 1e6:,.1f} µs"
            table.add_row(
                c.method + mark, f"{c.operations:,.0f}", f"{c.entries:,.0f}", muls, measured
            )
        text = io.StringIO()
        Console(file=text, width=100).print(table)
        return text.getvalue()


def choose_method(graph: Graph, order: tuple[int, ...]) -> str:
    """The method with the least estimated work; elimination among equals."""
    return _ranked(graph, order)[0].method


def _ranked(graph: Graph, order: tuple[int, ...]) -> list[Candidate]:
    rows = sum(math.prod(real_shape(atom.aval)) for atom in graph.targets)
    columns = sum(math.prod(real_shape(var.aval)) for var in graph.inputs)
    estimates: dict[str, Estimate] = {
        "elimination": estimate_elimination(graph, order),
        "jacrev": estimate_sweeps(graph, rows),
        "jacfwd": estimate_sweeps(graph, columns),
    }
    counts = count_operations(graph, order)
    found = [
        Candidate(
            name, e.operations, e.entries,
            counts.multiplications if name == "elimination" else None,
        )
        for name, e in estimates.items()
    ]  # fmt: skip
    return sorted(found, key=lambda candidate: candidate.operations)


def explain_jacobian(
    fun: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    measure: bool = False,
) -> Explanation:
    """What computing the Jacobian of `fun` costs in each way, and which way `jacobian` would take.

    Args:
        fun: a function of pytrees that JAX can trace.
        *args: its arguments.
        argnums: which of them are differentiated.
        measure: compile and time every candidate as well.

    Returns:
        An object that prints as a table.

    Example:
        >>> import jax.numpy as jnp
        >>> explain_jacobian(lambda x: jnp.sin(x) * x, jnp.arange(8.0)).chosen
        'elimination'
    """
    traced = trace_function(fun, argnums, args, {})
    order = choose_order(traced.graph, "auto")
    candidates = _ranked(traced.graph, order)
    chosen = candidates[0].method
    if measure:
        ways = {
            "elimination": lambda *flat: (
                linearize_traced(replace(traced, operands=flat), order).jacobian
            ),
            "jacrev": jax.jacrev(_flat_function(traced), tuple(range(len(traced.operands)))),
            "jacfwd": jax.jacfwd(_flat_function(traced), tuple(range(len(traced.operands)))),
        }
        candidates = [
            replace(c, seconds=_measured(ways[c.method], traced.operands)) for c in candidates
        ]
    return Explanation(tuple(candidates), chosen)


def _flat_function(traced: Traced) -> Callable[..., list[Any]]:
    return lambda *flat: evaluate(traced.graph.program, flat)


def _measured(function: Callable[..., Any], operands: Sequence[Any]) -> float | None:
    """The fastest of a few compiled calls; `None` for a method that JAX refuses here."""
    try:
        compiled = jax.jit(function).lower(*operands).compile()
    except (TypeError, ValueError, NotImplementedError):
        return None
    jax.block_until_ready(compiled(*operands))
    times = []
    for _ in range(7):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*operands))
        times.append(time.perf_counter() - start)
    return min(times)
