"""Blocks with numbers: products, sums and dense forms, carried out as planned on structures.

A `Block` is a structure and, per term, a value. Nothing here looks at numbers or decides anything: what to
slice, multiply, add or sum is in the plans (`_arithmetic`), which depend on structures only and are computed
once. In three parts: reading and writing arrays at the positions that axes describe (`read`, `spread`); the
values of terms (`multiplied`, `merged`); whole blocks (`multiply`, `add`, `dense`).

A value is an array, or a `PartlyCut`: an array some of whose entries are on paths that a selection cuts.

Why a cut is more than a zero
    The Jacobian is a sum over paths, ∂z/∂x = Σ_paths Π c_i, of products of local partials. On a path through
    a case that `where` does not choose, the other factors do not matter, infinities and NaNs included: the
    derivative of `where(x > 0, sqrt(x), 0)` at 0 is 0. The float 0 does not do that, 0·inf = NaN. So the
    partial of a case that is not chosen is another element, Z, with

        Z + a = a        Z · a = Z        for every float a.

    Floats with Z obey the same laws as floats without, so that the Jacobian does not depend on the order of
    elimination. JAX needs no Z: in forward (reverse) mode everything before (after) the selection has been
    multiplied when the tangent (cotangent) gets there, and `select` drops it. Elimination may take the
    factors of u·m·a·m'·v, with two selections m and m' that choose something else, as (u·m) · a · (m'·v).
    With a = inf that is 0·inf·0, although both modes of JAX give 0. An entry has to remember that it is Z.

    A zero that was computed is not Z: sqrt(x²) at 0 has the derivative 0·inf = NaN here as in JAX.

How a cut is stored
    `PartlyCut.entries` is 0 where an entry is Z, so that sums need nothing special. `PartlyCut.kept` is the
    conjunction of some conditions. A condition is stored only along the axes on which it depends: the mask of
    a layer does not depend on what the layer's output is multiplied with. That keeps contractions cheap, see
    `_contracted`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule.elimination._arithmetic import Merge, ProductPlan, plan_product, plan_sum
from chainrule.elimination._structure import (
    Axis,
    Structure,
    Table,
    Term,
    positions,
    structure_of,
    zero_structure,
)


def read(value: Any, axes: Sequence[Axis], sizes: Mapping[int, int]) -> tuple[Any, tuple[int, ...]]:
    """`value[axes(t)]` over the variables t that occur, and these variables in the result's order."""
    walked = [v for axis in axes for v in axis.variables]
    if len(walked) == len(set(walked)) and all(map(_is_sliceable, axes)):
        return _read_plain(value, axes, sizes)
    variables = tuple(dict.fromkeys(walked))
    indices = tuple(positions(axis, variables, sizes) for axis in axes)
    return value[indices], variables


def _is_sliceable(axis: Axis) -> bool:
    """Whether a slice and a reshape can read the axis."""
    return len(axis.weights) <= 1 or all(isinstance(w, int) and w > 0 for _, w in axis.weights)


def _read_plain(
    value: Any, axes: Sequence[Axis], sizes: Mapping[int, int]
) -> tuple[Any, tuple[int, ...]]:
    variables: list[int] = []
    shape: list[int] = []
    for position, axis in enumerate(axes):
        digits = sorted(axis.weights, key=lambda item: -item[1] if isinstance(item[1], int) else 0)
        variables += [v for v, _ in digits]
        shape += [sizes[v] for v, _ in digits]
        value = _read_axis(value, position, axis, sizes)
    return (value if value.shape == tuple(shape) else value.reshape(shape)), tuple(variables)


def _read_axis(value: Any, position: int, axis: Axis, sizes: Mapping[int, int]) -> Any:
    """One axis of the value at the positions of `axis`; a fixed position leaves an axis of length 1."""
    if len(axis.weights) == 1:
        variable, weight = axis.weights[0]
        count = sizes[variable]
        if isinstance(weight, Table):
            return jnp.take(value, axis.offset + weight.array, axis=position)
        if weight < 0:
            last = axis.offset + weight * (count - 1)
            kept = _slice(value, position, last, count, -weight)
            return lax.rev(kept, (position,))
        return _slice(value, position, axis.offset, count, weight)
    return _slice(value, position, axis.offset, math.prod(sizes[v] for v in axis.variables), 1)


