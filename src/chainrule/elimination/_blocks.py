"""Blocks with numbers: products, sums and dense forms, carried out as planned on structures.

A `Block` is a structure and, per term, a value (see `_values`; `None` where the structure says that there is
none). The functions here never look at numbers and never decide anything: what to slice, multiply, add or
sum is in the plans, which depend on structures only and are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from chainrule.elimination._products import plan_product
from chainrule.elimination._reads import spread
from chainrule.elimination._structure import Structure, Term, structure_of, zero_structure
from chainrule.elimination._sums import plan_sum
from chainrule.elimination._values import (
    Value,
    entries_of,
    kept_as_numbers,
    merged,
    multiplied,
    scaled,
)


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
    """The block of the composition, left ∘ right."""
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
    merges = plan_sum(terms)
    if not merges:
        return Block(zero_structure(terms[0].out_shape, terms[0].in_shape), ())
    structure = structure_of([merge.result for merge in merges], index_map=index_map)
    return Block(structure, tuple(merged(merge, terms, values) for merge in merges))


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
"""Blocks with less than one entry in so many are filled entry by entry, not term by term."""


def _scattered(block: Block, dtype: Any) -> Any:
    """The dense block, flat: zeros written once, then the entries of all terms."""
    structure = block.structure
    columns = math.prod(structure.in_shape)
    places, entries = [], []
    for term, value in zip(structure.terms, block.values, strict=True):
        row, column = term.flat_positions()
        places.append((row * columns + column).ravel())
        factor = scaled(entries_of(value), term.coefficient, dtype)
        shape = [n if v in term.stored else 1 for v, n in enumerate(term.sizes)]
        entries.append(jnp.broadcast_to(jnp.reshape(factor, shape), term.sizes).ravel())
    flat = jnp.zeros(math.prod(structure.out_shape) * columns, dtype)
    return flat.at[np.concatenate(places)].add(jnp.concatenate(entries))
