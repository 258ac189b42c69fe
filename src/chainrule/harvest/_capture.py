"""Tracing a function with its sows alive, and running it so that the sown values come out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from chainrule._jaxpr import (
    FOLDS,
    ClosedJaxpr,
    Extra,
    JaxprEqn,
    Rewriter,
    aval_of,
    ring,
    trace_avals,
    walk,
)
from chainrule.harvest._slots import Slot, fill, is_array
from chainrule.harvest._sow import Reduce, Sowing, capturing, is_sow, sowing_of

__all__ = ["Tap", "run_with_taps", "stage", "tap_values"]

Tap = Callable[[Sowing, list[Any]], Extra]
"""Makes the extra of one sow from what it says and its operands."""


def stage(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    protect: str | None = None,
) -> tuple[ClosedJaxpr, list[Any], Callable[[Sequence[Any]], Any]]:
    """Trace a function, with the sows of one tag safe from dead-code elimination.

    Only arrays are traced; numbers and other leaves are what they are, as static arguments have to be.

    Returns:
        The flat program, its operands, and what rebuilds the function's result from the outputs.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    operands = [leaf for leaf in leaves if _is_traced(leaf)]
    notes: dict[str, Any] = {}

    def flat(*inputs: Any) -> list[Any]:
        traced = iter(inputs)
        given, named = jax.tree.unflatten(
            tree, [next(traced) if _is_traced(leaf) else leaf for leaf in leaves]
        )
        outputs, notes["tree"] = jax.tree.flatten(function(*given, **named))
        notes["outputs"] = [Slot.of(output) for output in outputs]
        return [output for output in outputs if is_array(output)]

    tags = frozenset() if protect is None else frozenset({protect})
    # With jit disabled JAX would unroll loops, and the same program would have other intermediates.
    with capturing(capturing.value | tags), jax.disable_jit(False):
        program = trace_avals(flat, [aval_of(operand) for operand in operands])

    def rebuild(outputs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(notes["tree"], fill(notes["outputs"], outputs))

    return program, operands, rebuild


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and is_array(leaf)


def run_with_taps(
    program: ClosedJaxpr, operands: Sequence[Any], tag: str, tap: Tap
) -> tuple[list[Any], list[Extra]]:
    """The outputs of a program, and one extra per sow of a tag, in execution order."""
    pushed = _names_with_tangents(program, tag)

    def claim(eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]) -> Any:
        sowing = sowing_of(eqn)
        values = operands[: len(eqn.outvars)]
        if not sowing.is_reported:
            return values, []
        return values, [
            tap(replace(sowing, shared=()) if sowing.name in pushed else sowing, values)
        ]

    return Rewriter(claim, is_claimed=functools.partial(is_sow, tag=tag)).run(program, operands)


def _names_with_tangents(program: ClosedJaxpr, tag: str) -> set[str]:
    """Names whose tangents are taken: a `vmap` around them runs over directions, not over examples."""
    sowings = (
        site.equation.params["sowing"] for site in walk(program) if is_sow(site.equation, tag)
    )
    return {sowing.name for sowing in sowings if sowing.mode.is_tangent}


def tap_values(reduce: Reduce | None, buffer: int | None) -> Tap:
    """Taps that hand out the sown values; the options are for sows that leave them open."""

    def tap(sowing: Sowing, values: list[Any]) -> Extra:
        chosen, kept = sowing.reduce or reduce, sowing.buffer or buffer
        return Extra(
            tuple(sowing.repeat(values)),
            sowing,
            fold=FOLDS.get(chosen or "stack"),
            open_fold=ring(kept) if kept else None,
        )

    return tap
