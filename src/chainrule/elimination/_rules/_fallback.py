"""The conservative road: the partials of any equation from `jax.jvp` or `jax.vjp` on that one equation.

Axes that the primitive treats independently of each other (`_READERS`) stay diagonal: one direction
serves all positions along them at once. Over the remaining axes the Jacobian is dense, built from unit
tangents or unit cotangents, whichever are fewer. Complex values are seen as pairs of real numbers, so that
functions that are not complex-differentiable (`conj`, `abs`, `real`) have their real derivative.

An axis is independent if position k of the result depends on position k of the operands only. A primitive
that is not listed in `_READERS` is treated as if every result entry depended on every operand entry, which
is right and slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import JaxprEqn, as_function
from chainrule.elimination._rules._elementwise import ELEMENTWISE_RULES
from chainrule.elimination._rules._equation import (
    Edge,
    Equation,
    LocalJacobian,
    as_real,
    is_complex,
    real_shape,
    selecting,
    term_structure,
)
from chainrule.elimination._rules._linear import why_no_matrix
from chainrule.elimination._structure import Axis, Structure


def fallback(equation: Equation) -> LocalJacobian:
    """Dense partials, diagonal along the axes that the primitive maps over."""
    edges = {
        (r, p): _EdgeAxes.of(equation, r, p)
        for p in equation.wanted_operands
        for r in _float_results(equation)
    }
    structures = {}
    for edge, axes in edges.items():
        found = axes.structure()
        if found is not None:
            structures[edge] = found

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        return _evaluate(equation, structures, edges, operands)

    local = LocalJacobian(
        structures, evaluate, why_no_matrix(equation.eqn, equation.wanted_operands)
    )
    return selecting(local) if equation.eqn.primitive.name in _MOVING else local


# They move entries to places that are known only when the program runs; all other partials are cut.
_MOVING = frozenset(
    {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "sort",
     "top_k", "cummax", "cummin", "reduce_window_max", "reduce_window_min", "select_and_gather_add"}
)  # fmt: skip


def _float_results(equation: Equation) -> list[int]:
    count = len(equation.eqn.outvars)
    return [k for k in range(count) if jnp.issubdtype(equation.result(k).dtype, jnp.inexact)]


@dataclass(frozen=True)
class _EdgeAxes:
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
    def of(cls, equation: Equation, result: int, operand: int) -> _EdgeAxes:
        pairs = []
        for axes in batch_axes(equation.eqn):
            a, b = axes.results[result], axes.operands[operand]
            if a is not None and b is not None:
                pairs.append((a, b))
        avals = equation.eqn.outvars[result].aval, equation.eqn.invars[operand].aval
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
    equation: Equation,
    structures: dict[Edge, Structure],
    edges: dict[Edge, _EdgeAxes],
    operands: Sequence[Any],
) -> dict[Edge, tuple[Any, ...]]:
    dense = _sweep(equation, edges, operands)
    return {edge: (edges[edge].value(dense[edge]),) for edge in structures}


def _sweep(
    equation: Equation, edges: dict[Edge, _EdgeAxes], operands: Sequence[Any]
) -> dict[Edge, Any]:
    """All edges by the cheaper sweep, or by the other one where JAX refuses it."""
    sweeps = [_forward, _reverse]
    if not _prefers_forward(equation.eqn, edges):
        sweeps.reverse()
    try:
        return sweeps[0](equation, edges, operands)
    except (TypeError, ValueError, NotImplementedError):
        return sweeps[1](equation, edges, operands)


def _prefers_forward(eqn: JaxprEqn, edges: dict[Edge, _EdgeAxes]) -> bool:
    if eqn.primitive.name == "while":
        return True
    # One direction per entry along the free axes of the operands, or of the results: fewer are cheaper. A
    # `while` loop cannot be pulled back through.
    tangents = {p: math.prod(v.in_shape[b] for b in v.free_in) for (_, p), v in edges.items()}
    cotangents = {r: math.prod(v.out_shape[a] for a in v.free_out) for (r, _), v in edges.items()}
    return sum(tangents.values()) <= sum(cotangents.values())


def _real_function(
    equation: Equation, operands: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """The equation as a function of its wanted operands, real arrays to real arrays."""
    wanted = equation.wanted_operands
    complexes = [is_complex(equation.eqn.invars[p].aval) for p in wanted]
    results = _float_results(equation)
    apply = as_function(equation.eqn)

    def function(*inputs: Any) -> list[Any]:
        full = list(operands)
        for position, value, pair in zip(wanted, inputs, complexes, strict=True):
            # Directions are pairs of real numbers, and so are results: both modes then compute the real
            # Jacobian, and JAX's convention for complex cotangents does not matter.
            full[position] = jax.lax.complex(value[..., 0], value[..., 1]) if pair else value
        outputs = apply(*full)
        return [as_real(outputs[k]) for k in results]

    return function, [as_real(jnp.asarray(operands[p])) for p in wanted]


def _units(shape: Sequence[int], free: Sequence[int], dtype: Any) -> Any:
    """One array per position along the free axes: one there, zero elsewhere, repeated along the rest."""
    # Along an axis that is mapped over, J[(k, a), (k', b)] = [k = k'] J_k[a, b]. The direction that is e_b at
    # every k gives Σ_k' J[(k, a), (k', b)] = J_k[a, b] at (k, a): one direction for all k at once.
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


def _forward(
    equation: Equation, edges: dict[Edge, _EdgeAxes], operands: Sequence[Any]
) -> dict[Edge, Any]:
    function, inputs = _real_function(equation, operands)
    results = _float_results(equation)
    dense: dict[Edge, Any] = {}
    for place, position in enumerate(equation.wanted_operands):
        axes = edges[results[0], position]

        def push(tangent: Any, place: int = place) -> list[Any]:
            def alone(x: Any) -> list[Any]:
                return function(*inputs[:place], x, *inputs[place + 1 :])

            return jax.jvp(alone, (inputs[place],), (tangent,))[1]

        units = _units(axes.in_shape, axes.free_in, inputs[place].dtype)
        columns = [jnp.moveaxis(column, 0, -1) for column in _at_each(push, units)]
        for result, column in zip(results, columns, strict=True):
            dense[result, position] = column
    return dense


def _reverse(
    equation: Equation, edges: dict[Edge, _EdgeAxes], operands: Sequence[Any]
) -> dict[Edge, Any]:
    function, inputs = _real_function(equation, operands)
    outputs, pull = jax.vjp(function, *inputs)
    zeros = [jnp.zeros_like(output) for output in outputs]
    dense: dict[Edge, Any] = {}
    for place, result in enumerate(_float_results(equation)):

        def pull_one(cotangent: Any, place: int = place) -> Any:
            return pull([*zeros[:place], cotangent, *zeros[place + 1 :]])

        # Operands may have different diagonals; those with the same ones share a sweep.
        sweeps: dict[tuple[int, ...], Any] = {}
        for index, position in enumerate(equation.wanted_operands):
            axes = edges[result, position]
            free = tuple(axes.free_out)
            if free not in sweeps:
                units = _units(axes.out_shape, free, outputs[place].dtype)
                sweeps[free] = _at_each(pull_one, units)
            dense[result, position] = _rows_to_dense(sweeps[free][index], axes)
    return dense


def _rows_to_dense(row: Any, axes: _EdgeAxes) -> Any:
    """From (free result axes flat, operand axes) to (result axes, free operand axes)."""
    # Row a of J_k, for all k at once, comes as (a, operand axes with k among them). A term stores the
    # result's axes in their order, then the free axes of the operand: k moves from the operand's place to the
    # result's.
    lengths = [axes.out_shape[a] for a in axes.free_out]
    row = row.reshape(*lengths, *axes.in_shape)
    partner = dict(axes.pairs)
    places = [
        len(lengths) + partner[a] if a in partner else axes.free_out.index(a)
        for a in range(len(axes.out_shape))
    ]
    return row.transpose([*places, *(len(lengths) + b for b in axes.free_in)])


# --- axes that a primitive maps over ------------------------------------------------------------


@dataclass(frozen=True)
class BatchAxes:
    """One axis that is mapped over: its place in every operand and result, `None` where it is absent."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


