"""What computing a Jacobian costs in each way, as a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from chainrule._describe import describe_error
from chainrule._errors import InputError
from chainrule._tables import NotedTable
from chainrule.elimination._linearize import Traced, as_examples, trace_function
from chainrule.elimination._methods import (
    Candidate,
    Ways,
    is_about_the_way,
    list_ways,
    run_method,
    run_native,
)
from chainrule.elimination._native import NativeUnavailableError
from chainrule.elimination._planning import Plan, make_plan
from chainrule.elimination._search import OrderStep


@dataclass(frozen=True)
class Explanation:
    """The ways of computing a Jacobian, best estimate first. It prints as a table, also in a notebook.

    Attributes:
        candidates: the ways.
        taken: the name of the one that `method="auto"` takes under `jit`. It is the first one, unless that
            would cost more to find out than it saves.
        left_out: method → why it is not among the candidates.
        plan: what is asked of the components that the function calls, where their products are planned.
    """

    candidates: tuple[Candidate, ...]
    taken: str
    left_out: Mapping[str, str]
    plan: Plan | None = None

    @property
    def chosen(self) -> str:
        """The method of the candidate that `method="auto"` takes."""
        return self.taken.partition(" ")[0]

    def _repr_html_(self) -> str:
        return self._table.html() + ("" if self.plan is None else self.plan._repr_html_())

    @property
    def _table(self) -> NotedTable:
        """The columns that have a cell to show, and the ways that are left out."""
        rows = [_cells(each, is_chosen=each.name == self.taken) for each in self.candidates]
        shown = [k for k in range(len(_COLUMNS)) if any(row[k] for row in rows)]
        notes = [f"{method} is left out: {reason}" for method, reason in self.left_out.items()]
        return NotedTable(
            [_COLUMNS[k] for k in shown], [[row[k] for k in shown] for row in rows], notes, 140
        )

    def __repr__(self) -> str:
        return f"<Explanation: {self.taken} is taken; print it for the costs of {len(self.candidates)} ways>"

    def __str__(self) -> str:
        return str(self._table) + ("" if self.plan is None else str(self.plan))


_COLUMNS = (
    "method", "estimated", "operations", "entries held", "multiplications", "sweeps", "measured", "memory",
    "trace and compile",
)  # fmt: skip


def _cells(c: Candidate, *, is_chosen: bool) -> tuple[str, ...]:
    return (
        c.name + (" *" if is_chosen else ""),
        _time(c.estimated_s),
        f"{c.operations:,.0f}",
        f"{c.entries:,.0f}",
        "" if c.multiplications is None else f"{c.multiplications:,}",
        "" if c.sweeps is None else f"{c.sweeps:,}",
        _time(c.seconds),
        "" if c.peak_bytes is None else f"{c.peak_bytes / 1e3:,.1f} kB",
        _time(c.setup_s),
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:,.1f} µs" if seconds < 0.01 else f"{seconds:,.3f} s"


def explain_jacobian(
    fun: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    measure: bool = False,
) -> Explanation:
    """What computing the Jacobian of `fun` costs in each way, and which way a jitted `jacobian` would take.

    Args:
        fun: a function of pytrees that JAX can trace.
        *args: its arguments; `jax.ShapeDtypeStruct`s will do.
        argnums: which of them are differentiated.
        measure: compile and time every candidate as well.

    Returns:
        An object that prints as a table: estimated time of a compiled call, operations, entries held;
        multiplications of an elimination, products of a sweep; when measured, time, memory and set-up.
        Below the table are the methods that are left out, with the reason.

    Raises:
        InputError: times cannot be measured while the arguments are being traced (`not_concrete`).

    Example:
        >>> import jax.numpy as jnp
        >>> explain_jacobian(lambda x: jnp.sin(x) * x, jnp.arange(100.0)).chosen
        'elimination'
    """
    traced = trace_function(fun, argnums, as_examples(args), {}, needs_graph=False)
    if measure and any(isinstance(operand, jax.core.Tracer) for operand in traced.operands):
        raise InputError(
            "Times are measured with values, but the arguments are being traced. Call "
            "`explain_jacobian(…, measure=True)` outside of `jit`, `vmap` and `grad`.",
            code="not_concrete",
        )
    ways = list_ways(traced, compiled=True, thorough=True)
    taken, failed = _first_that_works(traced, list_ways(traced, compiled=True))
    found = tuple(candidate for candidate in ways.candidates if candidate.method not in failed)
    if measure:
        measured = [_measured(traced, ways.order, candidate) for candidate in found]
        found = tuple(candidate for candidate in measured if candidate is not None)
    plan = make_plan(traced, fun, argnums) if taken.method == "planned" else None
    return Explanation(found, taken.name, {**ways.left_out, **failed}, plan)


def _first_that_works(traced: Traced, ways: Ways) -> tuple[Candidate, dict[str, str]]:
    """The first candidate that can be traced, and why those before it cannot."""
    failed: dict[str, str] = {}
    for candidate in ways.candidates:
        if candidate.method in failed:
            continue
        try:
            jax.eval_shape(
                _way(traced, ways.order, replace(candidate, backend="xla")), *traced.operands
            )
        except Exception as error:
            if not is_about_the_way(error):
                raise
            failed[candidate.method] = describe_error(error)
            first_error = error
        else:
            return candidate, failed
    raise first_error


def _way(traced: Traced, order: tuple[OrderStep, ...], candidate: Candidate) -> Callable[..., Any]:
    """The Jacobian as a function of the operands, by a candidate."""

    def way(*operands: Any) -> Any:
        here = replace(traced, operands=operands)
        if candidate.backend == "native":
            return run_native(here, order, wants_value=False)[2]
        return run_method(here, order, candidate.method, candidate.backend, wants_value=False)[2]

    return way


_MEASURED_S, _MEASURED_CALLS = 0.03, 7


def _measured(
    traced: Traced, order: tuple[OrderStep, ...], candidate: Candidate
) -> Candidate | None:
    """The candidate with the fastest of a few compiled calls.

    Unchanged where JAX refuses the method; `None` for a kernel that cannot be made after all.
    """

    start = time.perf_counter()
    try:
        way = _way(traced, order, candidate)
        compiled = jax.jit(way).lower(*traced.operands).compile()
    except NativeUnavailableError:
        return None
    except (TypeError, ValueError, NotImplementedError):
        return candidate
    setup_s = time.perf_counter() - start
    seconds = _fastest(lambda: jax.block_until_ready(compiled(*traced.operands)))
    return replace(candidate, seconds=seconds, setup_s=setup_s, peak_bytes=_peak_bytes(compiled))


def _fastest(call: Callable[[], Any]) -> float:
    """The time of the fastest call: of `_MEASURED_CALLS`, or of as many as fit into `_MEASURED_S`.

    The first calls after a compilation are slow, by a factor of ten where they take microseconds. The
    minimum is the time without disturbances by other programs.
    """
    times: list[float] = []
    call()
    until = time.perf_counter() + _MEASURED_S
    while len(times) < _MEASURED_CALLS or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _peak_bytes(compiled: Any) -> int | None:
    try:
        memory = compiled.memory_analysis()
        return int(memory.temp_size_in_bytes + memory.output_size_in_bytes)
    except (AttributeError, TypeError, NotImplementedError):
        return None
