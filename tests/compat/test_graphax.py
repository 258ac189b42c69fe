"""graphax's names: Jacobians against `jax.jacrev`, results in its layout, counts as published."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.compat import graphax as gx
from chainrule.compat.graphax import examples

SCALARS = {
    # forward and reverse multiplications and additions, from the ancestor's own counter
    "RoeFlux_1d": ((0.01, 0.02, 0.02, 0.01, 0.03, 0.03), (620, 224), (364, 135)),
    "RobotArm_6DOF": ((0.02,) * 6, (397, 79), (301, 84)),
    "HumanHeartDipole": ((0.15,) * 8, (240, 20), (172, 24)),
    "PropaneCombustion": ((0.15,) * 11, (151, 0), (90, 0)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_counts_and_jacobians(name):
    point, forward, reverse = SCALARS[name]
    function, arguments = getattr(examples, name), [jnp.float32(x) for x in point]
    argnums = tuple(range(len(arguments)))
    expected = jax.jacrev(function, argnums)(*arguments)
    for order, published in (("fwd", forward), ("rev", reverse)):
        found, counts = gx.jacve(function, order, argnums, count_ops=True)(*arguments)
        assert (counts["num_muls"], counts["num_adds"]) == published
        assert sum(muls for _, muls in counts["order_counts"]) == counts["num_muls"]
        for rows, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(rows, wanted, rtol=2e-3, atol=1e-3)


def test_layout_of_results():
    def f(x, y):
        return jnp.sin(x * y), x + y

    x, y = jnp.float32(1.0), jnp.float32(2.0)
    one = gx.jacve(f, "rev")(x, y)
    assert [block.shape for block in one] == [(), ()]
    several = gx.jacve(f, "rev", argnums=(0, 1))(x, y)
    assert gx.tree_allclose(several, jax.jacrev(f, (0, 1))(x, y))
    values, jacobians = gx.jacve(f, "rev", argnums=(0, 1), has_aux=True)(x, y)
    assert gx.tree_allclose(values, f(x, y))
    assert gx.tree_allclose(jacobians, several)
    with pytest.raises(ValueError, match=r"(?i)tree"):
        gx.tree_allclose(jacobians, values)


def test_the_only_output_of_the_only_argument_is_in_a_tuple():
    x = jnp.linspace(0.1, 1.0, 3)
    assert gx.tree_allclose(gx.jacve(jnp.sin, "rev")(x), jax.jacrev(jnp.sin, argnums=(0,))(x))
    (value,), (block,) = gx.jacve(jnp.sin, "fwd", has_aux=True)(x)
    assert gx.tree_allclose((value, block), (jnp.sin(x), jnp.diag(jnp.cos(x))))
    (block,), counts = gx.jacve(jnp.sin, "rev", count_ops=True)(x)
    assert counts == {"num_muls": 0, "num_adds": 0, "order_counts": []}
    first, second = gx.jacve(lambda x: (jnp.sin(x), jnp.cos(x)), "rev")(x)
    assert gx.tree_allclose((first, second), (jnp.diag(jnp.cos(x)), jnp.diag(-jnp.sin(x))))


def test_closeness_can_be_asked_inside_jit():
    close = jax.jit(gx.tree_allclose)
    tree = {"a": jnp.ones(2), "b": jnp.array(1.0)}
    assert close(tree, jax.tree.map(lambda x: x * (1 + 5e-5), tree))
    assert not close(tree, jax.tree.map(lambda x: x * 1.001, tree))
    nans = {"a": jnp.array(jnp.nan)}
    assert not gx.tree_allclose(nans, nans)
    assert gx.tree_allclose(nans, nans, equal_nan=True)


def test_of_a_jaxpr_and_sparse():
    def f(x):
        return jnp.tanh(x) * x

    x = jnp.linspace(0.1, 1.0, 4)
    program = jax.make_jaxpr(f)(x)
    (block,) = gx.vertex_elimination_jaxpr(program.jaxpr, "fwd", program.consts, x)
    np.testing.assert_allclose(block, jax.jacrev(f)(x), rtol=1e-6)
    pair = jax.make_jaxpr(lambda x, y: (x * y, jnp.sin(x)))(2.0, 3.0)
    rows = gx.vertex_elimination_jaxpr(pair.jaxpr, "rev", pair.consts, 2.0, 3.0, argnums=(0, 1))
    assert gx.tree_allclose(rows, [(3.0, 2.0), (np.cos(2.0), 0.0)])
    (sparse,) = gx.jacve(f, "fwd", sparse_representation=True)(x)
    assert sparse.nse == 4
    np.testing.assert_allclose(sparse.todense(), jax.jacrev(f)(x), rtol=1e-6)


def test_an_order_that_misses_vertices():
    f = examples.Simple
    with pytest.raises(ValueError, match="missing"):
        gx.jacve(f, [1], argnums=(0, 1))(jnp.float32(1.0), jnp.float32(2.0))
    right = gx.jacve(f, [2, 1], argnums=(0, 1))(jnp.float32(1.0), jnp.float32(2.0))
    assert gx.tree_allclose(right, jax.jacrev(f, (0, 1))(jnp.float32(1.0), jnp.float32(2.0)))