def _slice(value: Any, position: int, start: int, count: int, stride: int) -> Any:
    if start == 0 and stride == 1 and count == value.shape[position]:
        return value
    return lax.slice_in_dim(value, start, start + stride * (count - 1) + 1, stride, position)


def spread(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
) -> Any:
    """An array of `shape` with `Σ_t value[t_stored] · [position = axes(t)]`."""
    homes = _homes(axes, sizes)
    if homes is None:
        return _scatter(value, stored, axes, sizes, shape)
    return _spread_masked(value, stored, axes, sizes, shape, homes)


def _homes(axes: Sequence[Axis], sizes: Mapping[int, int]) -> dict[int, int] | None:
    """For every variable an axis that it walks alone, forwards, without gaps; `None` if one has none."""
    homes: dict[int, int] = {}
    for position, axis in enumerate(axes):
        if axis.stride == 1 and axis.variables[0] not in homes:
            homes[axis.variables[0]] = position
    everything = {v for axis in axes for v in axis.variables}
    has_tables = any(isinstance(w, Table) for axis in axes for _, w in axis.weights)
    return homes if everything == set(homes) and not has_tables else None


def _spread_masked(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
    homes: Mapping[int, int],
) -> Any:
    """Lay the value along the homes, mask the axes that repeat a variable, pad to the full shape."""
    # Each variable is laid along one axis that it walks alone. Where it walks a second axis too (a diagonal),
    # the value is repeated along that axis and kept where the second position is what the first one says,
    # which is a comparison of two iotas: XLA fuses it, while a scatter would be a kernel of its own.
    rank = len(axes)
    home_of = {position: v for v, position in homes.items()}
    extents = [1] * rank
    for position, axis in enumerate(axes):
        if position in home_of:
            extents[position] = sizes[home_of[position]]
        elif axis.weights:
            extents[position] = shape[position]
    order = sorted(stored, key=homes.__getitem__)
    value = value.transpose([list(stored).index(v) for v in order])
    value = lax.broadcast_in_dim(value, extents, [homes[v] for v in order])
    for position, axis in enumerate(axes):
        if axis.weights and position not in home_of:
            value = jnp.where(_mask(position, axis, extents, homes), value, 0)
    padding = [
        (0, 0, 0) if axis.weights and position not in home_of
        else (axis.offset, shape[position] - extents[position] - axis.offset, 0)
        for position, axis in enumerate(axes)
    ]  # fmt: skip
    if all(pad == (0, 0, 0) for pad in padding):
        return value
    return lax.pad(value, jnp.zeros((), value.dtype), padding)


def _mask(position: int, axis: Axis, extents: Sequence[int], homes: Mapping[int, int]) -> Any:
    involved = sorted({position, *(homes[v] for v in axis.variables)})
    local = [extents[p] if p in involved else 1 for p in range(len(extents))]

    def index(p: int) -> Any:
        return lax.broadcasted_iota(np.int32, local, p)

    wanted = axis.offset
    for variable, weight in axis.weights:
        wanted = wanted + weight * index(homes[variable])
    return index(position) == wanted


