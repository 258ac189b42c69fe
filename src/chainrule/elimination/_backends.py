"""Running an elimination: through XLA, or as one native kernel."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import jax

from chainrule._errors import InputError
from chainrule._jaxpr import trace_avals
from chainrule.elimination._linearize import Traced, linearize_traced
from chainrule.elimination._native import NativeUnavailableError, native_function

__all__ = ["Backend", "run_dense"]

Backend = Literal["xla", "native"]

_log = logging.getLogger(__name__)


def run_dense(
    traced: Traced, order: tuple[int, ...], backend: Backend, *, wants_value: bool
) -> tuple[Any, Any, Any]:
    """The value (`None` if not wanted), the auxiliary result and the dense Jacobian."""
    if backend == "native":
        try:
            return _run_native(traced, order, wants_value)
        except NativeUnavailableError as error:
            _log.info("No native kernel for this Jacobian, XLA computes it: %s", error)
    elif backend != "xla":
        raise InputError(
            f"There is no backend {backend!r}; it is 'xla' or 'native'.", code="unknown_backend"
        )
    found = linearize_traced(traced, order)
    return found.value, found.aux, found.jacobian


def _run_native(traced: Traced, order: tuple[int, ...], wants_value: bool) -> tuple[Any, Any, Any]:
    """The eliminated program, traced once more without batch axes, as a kernel.

    A kernel computes all its outputs, so nothing may be among them that nobody reads.
    """
    trees = []

    def flat(*operands: Any) -> list[Any]:
        found = linearize_traced(replace(traced, operands=operands), order)
        value = found.value if wants_value else None
        leaves, tree = jax.tree.flatten((value, found.aux, found.jacobian))
        trees.append(tree)
        return leaves

    program = trace_avals(flat, [jax.typeof(operand) for operand in traced.operands])
    if any(isinstance(const, jax.core.Tracer) for const in program.consts):
        raise NativeUnavailableError("The function closes over values that are being traced.")
    return jax.tree.unflatten(trees[-1], native_function(program)(*traced.operands))
