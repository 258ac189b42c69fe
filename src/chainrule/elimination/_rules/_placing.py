"""Primitives that place entries at known indices: scatters and updates of slices.

They are linear in what they place and in what they place it into, and every entry of either lands in one
place or is lost. Where it lands is found by pulling the numbers of the result's places back through JAX's
own rule. With unknown indices the conservative road is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule._jaxpr import JaxprEqn, bind_equation
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._moving import coordinates, separable_axes
from chainrule.elimination._rules._site import (
    Edge,
    LocalJacobian,
    Rule,
    Site,
    constant,
    term_structure,
)
from chainrule.elimination._structure import Axis, Structure

_EXACT = 2**24
"""Single precision counts exactly up to here."""


def _placing(*linear: int) -> Rule:
    """The rule of a primitive that is linear in the given operands; all others are indices."""

    def rule(site: Site) -> LocalJacobian:
        indices = [k for k in range(len(site.eqn.invars)) if k not in linear]
        is_known = all(site.known(k) is not None for k in indices)
        if not is_known or math.prod(site.result_shape()) >= _EXACT:
            return fallback(site)
        structures: dict[Edge, Structure] = {}
        for operand in site.wanted_operands:
            structure = _edge(site, operand, _landings(site, operand, linear))
            if structure is not None:
                structures[0, operand] = structure
        return constant(structures)

    return rule


def _landings(site: Site, operand: int, linear: tuple[int, ...]) -> np.ndarray:
    """For every entry of an operand, the flat place in the result where it lands, or -1."""
    # Numbers of places need more digits than the operand may have (bfloat16 counts to 256).
    dtype = jnp.result_type(float)
    apply = _IN_ANY_DTYPE[site.eqn.primitive.name]
    shape = site.result_shape()
    with jax.ensure_compile_time_eval():
        operands: list[Any] = [
            jnp.zeros(site.operand_shape(k), dtype) if k in linear else site.known(k)
            for k in range(len(site.eqn.invars))
        ]

        def place(entries: Any) -> Any:
            return apply(site.eqn, *operands[:operand], entries, *operands[operand + 1 :])

        numbers = jnp.arange(1, math.prod(shape) + 1, dtype=dtype).reshape(shape)
        (pulled,) = jax.vjp(place, operands[operand])[1](numbers)
    return np.asarray(pulled).astype(np.int64) - 1


def _scatter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A scatter of operands in another dtype; the equation holds a program that adds those of its own."""

    def apply(eqn: JaxprEqn, operand: Any, indices: Any, updates: Any) -> Any:
        return function(
            operand, indices, updates, eqn.params["dimension_numbers"], mode=eqn.params["mode"],
            indices_are_sorted=eqn.params["indices_are_sorted"],
            unique_indices=eqn.params["unique_indices"],
        )  # fmt: skip

    return apply


_IN_ANY_DTYPE: dict[str, Callable[..., Any]] = {
    "scatter": _scatter(lax.scatter),
    **dict.fromkeys(("scatter-add", "scatter_add"), _scatter(lax.scatter_add)),
    "dynamic_update_slice": lambda eqn, *operands: bind_equation(eqn, operands)[0],
}


def _edge(site: Site, operand: int, landings: np.ndarray) -> Structure | None:
    in_shape, out_shape = site.operand_shape(operand), site.result_shape()
    kept = np.flatnonzero(landings >= 0)
    if kept.size == 0:
        return None
    out_axes = separable_axes(landings, out_shape) if kept.size == landings.size else None
    if out_axes is not None:
        in_axes = [Axis.of(d) for d in range(len(in_shape))]
        sizes = in_shape
    else:
        out_axes = coordinates(landings.reshape(-1)[kept], out_shape)
        in_axes = coordinates(kept, in_shape)
        sizes = (kept.size,)
    found = term_structure(out_shape, in_shape, sizes, out_axes, in_axes, index_map=True)
    return None if found is None else found[0]


PLACING_RULES: dict[str, Rule] = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), _placing(0, 2)),
    "dynamic_update_slice": _placing(0, 1),
}