def _scatter(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
) -> Any:
    variables = sorted({v for axis in axes for v in axis.variables})
    grid = [sizes[v] for v in variables]
    order = sorted(range(len(stored)), key=lambda k: stored[k])
    value = lax.broadcast_in_dim(
        value.transpose(order), grid, [variables.index(stored[k]) for k in order]
    )
    indices = tuple(np.broadcast_to(positions(a, variables, sizes), grid) for a in axes)
    return jnp.zeros(shape, value.dtype).at[indices].add(value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PartlyCut:
    """Entries of which some are cut.

    Attributes:
        entries: the stored entries of a term; 0 where they are cut.
        kept: booleans of the same rank, with length 1 along axes on which they do not depend. An entry is
            cut where one of them is false.
    """

    entries: Any
    kept: tuple[Any, ...]

    def transpose(self, order: Sequence[int]) -> PartlyCut:
        """The same with its axes in another order."""
        return PartlyCut(
            self.entries.transpose(order), tuple(k.transpose(order) for k in self.kept)
        )


Value = Any
"""An array, a `PartlyCut`, or `None` for a term without a value."""


def where_nonzero(entries: Any) -> PartlyCut:
    """The partial of a selection, from entries that are 0 exactly where something else is chosen."""
    return PartlyCut(entries, (entries != 0,))


def entries_of(value: Value) -> Any:
    """The numbers, with zeros for what is cut."""
    return value.entries if isinstance(value, PartlyCut) else value


def common_dtype(*dtypes: Any) -> Any:
    """The dtype that holds all of them, also where the user forbids implicit promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*dtypes)


def scaled(value: Any, coefficient: float, dtype: Any) -> Any:
    """`coefficient · value` in the given dtype, without a multiplication by 1."""
    if value is None:
        return jnp.full((), coefficient, dtype)
    value = lax.convert_element_type(value, dtype)
    if coefficient == 1:
        return value
    return -value if coefficient == -1 else value * coefficient


@dataclass(frozen=True)
class _Laid:
    """An array with one loop variable per axis."""

    array: Any
    variables: tuple[int, ...]


@dataclass(frozen=True)
class _Factor:
    """One side of a product: its entries, and the conditions under which they are not cut."""

    entries: _Laid
    conditions: tuple[_Laid, ...] = ()


def multiplied(plan: ProductPlan, left: Value, right: Value) -> Value:
    """The value of a product, from those of its factors."""
    sides = [
        _read_factor(value, axes, plan)
        for value, axes in ((left, plan.left), (right, plan.right))
        if value is not None
    ]
    if not sides:
        return None
    if len(sides) == 1:
        return _arranged(_summed(sides[0], {*plan.out}), plan.out)
    first, second = _with_common_dtype(*sides)
    # What only one side knows and the result does not want can be summed before multiplying.
    first = _summed(first, {*second.entries.variables, *plan.out})
    second = _summed(second, {*first.entries.variables, *plan.out})
    shared = set(first.entries.variables) & set(second.entries.variables)
    if shared <= set(plan.out):
        return _arranged(_outer(first, second, plan.out), plan.out)
    return _arranged(_contracted(first, second, plan.out), plan.out)


def _read_factor(value: Value, axes: Sequence[Any], plan: ProductPlan) -> _Factor:
    """The entries that the iterations of a plan read."""
    entries = _Laid(*read(entries_of(value), axes, plan.sizes))
    conditions = []
    for condition in value.kept if isinstance(value, PartlyCut) else ():
        # Stored axes have at least two places, so length 1 means that the condition does not depend.
        varying = [d for d, length in enumerate(condition.shape) if length > 1]
        condition = condition.reshape([condition.shape[d] for d in varying])
        conditions.append(_Laid(*read(condition, [axes[d] for d in varying], plan.sizes)))
    return _Factor(entries, tuple(conditions))


def _with_common_dtype(*sides: _Factor) -> tuple[_Factor, ...]:
    dtype = common_dtype(*(side.entries.array.dtype for side in sides))
    return tuple(
        _Factor(
            _Laid(lax.convert_element_type(side.entries.array, dtype), side.entries.variables),
            side.conditions,
        )
        for side in sides
    )


def _summed(side: _Factor, wanted: set[int]) -> _Factor:
    """The sum over the variables that are not wanted; a sum is cut where all its summands are."""
    dropped = [v for v in side.entries.variables if v not in wanted]
    if not dropped:
        return side
    entries = _reduced(side.entries, dropped, jnp.sum)
    return _Factor(entries, _some(side.conditions, dropped))


def _some(conditions: Sequence[_Laid], dropped: Sequence[int]) -> tuple[_Laid, ...]:
    """The conditions under which all of the given ones hold for some value of the dropped variables.

    ∃k: a(i) ∧ b(k) ∧ c(i, k)  =  a(i) ∧ ∃k: b(k) ∧ c(i, k)
    """
    depending = [c for c in conditions if not set(dropped).isdisjoint(c.variables)]
    if not depending:
        return tuple(conditions)
    others = [c for c in conditions if set(dropped).isdisjoint(c.variables)]
    return (*others, _reduced(_all_of(depending), dropped, jnp.any))


def _reduced(laid: _Laid, dropped: Sequence[int], reduce: Any) -> _Laid:
    axes = tuple(k for k, v in enumerate(laid.variables) if v in dropped)
    kept = tuple(v for v in laid.variables if v not in dropped)
    return _Laid(reduce(laid.array, axis=axes), kept) if axes else laid


def _all_of(conditions: Sequence[_Laid]) -> _Laid:
    """The conjunction, over all the variables that occur."""
    variables = tuple(dict.fromkeys(v for c in conditions for v in c.variables))
    arrays = [_aligned(c, variables) for c in conditions]
    total = arrays[0]
    for array in arrays[1:]:
        total = total & array
    return _Laid(total, variables)


def _aligned(laid: _Laid, variables: Sequence[int]) -> Any:
    """The array with its axes in the given order, and length 1 along variables that it does not have."""
    if not laid.variables:
        return laid.array
    order = [laid.variables.index(v) for v in variables if v in laid.variables]
    array = laid.array if order == sorted(order) else laid.array.transpose(order)
    present = iter(array.shape)
    shape = tuple(next(present) if v in laid.variables else 1 for v in variables)
    return array if array.shape == shape else array.reshape(shape)


def _arranged(side: _Factor, variables: Sequence[int]) -> Value:
    """A factor as the value of a term whose axes are the given variables."""
    entries = _aligned(side.entries, variables)
    if not side.conditions:
        return entries
    alike: dict[frozenset[int], list[_Laid]] = {}
    for condition in side.conditions:
        alike.setdefault(frozenset(condition.variables), []).append(condition)
    kept = (_aligned(_all_of(group), variables) for group in alike.values())
    ones = (1,) * len(variables)
    return PartlyCut(entries, tuple(k if k.ndim else k.reshape(ones) for k in kept))


def _outer(left: _Factor, right: _Factor, variables: Sequence[int]) -> _Factor:
    """The product entry by entry."""
    product = _aligned(left.entries, variables) * _aligned(right.entries, variables)
    conditions = (*left.conditions, *right.conditions)
    return _cleared(_Factor(_Laid(product, tuple(variables)), conditions), conditions)


def _cleared(side: _Factor, conditions: Iterable[_Laid]) -> _Factor:
    """The factor with zeros where one of the conditions, on variables that it has, does not hold."""
    entries = side.entries
    conditions = list(conditions)
    if not conditions:
        return side
    kept = _aligned(_all_of(conditions), entries.variables)
    array = jnp.where(kept, entries.array, jnp.zeros((), entries.array.dtype))
    return _Factor(_Laid(array, entries.variables), side.conditions)


def _contracted(left: _Factor, right: _Factor, wanted: Sequence[int]) -> _Factor:
    """Σ_k L[i, k] · R[k, j] over the pairs of which neither side is cut.

    The conditions of both sides fall into three groups.
    1. Those that do not depend on k: they cut the sum as a whole.
    2. Those that depend only on variables that both sides have, k among them: they cut on both sides, so
       that 0·0 stands where 0·inf might. Masks between layers are of this kind.
    3. All others, as a condition of the left side on i and k: see `_dot_of_pairs`.
    """
    shared = [v for v in left.entries.variables if v in right.entries.variables]
    summed = [v for v in shared if v not in wanted]
    conditions = (*left.conditions, *right.conditions)
    inside = [c for c in conditions if not set(summed).isdisjoint(c.variables)]
    whole = [c for c in conditions if set(summed).isdisjoint(c.variables)]
    if all(set(c.variables) <= set(shared) for c in inside):
        left, right = _cleared(left, inside), _cleared(right, inside)
        product = _dot(left.entries, right.entries, wanted)
        remaining = _some(conditions, summed)
    else:
        product, some = _dot_of_pairs(left, right, summed, wanted)
        remaining = (*whole, some)
    return _cleared(_Factor(product, remaining), whole)


def _dot_of_pairs(
    left: _Factor, right: _Factor, summed: Sequence[int], wanted: Sequence[int]
) -> tuple[_Laid, _Laid]:
    """The sum over pairs that are not cut, and where there is such a pair; without forming all pairs.

    Finite numbers and zeros, which stand for what is cut, can be summed by a dot product. A pair with an
    infinity or a NaN counts only if the other entry is not cut. Where such a pair exists, and only there,
    the sum is not finite, and the plain dot product says which of the two it is (NaN where it also meets a
    cut entry, although inf would do).
    """
    kept_left, kept_right = (_kept_inside(side, summed) for side in (left, right))
    plain = _dot(left.entries, right.entries, wanted)
    finite = _dot(_where_finite(left.entries), _where_finite(right.entries), wanted)
    unbounded = (
        _dot(_where_not_finite(left.entries), kept_right, wanted).array
        + _dot(kept_left, _where_not_finite(right.entries), wanted).array
    )
    product = jnp.where(unbounded > 0, plain.array, finite.array)
    some = _dot(kept_left, kept_right, wanted)
    return _Laid(product, plain.variables), _Laid(some.array > 0, some.variables)


def _kept_inside(side: _Factor, summed: Sequence[int]) -> _Laid:
    """1 where an entry is not cut by a condition on the summed variables, else 0."""
    array = side.entries.array
    ones = _Laid(jnp.ones(array.shape, jnp.finfo(array.dtype).dtype), side.entries.variables)
    inside = [c for c in side.conditions if not set(summed).isdisjoint(c.variables)]
    return _cleared(_Factor(ones), inside).entries


def _where_finite(laid: _Laid) -> _Laid:
    # Comparisons instead of `isfinite`, which native kernels do not have.
    array = laid.array
    zero = jnp.zeros((), array.dtype)
    return _Laid(jnp.where(jnp.abs(array) < jnp.inf, array, zero), laid.variables)


def _where_not_finite(laid: _Laid) -> _Laid:
    is_finite = jnp.abs(laid.array) < jnp.inf
    return _Laid((~is_finite).astype(jnp.finfo(laid.array.dtype).dtype), laid.variables)


def _dot(left: _Laid, right: _Laid, wanted: Sequence[int]) -> _Laid:
    """The product summed over the variables that both sides have and the result does not want."""
    shared = [v for v in left.variables if v in right.variables]
    batch = [v for v in shared if v in wanted]
    summed = [v for v in shared if v not in wanted]

    def places(laid: _Laid, variables: Sequence[int]) -> tuple[int, ...]:
        return tuple(laid.variables.index(v) for v in variables)

    dimensions = (
        (places(left, summed), places(right, summed)),
        (places(left, batch), places(right, batch)),
    )
    result = lax.dot_general(left.array, right.array, dimensions)
    variables = (
        *batch,
        *(v for v in left.variables if v not in shared),
        *(v for v in right.variables if v not in shared),
    )
    return _Laid(result, variables)


def merged(merge: Merge, terms: Sequence[Term], values: Sequence[Value]) -> Value:
    """The value of one term of a sum."""
    if len(merge.sources) == 1 and not merge.spreads:
        return values[merge.sources[0]]
    if not merge.result.valued:
        return None
    numbers = {k: entries_of(values[k]) for k in merge.sources}
    present = [array.dtype for array in numbers.values() if array is not None]
    dtype = common_dtype(*present) if present else jnp.result_type(float)
    entries = _total(
        _placed(merge, k, terms[k], scaled(numbers[k], terms[k].coefficient, dtype))
        for k in merge.sources
    )
    are_cut = [isinstance(values[k], PartlyCut) for k in merge.sources]
    # Side by side, places that no source reaches are cut, too. Without a selection that does not pay.
    if not any(are_cut) or not (all(are_cut) or merge.spreads):
        return entries
    count = _total(
        _placed(merge, k, terms[k], kept_as_numbers(values[k], dtype)) for k in merge.sources
    )
    return PartlyCut(entries, (count > 0,))


def _total(parts: Iterable[Any]) -> Any:
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total


def kept_as_numbers(value: Value, dtype: Any) -> Any:
    """1 where an entry is not cut, else 0; a scalar where nothing is."""
    if not isinstance(value, PartlyCut):
        return jnp.ones(() if value is None else value.shape, dtype)
    ones = jnp.ones(value.entries.shape, dtype)
    for condition in value.kept:
        ones = jnp.where(condition, ones, jnp.zeros((), dtype))
    return ones


def _placed(merge: Merge, source: int, term: Term, entries: Any) -> Any:
    """A summand where it belongs in the sum's value."""
    if merge.spreads:
        sizes = dict(enumerate(term.sizes))
        return spread(entries, term.stored, merge.spreads[source], sizes, merge.result.stored_shape)
    shape = tuple(term.sizes[v] if v in term.stored else 1 for v in merge.result.stored)
    return entries if entries.shape == shape else entries.reshape(shape)


@dataclass(frozen=True)
class Block:
    """A Jacobian block.

    Attributes:
        structure: where the entries are.
        values: per term, the stored entries.
    """

    structure: Structure
    values: tuple[Value, ...]


def multiply(left: Block, right: Block) -> Block:
    """The block of the composition, left ∘ right.

    (Σ_a L_a)(Σ_b R_b) = Σ_a Σ_b L_a R_b: terms of the left vary slowest, as in `product_structure`, so that a
    block with values and its structure have their terms in the same order.
    """
    terms: list[Term] = []
    values: list[Any] = []
    for left_term, left_value in zip(left.structure.terms, left.values, strict=True):
        for right_term, right_value in zip(right.structure.terms, right.values, strict=True):
            plan = plan_product(left_term, right_term)
            if plan is not None:
                terms.append(plan.result)
                values.append(multiplied(plan, left_value, right_value))
    return _collect(left.structure, right.structure, terms, values)


def _collect(left: Structure, right: Structure, terms: list[Term], values: list[Any]) -> Block:
    if not terms:
        return Block(zero_structure(left.out_shape, right.in_shape), ())
    return _merge(tuple(terms), values, index_map=left.index_map and right.index_map)


def add(first: Block, second: Block) -> Block:
    """The sum of two blocks of the same shape."""
    if not first.structure.terms:
        return second
    if not second.structure.terms:
        return first
    terms = (*first.structure.terms, *second.structure.terms)
    return _merge(terms, [*first.values, *second.values], index_map=False)


def _merge(terms: tuple[Term, ...], values: Sequence[Any], *, index_map: bool) -> Block:
    structure = _merge_structure(terms, index_map=index_map)
    return Block(structure, tuple(merged(merge, terms, values) for merge in plan_sum(terms)))


def product_structure(left: Structure, right: Structure) -> Structure:
    """The structure that `multiply` gives, without any values."""
    plans = [plan_product(a, b) for a in left.terms for b in right.terms]
    terms = tuple(plan.result for plan in plans if plan is not None)
    if not terms:
        return zero_structure(left.out_shape, right.in_shape)
    return _merge_structure(terms, index_map=left.index_map and right.index_map)


def sum_structure(first: Structure, second: Structure) -> Structure:
    """The structure that `add` gives, without any values."""
    if not first.terms or not second.terms:
        return first if first.terms else second
    return _merge_structure((*first.terms, *second.terms), index_map=False)


def _merge_structure(terms: tuple[Term, ...], *, index_map: bool) -> Structure:
    merges = plan_sum(terms)
    if not merges:
        return zero_structure(terms[0].out_shape, terms[0].in_shape)
    return structure_of([merge.result for merge in merges], index_map=index_map)


def dense(block: Block, dtype: Any) -> Any:
    """The block as one array of shape `out_shape + in_shape`."""
    structure = block.structure
    shape = (*structure.out_shape, *structure.in_shape)
    if len(structure.terms) > 1 and _SPARSE * structure.entries <= math.prod(shape):
        return _scattered(block, dtype).reshape(shape)
    total = None
    for term, value in zip(structure.terms, block.values, strict=True):
        sizes = dict(enumerate(term.sizes))
        entries = scaled(entries_of(value), term.coefficient, dtype)
        part = spread(entries, term.stored, (*term.out_axes, *term.in_axes), sizes, shape)
        total = part if total is None else total + part
    return jnp.zeros(shape, dtype) if total is None else total


def reached(block: Block, dtype: Any) -> Block:
    """How many terms have an entry at a place that is not cut: a block of counts."""
    counts = tuple(kept_as_numbers(value, dtype) for value in block.values)
    terms = [term.with_coefficient(1.0) for term in block.structure.terms]
    return Block(structure_of(terms), counts)


_SPARSE = 8
"""Blocks with less than one entry in this many are filled entry by entry, not term by term."""


def _scattered(block: Block, dtype: Any) -> Any:
    """The dense block, flat: zeros written once, then the entries of all terms."""
    structure = block.structure
    columns = math.prod(structure.in_shape)
    places, entries = [], []
    for term, value in zip(structure.terms, block.values, strict=True):
        row, column = term.flat_positions()
        places.append((row * columns + column).ravel())
        # Terms may overlap, so entries are added. A stored value has no axis for replicated variables: length
        # 1 there is broadcast.
        factor = scaled(entries_of(value), term.coefficient, dtype)
        shape = [n if v in term.stored else 1 for v, n in enumerate(term.sizes)]
        entries.append(jnp.broadcast_to(jnp.reshape(factor, shape), term.sizes).ravel())
    flat = jnp.zeros(math.prod(structure.out_shape) * columns, dtype)
    return flat.at[np.concatenate(places)].add(jnp.concatenate(entries))