def batch_axes(eqn: JaxprEqn) -> list[BatchAxes]:
    """The mapped axes of an equation."""
    reader = _READERS.get(eqn.primitive.name)
    return [] if reader is None else reader(eqn)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _same_places(eqn: JaxprEqn, axes: list[int]) -> list[BatchAxes]:
    """The same axis everywhere, for operands and results of one common rank."""
    return [BatchAxes((axis,) * len(eqn.invars), (axis,) * len(eqn.outvars)) for axis in axes]


def _all_but(parameter: str) -> Callable[[JaxprEqn], list[BatchAxes]]:
    """Primitives that work along the axis or axes in a parameter, on operands of equal shape."""

    def read(eqn: JaxprEqn) -> list[BatchAxes]:
        worked = eqn.params[parameter]
        rank = len(_shape(eqn.invars[0]))
        worked = {d % rank for d in (worked if isinstance(worked, (tuple, list)) else (worked,))}
        return _same_places(eqn, [d for d in range(rank) if d not in worked])

    return read


def _leading(core_rank: int) -> Callable[[JaxprEqn], list[BatchAxes]]:
    """Linear algebra: leading axes are a batch, the last `core_rank` axes of the operand are worked on."""

    def read(eqn: JaxprEqn) -> list[BatchAxes]:
        n_batch = len(_shape(eqn.invars[0])) - core_rank
        return _same_places(eqn, list(range(n_batch)))

    return read


