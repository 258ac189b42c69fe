"""The conservative road: the partials of any equation from `jax.jvp` or `jax.vjp` on that one equation.

Axes that the primitive treats independently of each other (`BATCH_AXES`) stay diagonal: one direction
serves all positions along them at once. Over the remaining axes the Jacobian is dense, built from unit
tangents or unit cotangents, whichever are fewer. Complex values are seen as pairs of real numbers, so that
functions that are not complex-differentiable (`conj`, `abs`, `real`) have their real derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import JaxprEqn, as_function
from chainrule.elimination._rules._batch import batch_axes
from chainrule.elimination._rules._linear import why_no_matrix
from chainrule.elimination._rules._site import (
    Edge,
    LocalJacobian,
    Site,
    as_real,
    is_complex,
    real_shape,
    selecting,
    term_structure,
)
from chainrule.elimination._structure import Axis, Structure


def fallback(site: Site) -> LocalJacobian:
    """Dense partials, diagonal along the axes that the primitive maps over."""
    layouts = {
        (r, p): _Layout.of(site, r, p) for p in site.wanted_operands for r in _float_results(site)
    }
    structures = {}
    for edge, layout in layouts.items():
        found = layout.structure()
        if found is not None:
            structures[edge] = found

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        return _evaluate(site, structures, layouts, operands)

    local = LocalJacobian(structures, evaluate, why_no_matrix(site.eqn, site.wanted_operands))
    return selecting(local) if site.eqn.primitive.name in _MOVING else local


# They move entries to places that are known only when the program runs; all other partials are cut.
_MOVING = frozenset(
    {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "sort",
     "top_k", "cummax", "cummin", "reduce_window_max", "reduce_window_min", "select_and_gather_add"}
)  # fmt: skip


def _float_results(site: Site) -> list[int]:
    count = len(site.eqn.outvars)
    return [k for k in range(count) if jnp.issubdtype(site.result(k).dtype, jnp.inexact)]


@dataclass(frozen=True)
class _Layout:
    """Which axes of an edge are diagonal.

    Attributes:
        out_shape: real shape of the result.
        in_shape: real shape of the operand.
        pairs: (result axis, operand axis) of every diagonal.
    """

    out_shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, site: Site, result: int, operand: int) -> _Layout:
        pairs = []
        for axes in batch_axes(site.eqn):
            a, b = axes.results[result], axes.operands[operand]
            if a is not None and b is not None:
                pairs.append((a, b))
        avals = site.eqn.outvars[result].aval, site.eqn.invars[operand].aval
        return cls(real_shape(avals[0]), real_shape(avals[1]), tuple(pairs))

    @property
    def free_out(self) -> list[int]:
        taken = {a for a, _ in self.pairs}
        return [a for a in range(len(self.out_shape)) if a not in taken]

    @property
    def free_in(self) -> list[int]:
        taken = {b for _, b in self.pairs}
        return [b for b in range(len(self.in_shape)) if b not in taken]

    def structure(self) -> Structure | None:
        found = self._term()
        return None if found is None else found[0]

    def _term(self) -> tuple[Structure, tuple[int, ...]] | None:
        rank = len(self.out_shape)
        partner = {b: a for a, b in self.pairs}
        loops = [*self.out_shape, *self.in_shape]
        out_axes = [Axis.of(a) for a in range(rank)]
        in_axes = [Axis.of(partner.get(b, rank + b)) for b in range(len(self.in_shape))]
        stored = [*range(rank), *(rank + b for b in self.free_in)]
        return term_structure(
            self.out_shape, self.in_shape, loops, out_axes, in_axes, stored=stored
        )

    def value(self, dense: Any) -> Any:
        """A value with axes (result axes, free operand axes), as the term stores it."""
        found = self._term()
        assert found is not None
        return dense.reshape(found[0].terms[0].stored_shape)


def _evaluate(
    site: Site,
    structures: dict[Edge, Structure],
    layouts: dict[Edge, _Layout],
    operands: Sequence[Any],
) -> dict[Edge, tuple[Any, ...]]:
    dense = _sweep(site, layouts, operands)
    return {edge: (layouts[edge].value(dense[edge]),) for edge in structures}


def _sweep(site: Site, layouts: dict[Edge, _Layout], operands: Sequence[Any]) -> dict[Edge, Any]:
    """All edges by the cheaper sweep, or by the other one where JAX refuses it."""
    sweeps = [_forward, _reverse]
    if not _prefers_forward(site.eqn, layouts):
        sweeps.reverse()
    try:
        return sweeps[0](site, layouts, operands)
    except (TypeError, ValueError, NotImplementedError):
        return sweeps[1](site, layouts, operands)


def _prefers_forward(eqn: JaxprEqn, layouts: dict[Edge, _Layout]) -> bool:
    if eqn.primitive.name == "while":
        return True
    tangents = {p: math.prod(v.in_shape[b] for b in v.free_in) for (_, p), v in layouts.items()}
    cotangents = {r: math.prod(v.out_shape[a] for a in v.free_out) for (r, _), v in layouts.items()}
    return sum(tangents.values()) <= sum(cotangents.values())


def _real_function(site: Site, operands: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The equation as a function of its wanted operands, real arrays to real arrays."""
    wanted = site.wanted_operands
    complexes = [is_complex(site.eqn.invars[p].aval) for p in wanted]
    results = _float_results(site)
    apply = as_function(site.eqn)

    def function(*inputs: Any) -> list[Any]:
        full = list(operands)
        for position, value, pair in zip(wanted, inputs, complexes, strict=True):
            full[position] = jax.lax.complex(value[..., 0], value[..., 1]) if pair else value
        outputs = apply(*full)
        return [as_real(outputs[k]) for k in results]

    return function, [as_real(jnp.asarray(operands[p])) for p in wanted]


