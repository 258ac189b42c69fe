"""Saying what computing a Jacobian costs in each way."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from chainrule._errors import InputError
from chainrule.elimination._choose import choose_order
from chainrule.elimination._eliminate import Step
from chainrule.elimination._linearize import Traced, as_examples, trace_function
from chainrule.elimination._methods import Candidate, candidates
from chainrule.elimination._native import NativeUnavailableError
from chainrule.elimination._run import run_method, run_native

__all__ = ["Explanation", "explain_jacobian"]


@dataclass(frozen=True)
class Explanation:
    """The ways of computing a Jacobian, best estimate first: `method="auto"` takes the first.

    Attributes:
        candidates: the ways.
    """

    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> str:
        """The method of the candidate that `method="auto"` takes."""
        return self.candidates[0].method

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(*_COLUMNS)
        for candidate in self.candidates:
            table.add_row(*_cells(candidate, is_chosen=candidate is self.candidates[0]))
        text = io.StringIO()
        Console(file=text, width=140).print(table)
        return text.getvalue()


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

    Raises:
        InputError: times cannot be measured while the arguments are being traced (`not_concrete`).

    Example:
        >>> import jax.numpy as jnp
        >>> explain_jacobian(lambda x: jnp.sin(x) * x, jnp.arange(8.0)).chosen
        'elimination'
    """
    traced = trace_function(fun, argnums, as_examples(args), {})
    if measure and any(isinstance(operand, jax.core.Tracer) for operand in traced.operands):
        raise InputError(
            "Times are measured with values, but the arguments are being traced. Call "
            "`explain_jacobian(…, measure=True)` outside of `jit`, `vmap` and `grad`.",
            code="not_concrete",
        )
    order = choose_order(traced.graph, "auto")
    found = candidates(traced, order, compiled=True, detect=True)
    if not measure:
        return Explanation(tuple(found))
    measured = [_measured(traced, order, candidate) for candidate in found]
    return Explanation(tuple(candidate for candidate in measured if candidate is not None))


_MEASURED_S, _MEASURED_CALLS = 0.03, 7


def _measured(traced: Traced, order: tuple[Step, ...], candidate: Candidate) -> Candidate | None:
    """The candidate with the fastest of a few compiled calls.

    As it was where JAX refuses the method; `None` for a kernel that, as it turns out, cannot be made.
    """

    def way(*operands: Any) -> Any:
        here = replace(traced, operands=operands)
        if candidate.backend == "native":
            return run_native(here, order, wants_value=False)[2]
        return run_method(here, order, candidate.method, candidate.backend, wants_value=False)[2]

    start = time.perf_counter()
    try:
        compiled = jax.jit(way).lower(*traced.operands).compile()
    except NativeUnavailableError:
        return None
    except (TypeError, ValueError, NotImplementedError):
        return candidate
    setup_s = time.perf_counter() - start
    seconds = _fastest(lambda: jax.block_until_ready(compiled(*traced.operands)))
    return replace(candidate, seconds=seconds, setup_s=setup_s, peak_bytes=_peak_bytes(compiled))


def _fastest(call: Callable[[], Any]) -> float:
    """The time of the fastest of some calls: a few long ones, or as many as there are in a moment.

    The first calls after a compilation are slow, by a factor of ten where they take microseconds.
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