def _everywhere(eqn: JaxprEqn) -> list[BatchAxes]:
    """Elementwise primitives reach the conservative road with complex values."""
    out = _shape(eqn.outvars[0])
    found = []
    for axis, length in enumerate(out):
        places = []
        for atom in eqn.invars:
            own = axis - (len(out) - len(_shape(atom)))
            matches = own >= 0 and _shape(atom)[own] == length
            places.append(own if matches else None)
        found.append(BatchAxes(tuple(places), (axis,)))
    return found


def _reduction(eqn: JaxprEqn) -> list[BatchAxes]:
    rank = len(_shape(eqn.invars[0]))
    kept = [d for d in range(rank) if d not in eqn.params["axes"]]
    return [BatchAxes((d,), (k,)) for k, d in enumerate(kept)]


def _fft(eqn: JaxprEqn) -> list[BatchAxes]:
    return _same_places(
        eqn, list(range(len(_shape(eqn.invars[0])) - len(eqn.params["fft_lengths"])))
    )


def _convolution(eqn: JaxprEqn) -> list[BatchAxes]:
    numbers = eqn.params["dimension_numbers"]
    if eqn.params.get("batch_group_count", 1) != 1:
        return []
    return [BatchAxes((numbers.lhs_spec[0], None), (numbers.out_spec[0],))]


def _dynamic_slice(eqn: JaxprEqn) -> list[BatchAxes]:
    """Axes that are taken whole do not move: their start can only be 0."""
    operand, taken = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
    indices = (None,) * (len(eqn.invars) - 1)
    return [BatchAxes((d, *indices), (d,)) for d in range(len(operand)) if operand[d] == taken[d]]


def _dynamic_update_slice(eqn: JaxprEqn) -> list[BatchAxes]:
    operand, update = _shape(eqn.invars[0]), _shape(eqn.invars[1])
    indices = (None,) * (len(eqn.invars) - 2)
    return [
        BatchAxes((d, d, *indices), (d,)) for d in range(len(operand)) if operand[d] == update[d]
    ]


def _gather(eqn: JaxprEqn) -> list[BatchAxes]:
    """Window axes that are taken whole, and that no index moves."""
    numbers = eqn.params["dimension_numbers"]
    operand = _shape(eqn.invars[0])
    absent = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand)) if d not in absent]
    return [
        BatchAxes((d, None), (place,))
        for d, place in zip(window, numbers.offset_dims, strict=True)
        if eqn.params["slice_sizes"][d] == operand[d] and d not in numbers.start_index_map
    ]


def _scatter(eqn: JaxprEqn) -> list[BatchAxes]:
    numbers = eqn.params["dimension_numbers"]
    operand, update = _shape(eqn.invars[0]), _shape(eqn.invars[2])
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand)) if d not in absent]
    return [
        BatchAxes((d, None, place), (d,))
        for d, place in zip(window, numbers.update_window_dims, strict=True)
        if update[place] == operand[d] and d not in numbers.scatter_dims_to_operand_dims
    ]


_ELEMENTWISE_WITHOUT_RULE = ("real", "imag", "conj", "complex", "log2")

_READERS: dict[str, Callable[[JaxprEqn], list[BatchAxes]]] = {
    **dict.fromkeys((*ELEMENTWISE_RULES, *_ELEMENTWISE_WITHOUT_RULE), _everywhere),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _all_but("axis")),
    "sort": _all_but("dimension"),
    **dict.fromkeys(("reduce_prod", "reduce_sum", "reduce_max", "reduce_min"), _reduction),
    **dict.fromkeys(("cholesky", "triangular_solve", "eigh", "lu", "qr", "svd", "schur"), _leading(2)),
    "fft": _fft,
    "conv_general_dilated": _convolution,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul",
                     "scatter-min", "scatter_min", "scatter-max", "scatter_max", "scatter-sub",
                     "scatter_sub"), _scatter),
}  # fmt: skip
