"""Blocks with numbers: products, sums and dense forms, carried out as planned on structures.

A `Block` is a structure and, per term, a value array (or `None` where the structure says that there is
none). The functions here never look at numbers and never decide anything: what to slice, multiply, add or
sum is in the plans, which depend on structures only and are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule.elimination._products import ProductPlan, plan_product
from chainrule.elimination._reads import read, spread
from chainrule.elimination._structure import Structure, Term, structure_of, zero_structure
from chainrule.elimination._sums import Merge, plan_sum

__all__ = ["Block", "add", "dense", "multiply", "product_structure", "scaled", "sum_structure"]


@dataclass(frozen=True)
class Block:
    """A Jacobian block.

    Attributes:
        structure: where the entries are.
        values: per term, the stored entries, or `None` for a term without a value.
    """

    structure: Structure
    values: tuple[Any, ...]


def multiply(left: Block, right: Block) -> Block:
    """The block of the composition, left ∘ right."""
    terms: list[Term] = []
    values: list[Any] = []
    for left_term, left_value in zip(left.structure.terms, left.values, strict=True):
        for right_term, right_value in zip(right.structure.terms, right.values, strict=True):
            plan = plan_product(left_term, right_term)
            if plan is not None:
                terms.append(plan.result)
                values.append(_product_value(plan, left_value, right_value))
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
    merges = plan_sum(terms)
    if not merges:
        return Block(zero_structure(terms[0].out_shape, terms[0].in_shape), ())
    structure = structure_of([merge.result for merge in merges], index_map=index_map)
    return Block(structure, tuple(_merged_value(merge, terms, values) for merge in merges))


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
        entries = scaled(value, term.coefficient, dtype)
        part = spread(entries, term.stored, (*term.out_axes, *term.in_axes), sizes, shape)
        total = part if total is None else total + part
    return jnp.zeros(shape, dtype) if total is None else total


_SPARSE = 8
"""Blocks with less than one entry in so many are filled entry by entry, not term by term."""


def _scattered(block: Block, dtype: Any) -> Any:
    """The dense block, flat: zeros written once, then the entries of all terms."""
    structure = block.structure
    columns = math.prod(structure.in_shape)
    places, entries = [], []
    for term, value in zip(structure.terms, block.values, strict=True):
        row, column = term.flat_positions()
        places.append((row * columns + column).ravel())
        factor = scaled(value, term.coefficient, dtype)
        shape = [n if v in term.stored else 1 for v, n in enumerate(term.sizes)]
        entries.append(jnp.broadcast_to(jnp.reshape(factor, shape), term.sizes).ravel())
    flat = jnp.zeros(math.prod(structure.out_shape) * columns, dtype)
    return flat.at[np.concatenate(places)].add(jnp.concatenate(entries))


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


def _product_value(plan: ProductPlan, left: Any, right: Any) -> Any:
    sides = [
        read(value, axes, plan.sizes)
        for value, axes in ((left, plan.left), (right, plan.right))
        if value is not None
    ]
    if not sides:
        return None
    if len(sides) == 1:
        return _arranged(*sides[0], plan.out)
    (left, left_variables), (right, right_variables) = sides
    dtype = common_dtype(left.dtype, right.dtype)
    left, right = (lax.convert_element_type(side, dtype) for side in (left, right))
    # What only one side knows and the result does not want can be summed before multiplying.
    left, left_variables = _summed(left, left_variables, {*right_variables, *plan.out})
    right, right_variables = _summed(right, right_variables, {*left_variables, *plan.out})
    if set(left_variables) & set(right_variables) <= set(plan.out):
        return _outer(left, left_variables, right, right_variables, plan)
    return _contracted(left, left_variables, right, right_variables, plan)


def _summed(value: Any, variables: Sequence[int], kept: set[int]) -> tuple[Any, tuple[int, ...]]:
    dropped = [k for k, v in enumerate(variables) if v not in kept]
    if dropped:
        value = value.sum(axis=tuple(dropped))
    return value, tuple(v for v in variables if v in kept)


def _arranged(value: Any, variables: Sequence[int], wanted: Sequence[int]) -> Any:
    value, variables = _summed(value, variables, set(wanted))
    order = [variables.index(v) for v in wanted]
    return value if order == sorted(order) else value.transpose(order)


def _outer(
    left: Any, left_vars: Sequence[int], right: Any, right_vars: Sequence[int], plan: ProductPlan
) -> Any:
    return _aligned(left, left_vars, plan) * _aligned(right, right_vars, plan)


def _aligned(value: Any, variables: Sequence[int], plan: ProductPlan) -> Any:
    """The value with its axes in the result's order and length 1 where it has none."""
    if not variables:
        return value
    value = _arranged(value, variables, [v for v in plan.out if v in variables])
    shape = [plan.sizes[v] if v in variables else 1 for v in plan.out]
    return value if value.shape == tuple(shape) else value.reshape(shape)


def _contracted(
    left: Any, left_vars: Sequence[int], right: Any, right_vars: Sequence[int], plan: ProductPlan
) -> Any:
    shared = [v for v in left_vars if v in right_vars]
    batch = [v for v in shared if v in plan.out]
    summed = [v for v in shared if v not in plan.out]

    def places(variables: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
        return tuple(variables.index(v) for v in wanted)

    dimensions = (
        (places(left_vars, summed), places(right_vars, summed)),
        (places(left_vars, batch), places(right_vars, batch)),
    )
    result = lax.dot_general(left, right, dimensions)
    order = (
        batch
        + [v for v in left_vars if v not in shared]
        + [v for v in right_vars if v not in shared]
    )
    return _arranged(result, order, plan.out)


def _merged_value(merge: Merge, terms: Sequence[Term], values: Sequence[Any]) -> Any:
    """The value of one term of a sum."""
    result = merge.result
    if len(merge.sources) == 1 and not merge.spreads:
        return values[merge.sources[0]]
    if not result.valued:
        return None
    present = [values[k].dtype for k in merge.sources if values[k] is not None]
    dtype = common_dtype(*present) if present else jnp.result_type(float)
    total = None
    for source in merge.sources:
        part = _placed(merge, source, terms[source], values[source], dtype)
        total = part if total is None else total + part
    return total


def _placed(merge: Merge, source: int, term: Term, value: Any, dtype: Any) -> Any:
    entries = scaled(value, term.coefficient, dtype)
    if merge.spreads:
        sizes = dict(enumerate(term.sizes))
        return spread(entries, term.stored, merge.spreads[source], sizes, merge.result.stored_shape)
    shape = [term.sizes[v] if v in term.stored else 1 for v in merge.result.stored]
    return entries if entries.shape == tuple(shape) else entries.reshape(shape)