def _units(shape: Sequence[int], free: Sequence[int], dtype: Any) -> Any:
    """One array per position along the free axes: one there, zero elsewhere, repeated along the rest."""
    lengths = [shape[a] for a in free]
    count = math.prod(lengths)
    eye = jnp.eye(count, dtype=dtype).reshape(count, *lengths)
    laid = jnp.expand_dims(eye, [1 + a for a in range(len(shape)) if a not in free])
    return jnp.broadcast_to(laid, (count, *shape))


def _at_each(function: Callable[[Any], Any], units: Any) -> Any:
    """The results at all units, one after the other where JAX has no batching rule."""
    try:
        return jax.vmap(function)(units)
    except NotImplementedError:
        return jax.lax.map(function, units)


def _forward(site: Site, layouts: dict[Edge, _Layout], operands: Sequence[Any]) -> dict[Edge, Any]:
    function, inputs = _real_function(site, operands)
    results = _float_results(site)
    dense: dict[Edge, Any] = {}
    for place, position in enumerate(site.wanted_operands):
        layout = layouts[results[0], position]

        def push(tangent: Any, place: int = place) -> list[Any]:
            def alone(x: Any) -> list[Any]:
                return function(*inputs[:place], x, *inputs[place + 1 :])

            return jax.jvp(alone, (inputs[place],), (tangent,))[1]

        units = _units(layout.in_shape, layout.free_in, inputs[place].dtype)
        columns = [jnp.moveaxis(column, 0, -1) for column in _at_each(push, units)]
        for result, column in zip(results, columns, strict=True):
            dense[result, position] = column
    return dense


def _reverse(site: Site, layouts: dict[Edge, _Layout], operands: Sequence[Any]) -> dict[Edge, Any]:
    function, inputs = _real_function(site, operands)
    outputs, pull = jax.vjp(function, *inputs)
    zeros = [jnp.zeros_like(output) for output in outputs]
    dense: dict[Edge, Any] = {}
    for place, result in enumerate(_float_results(site)):

        def pull_one(cotangent: Any, place: int = place) -> Any:
            return pull([*zeros[:place], cotangent, *zeros[place + 1 :]])

        # Operands may have different diagonals; those with the same ones share a sweep.
        sweeps: dict[tuple[int, ...], Any] = {}
        for index, position in enumerate(site.wanted_operands):
            layout = layouts[result, position]
            free = tuple(layout.free_out)
            if free not in sweeps:
                units = _units(layout.out_shape, free, outputs[place].dtype)
                sweeps[free] = _at_each(pull_one, units)
            dense[result, position] = _rows_to_dense(sweeps[free][index], layout)
    return dense


def _rows_to_dense(row: Any, layout: _Layout) -> Any:
    """From (free result axes flat, operand axes) to (result axes, free operand axes)."""
    lengths = [layout.out_shape[a] for a in layout.free_out]
    row = row.reshape(*lengths, *layout.in_shape)
    partner = dict(layout.pairs)
    places = [
        len(lengths) + partner[a] if a in partner else layout.free_out.index(a)
        for a in range(len(layout.out_shape))
    ]
    return row.transpose([*places, *(len(lengths) + b for b in layout.free_in)])
