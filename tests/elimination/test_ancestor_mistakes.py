"""What the ancestor answers wrongly or refuses about Jacobians, one test each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.elimination import jacve

V = np.array([0.3, -0.7, 1.2])


def agrees(function, *arguments, argnums=(0,), compiled=True):
    def both(*args):
        ours = jacve(function, "reverse", argnums=argnums)(*args)
        return ours, jax.jacrev(function, argnums=argnums)(*args)

    found, reference = (jax.jit(both) if compiled else both)(*arguments)
    assert jax.tree.structure(found) == jax.tree.structure(reference)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-8), found, reference
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x,
        lambda x: x + x,
        lambda x: x - x,
        lambda x: x / x,
        lambda x: jnp.maximum(x, x),
    ],
    ids=["mul", "add", "sub", "div", "max"],
)
def test_an_operand_used_twice_in_one_equation(function):
    agrees(function, 1.7)
    agrees(function, V)


def test_dot_with_itself():
    agrees(lambda v: v @ v, V)
    agrees(lambda m: m @ m, np.outer(V, V))


def test_python_and_numpy_scalars_outside_jit():
    agrees(lambda x, y: jnp.sin(x) * y, 0.5, np.float64(2.0), argnums=(0, 1), compiled=False)


def test_arcsinh():
    agrees(jnp.arcsinh, V)


def test_ties_of_a_maximum_are_shared():
    agrees(lambda x, y: jnp.maximum(x, y), V, V, argnums=(0, 1))
    agrees(jnp.max, np.ones(3))


def test_argnums_in_any_order():
    first, second = jacve(lambda x, y: x * y**2, argnums=(1, 0))(2.0, 3.0)
    assert (float(first), float(second)) == (12.0, 9.0)


def test_one_of_several_arguments():
    agrees(lambda x, y, z: x * y * z, 2.0, V, 3.0, argnums=(1,))


def test_integer_argnums():
    found = jacve(lambda x, y: x * y, argnums=1)(V, 3.0)
    np.testing.assert_allclose(found, V)


def test_dict_outputs_and_inputs():
    agrees(lambda p: {"a": p["w"] * p["b"], "c": [p["w"].sum()]}, {"w": V, "b": 2.0})


def test_the_same_output_twice():
    agrees(lambda x: (x * 2, x * 2), V)

    def twice(x):
        y = jnp.sin(x)
        return y, y, y * 2

    agrees(twice, V)


def test_outputs_that_are_inputs_or_constants():
    agrees(lambda x, y: (x, jnp.float64(3.0) + 0 * y, y), V, 2.0, argnums=(0, 1))
    found = jacve(lambda x: (x, 3.0))(V)
    np.testing.assert_array_equal(found[0][0], np.eye(3))
    np.testing.assert_array_equal(found[1][0], np.zeros(3))


def test_nested_jit_shares_no_variables():
    inner = jax.jit(lambda x: jnp.sin(x) * x)
    agrees(lambda x: inner(inner(x)) + inner(2 * x), V)


def test_integer_and_boolean_paths():
    def function(x):
        count = jnp.sum(x > 0)
        return x * count, jnp.floor(x).astype(int)

    found = jacve(function)(V)
    np.testing.assert_allclose(found[0][0], 2 * np.eye(3))
    np.testing.assert_array_equal(found[1][0], np.zeros((3, 3)))


def test_structural_zeros_do_not_meet_infinities():
    """A product by zero that is only numerically zero would give nan here."""
    found = jacve(lambda x: (jnp.where(x > 0, x, 0.0), x[0] * 2), "reverse")(
        np.array([1.0, np.inf])
    )
    np.testing.assert_array_equal(found[1][0], [2.0, 0.0])


@pytest.mark.parametrize("literal", [0.0, np.inf, -np.inf])
def test_literals_that_are_no_ordinary_numbers(literal):
    for function in (lambda x: x * literal, lambda x: x / literal):
        found = jacve(lambda x, f=function: f(jnp.sin(x)))(0.5)
        reference = jax.jacrev(lambda x, f=function: f(jnp.sin(x)), argnums=(0,))(0.5)
        np.testing.assert_allclose(found, reference, rtol=1e-5)
