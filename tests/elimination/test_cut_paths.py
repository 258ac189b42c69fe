"""A path that a selection does not choose is cut, with any other factors on it and in any order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.elimination import (
    explain_jacobian,
    hessian,
    jacobian,
    linearization,
    value_and_jacobian,
)

MATRIX = np.array([[0.0, 1.0, -2.0], [3.0, 0.0, 0.5], [1.0, 1.0, 1.0]])


def assert_right_where_jax_is(found, function, x):
    """Equal to `jacrev` and `jacfwd` wherever one of them is finite."""
    found = np.asarray(found)
    for reference in (jax.jacrev, jax.jacfwd):
        expected = np.asarray(reference(function)(x))
        finite = np.isfinite(expected)
        np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-9, atol=1e-12)


def assert_as_one_mode_of_jax(found, function, x):
    """`auto` may take one of the modes, and is right where that one is."""
    found = np.asarray(found)
    modes = [np.asarray(mode(function)(x)) for mode in (jax.jacrev, jax.jacfwd)]
    both = np.isfinite(modes[0]) & np.isfinite(modes[1])
    np.testing.assert_allclose(found[both], modes[0][both], rtol=1e-9, atol=1e-12)
    assert any(
        np.allclose(found[finite], mode[finite], rtol=1e-9, atol=1e-12)
        for mode, finite in ((mode, np.isfinite(mode)) for mode in modes)
    )


def safe_sqrt(x):
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 0.0)), 0.0)


def safe_norm(x):
    squared = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 0.0)), 0.0)


def branching(x):
    return jax.lax.cond(x[1] > 0, lambda v: v * 2.0, lambda v: jnp.zeros_like(v), jnp.sqrt(x))


def between_layers(x):
    """m·A·d·m·B with an infinite d where m cuts."""
    hidden = jnp.where(x > 0, MATRIX @ x, 0.0)
    hidden = jnp.log(jnp.where(x > 0, hidden**2 + 1.0, 0.0))
    return MATRIX @ jnp.where(x > 0, MATRIX @ hidden, 0.0)


POINT = np.array([0.0, 4.0, -1.0])

FUNCTIONS = {
    "double where": safe_sqrt,
    "outer where": lambda x: jnp.where(x > 0, 2.0 * jnp.log(x), 0.0),
    "inner where": lambda x: jnp.sqrt(jnp.where(x > 0, x, 0.0)),
    "scalar condition": lambda x: jnp.where(x[0] > 0, jnp.sqrt(x), x),
    "sum(where=)": lambda x: jnp.sum(jnp.sqrt(jnp.where(x > 0, x, 0.0)), where=x > 0),
    "safe norm": lambda x: safe_norm(jnp.stack([x, jnp.zeros(3)])),
    "masked log": lambda x: jnp.where(x > 0, x * jnp.log(jnp.where(x > 0, x, 0.0)), 0.0),
    "relu": lambda x: jax.nn.relu(jnp.sqrt(jax.nn.relu(x))),
    "maximum": lambda x: jnp.maximum(jnp.sqrt(jnp.maximum(x, 0.0)), 0.5),
    "clip": lambda x: jnp.clip(jnp.sqrt(x), 1.0, 3.0),
    "lax.clamp": lambda x: jax.lax.clamp(1.0, jnp.sqrt(x), 3.0),
    "three cases": lambda x: jax.lax.select_n(jnp.array([0, 1, 2]), x, jnp.sqrt(x), jnp.log(x)),
    "vmapped cond": jax.vmap(
        lambda v: jax.lax.cond(v > 0, lambda v: jnp.sqrt(v), lambda v: 0.0 * v, v)
    ),
    "cond": branching,
    "maximum of all": lambda x: jnp.max(jnp.sqrt(jnp.where(x > 0, x, 0.0))),
    "dynamic index": lambda x: jnp.sqrt(x)[jnp.argmax(x)],
    "sort": lambda x: jnp.sort(jnp.sqrt(jnp.where(x > 0, x, 0.0)))[1:],
    "cumulative sum": lambda x: jnp.cumsum(safe_sqrt(x)),
    "between layers": between_layers,
    "outer product": lambda x: jnp.outer(safe_sqrt(x), safe_sqrt(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_method_and_order(name):
    function = FUNCTIONS[name]
    assert_as_one_mode_of_jax(jacobian(function)(POINT), function, POINT)
    graph = linearization(function)(POINT).graph
    orders = list(itertools.islice(itertools.permutations(graph.required), 24))
    for order in ("forward", "reverse", "markowitz", *orders):
        found = jacobian(function, order=order)(POINT)
        assert_right_where_jax_is(found, function, POINT)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled(name):
    function = FUNCTIONS[name]
    for backend in ("native", "xla"):
        found = jax.jit(jacobian(function, backend=backend))(POINT)
        assert_right_where_jax_is(found, function, POINT)
    batch = jnp.stack([POINT, -POINT, jnp.zeros(3)])
    found = jax.jit(jax.vmap(jacobian(function)))(batch)
    for x, each in zip(batch, found, strict=True):
        assert_as_one_mode_of_jax(each, function, x)


@pytest.mark.parametrize("name", ["outer where", "inner where", "clip", "vmapped cond"])
def test_auto_prefers_elimination_where_only_one_mode_of_jax_is_finite(name):
    assert explain_jacobian(FUNCTIONS[name], POINT).chosen == "elimination"
    assert_right_where_jax_is(jacobian(FUNCTIONS[name])(POINT), FUNCTIONS[name], POINT)


def test_infinite_partial_between_two_cuts_taken_first():
    """u·m·a·m'·v as (u·m)·a·(m'·v): with zeros instead of cuts that is 0·inf·0."""

    def function(x):
        inner = jnp.where(x > 0, 2.0 * x, 0.0)
        return 3.0 * jnp.where(x > 0, jnp.sqrt(inner), 0.0)

    x = jnp.array(-1.0)
    graph = linearization(function)(x).graph
    for order in itertools.permutations(graph.required):
        assert jacobian(function, order=order)(x) == 0.0


def test_a_zero_that_was_computed_is_not_a_cut():
    def function(x):
        return jnp.sqrt(x * x)

    assert np.isnan(jax.jacrev(function)(0.0))
    assert np.isnan(jacobian(function, method="elimination")(0.0))
    # Nor is one on a way that a selection keeps.
    kept = lambda x: jnp.where(x >= 0, jnp.sqrt(jnp.where(x >= 0, x * x, 1.0)), 0.0)  # noqa: E731
    assert np.isnan(jax.jacfwd(kept)(0.0))
    assert np.isnan(jacobian(kept, method="elimination")(0.0))


def test_structured_blocks_hold_zeros_where_paths_are_cut():
    block = jacobian(safe_sqrt, sparse=True)(POINT)
    np.testing.assert_array_equal(block.todense(), np.diag([0.0, 0.25, 0.0]))
    np.testing.assert_array_equal(block @ jnp.ones(3), [0.0, 0.25, 0.0])
    np.testing.assert_array_equal(block.to_bcoo().todense(), np.diag([0.0, 0.25, 0.0]))


def test_second_derivatives():
    function = lambda x: jnp.sum(safe_sqrt(x) * x)  # noqa: E731
    expected = np.diag([0.0, 0.375, 0.0])
    np.testing.assert_allclose(jax.hessian(function)(POINT), expected)
    np.testing.assert_allclose(hessian(function)(POINT), expected)
    gradient_of_jacobian = jax.grad(lambda x: jnp.sum(jacobian(safe_sqrt)(x)))(POINT)
    np.testing.assert_allclose(gradient_of_jacobian, [0.0, -1 / 32, 0.0])


def test_complex_values():
    function = lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 0.0)), 0.0) * (1 + 2j)  # noqa: E731
    value, found = value_and_jacobian(function, method="elimination")(POINT)
    np.testing.assert_allclose(found, np.diag([0.0, 0.25, 0.0]) * (1 + 2j))
    np.testing.assert_allclose(value, [0.0, 2 + 4j, 0.0])


UNARY = {
    "sqrt": jnp.sqrt,
    "log": jnp.log,
    "reciprocal": lambda v: 1.0 / v,
    "square": lambda v: v * v,
    "negative": lambda v: -v,
    "relu": jax.nn.relu,
    "clamp": lambda v: jax.lax.clamp(-0.5, v, 1.5),
    "matrix": lambda v: jnp.asarray(MATRIX) @ v,
    "differences": lambda v: jnp.concatenate([v[:1], v[1:] - v[:-1]]),
    "total": lambda v: v + jnp.sum(v),
    "reverse": lambda v: v[::-1],
    "sort": jnp.sort,
    "cumsum": jnp.cumsum,
}
BINARY = {"add": jnp.add, "multiply": jnp.multiply, "maximum": jnp.maximum}
CONDITIONS = {
    "positive": lambda x: x > 0,
    "zero": lambda x: x == 0,
    "first": lambda x: x[0] >= 0,
    "last two": lambda x: jnp.array([False, True, True]),
}


@st.composite
def programs(draw):
    """A function of a vector of three: steps on the values so far, many of them masked."""
    steps = []
    for n in range(draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["unary", "binary", "where", "where"]))
        table = {"unary": UNARY, "binary": BINARY, "where": CONDITIONS}[kind]
        operands = draw(st.tuples(st.integers(0, n), st.integers(-1, n)))
        steps.append((table[draw(st.sampled_from(sorted(table)))], kind, operands))

    def program(x):
        values = [x]
        for function, kind, (a, b) in steps:
            second = values[b] if b >= 0 else jnp.zeros(3)
            if kind == "where":
                values.append(jnp.where(function(x), values[a], second))
            else:
                values.append(function(*(values[a], second)[: 1 + (kind == "binary")]))
        return values[-1]

    return program


@settings(max_examples=25, deadline=None)
@given(
    programs(), st.lists(st.sampled_from([-1.0, 0.0, 0.25, 4.0]), min_size=3, max_size=3), st.data()
)
def test_random_programs_in_random_orders(program, point, data):
    x = jnp.array(point)
    graph = linearization(program)(x).graph
    shuffled = data.draw(st.permutations(graph.required))
    for order in ("forward", "reverse", tuple(shuffled)):
        assert_right_where_jax_is(jacobian(program, order=order)(x), program, x)
    assert_as_one_mode_of_jax(jacobian(program)(x), program, x)
