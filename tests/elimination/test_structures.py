"""Products and sums of structured blocks against dense linear algebra."""

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.elimination._blocks import (
    Block,
    add,
    dense,
    multiply,
    product_structure,
    sum_structure,
)
from chainrule.elimination._structure import Axis, Table, canonical_term, structure_of

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=2).map(tuple)


@st.composite
def axes(draw, length, sizes):
    """A position inside an axis of the given length, as a function of some of the loops."""
    weights, offset, room = [], 0, length - 1
    for variable, size in sizes.items():
        kind = draw(st.sampled_from(["absent", "stride", "reverse", "table"]))
        reach = size - 1
        if kind == "stride" and reach and room >= reach:
            stride = draw(st.integers(1, room // reach))
            weights.append((variable, stride))
            room -= stride * reach
        elif kind == "reverse" and room >= reach:
            weights.append((variable, -1))
            offset += reach
            room -= reach
        elif kind == "table":
            table = np.array(draw(st.lists(st.integers(0, room), min_size=size, max_size=size)))
            weights.append((variable, Table(table)))
            room -= int(table.max())
    return Axis.sum_of(offset + draw(st.integers(0, room)), weights)


@st.composite
def terms(draw, out_shape, in_shape):
    sizes = {v: draw(st.integers(1, 4)) for v in range(draw(st.integers(0, 3)))}
    out_axes = [draw(axes(n, sizes)) for n in out_shape]
    in_axes = [draw(axes(n, sizes)) for n in in_shape]
    walked = {v for axis in (*out_axes, *in_axes) for v in axis.variables}
    stored = [v for v in sorted(walked) if draw(st.booleans())]
    valued = bool(stored) or draw(st.booleans())
    coefficient = draw(st.sampled_from([1.0, -1.0, 2.5]))
    used = {v: n for v, n in sizes.items() if v in walked}
    term, _ = canonical_term(
        out_shape, in_shape, used, out_axes, in_axes, stored, valued=valued, coefficient=coefficient
    )
    return term


@st.composite
def blocks(draw, out_shape, in_shape):
    found = [draw(terms(out_shape, in_shape)) for _ in range(draw(st.integers(1, 3)))]
    values = []
    for term in found:
        seed = draw(st.integers(0, 1000))
        numbers = np.random.default_rng(seed).normal(size=term.stored_shape)
        values.append(jnp.asarray(numbers) if term.valued else None)
    return Block(structure_of(found), tuple(values))


def by_definition(block):
    """The block entry by entry, from the formula in the documentation of `_structure`."""
    structure = block.structure
    matrix = np.zeros((math.prod(structure.out_shape), math.prod(structure.in_shape)))
    for term, value in zip(structure.terms, block.values, strict=True):
        rows, columns = term.flat_positions()
        for index in np.ndindex(*term.sizes):
            stored = tuple(index[v] for v in term.stored)
            entry = 1.0 if value is None else float(np.asarray(value)[stored])
            matrix[rows[index], columns[index]] += term.coefficient * entry
    return matrix.reshape((*structure.out_shape, *structure.in_shape))


@settings(max_examples=20)
@given(st.data())
def test_dense_form_is_the_definition(data):
    block = data.draw(blocks(data.draw(SHAPES), data.draw(SHAPES)))
    np.testing.assert_allclose(dense(block, jnp.float64), by_definition(block), atol=1e-12)


@settings(max_examples=100)
@given(st.data())
def test_rows_and_columns_with_entries(data):
    term = data.draw(terms(data.draw(SHAPES), data.draw(SHAPES)))
    rows, columns = term.flat_positions()
    for found, places, shape in (
        (term.rows_with_entries(), rows, term.out_shape),
        (term.columns_with_entries(), columns, term.in_shape),
    ):
        everything = np.arange(math.prod(shape))
        np.testing.assert_array_equal(everything if found is None else found, np.unique(places))


@settings(max_examples=40)
@given(st.data())
def test_product_is_the_matrix_product(data):
    shapes = [data.draw(SHAPES) for _ in range(3)]
    left = data.draw(blocks(shapes[0], shapes[1]))
    right = data.draw(blocks(shapes[1], shapes[2]))
    product = multiply(left, right)
    rank = len(shapes[1])
    wanted = np.tensordot(by_definition(left), by_definition(right), axes=rank)
    np.testing.assert_allclose(by_definition(product), wanted, atol=1e-12)
    assert product.structure is product_structure(left.structure, right.structure)


@settings(max_examples=20)
@given(st.data())
def test_sum_is_the_sum(data):
    out_shape, in_shape = data.draw(SHAPES), data.draw(SHAPES)
    first = data.draw(blocks(out_shape, in_shape))
    second = data.draw(blocks(out_shape, in_shape))
    total = add(first, second)
    np.testing.assert_allclose(
        by_definition(total), by_definition(first) + by_definition(second), atol=1e-12
    )
    assert total.structure is sum_structure(first.structure, second.structure)


def test_equal_structures_are_the_same_object():
    def make():
        return canonical_term((3,), (3,), {7: 3}, [Axis.of(7)], [Axis.of(7)], [7], valued=True)[0]

    assert make() is make()


def test_opposite_constants_cancel_structurally():
    term, _ = canonical_term((3,), (3,), {0: 3}, [Axis.of(0)], [Axis.of(0)], [], valued=False)
    plus = Block(structure_of([term]), (None,))
    minus = Block(structure_of([term.with_coefficient(-1.0)]), (None,))
    assert add(plus, minus).structure.is_zero
