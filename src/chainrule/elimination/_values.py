"""The numbers of a term, and how those of two terms are multiplied and added.

A value is an array, or a `Cut`: an array some of whose entries are on paths that a selection cuts.

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

How it is stored
    `Cut.entries` is 0 where an entry is Z, so that sums need nothing special. `Cut.kept` is the conjunction
    of some conditions. A condition is stored along the axes on which it depends only: the mask of a layer
    does not depend on what the layer's output is multiplied with. That keeps contractions cheap, see
    `_contracted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from chainrule.elimination._products import ProductPlan
from chainrule.elimination._reads import read, spread
from chainrule.elimination._structure import Term
from chainrule.elimination._sums import Merge


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cut:
    """Entries of which some are cut.

    Attributes:
        entries: the stored entries of a term; 0 where they are cut.
        kept: booleans of the same rank, with length 1 along axes on which they do not depend. An entry is
            cut where one of them is false.
    """

    entries: Any
    kept: tuple[Any, ...]

    def transpose(self, order: Sequence[int]) -> Cut:
        """The same with its axes in another order."""
        return Cut(self.entries.transpose(order), tuple(k.transpose(order) for k in self.kept))


Value = Any
"""An array, a `Cut`, or `None` for a term without a value."""


def where_nonzero(entries: Any) -> Cut:
    """The partial of a selection, from entries that are 0 exactly where something else is chosen."""
    return Cut(entries, (entries != 0,))


def entries_of(value: Value) -> Any:
    """The numbers, with zeros for what is cut."""
    return value.entries if isinstance(value, Cut) else value


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
        _read(value, axes, plan)
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


def _read(value: Value, axes: Sequence[Any], plan: ProductPlan) -> _Factor:
    """The entries that the iterations of a plan read."""
    entries = _Laid(*read(entries_of(value), axes, plan.sizes))
    conditions = []
    for condition in value.kept if isinstance(value, Cut) else ():
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
    return Cut(entries, tuple(k if k.ndim else k.reshape(ones) for k in kept))


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
    are_cut = [isinstance(values[k], Cut) for k in merge.sources]
    # Side by side, places that no source reaches are cut, too. Without a selection that does not pay.
    if not any(are_cut) or not (all(are_cut) or merge.spreads):
        return entries
    count = _total(
        _placed(merge, k, terms[k], kept_as_numbers(values[k], dtype)) for k in merge.sources
    )
    return Cut(entries, (count > 0,))


def _total(parts: Iterable[Any]) -> Any:
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total


def kept_as_numbers(value: Value, dtype: Any) -> Any:
    """1 where an entry is not cut, else 0; a scalar where nothing is."""
    if not isinstance(value, Cut):
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
