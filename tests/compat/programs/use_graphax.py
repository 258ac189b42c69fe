"""What graphax's documentation shows: `jacve` beside `jax.jacfwd` and `jax.jacrev`, counts, jit, vmap."""

import graphax as gx
import jax
import jax.numpy as jnp
from graphax import jacve, tree_allclose
from graphax.core import vertex_elimination_jaxpr
from graphax.examples import BlackScholes, Helmholtz, Simple
from graphax.examples.deep_learning import Perceptron
from graphax.examples.roe import RoeFlux_1d


def four(a, b, c, d):
    e = a * b
    f = jnp.sin(e) + c
    return f * d, jnp.log(f)


def orders():
    arguments = (1.0, 1.0, 2.0, 7.0)
    expected = jax.jacrev(four, argnums=(0, 1, 2, 3))(*arguments)
    found = [
        jacve(four, order=order, argnums=(0, 1, 2, 3))(*arguments)
        for order in ("fwd", "forward", "rev", "reverse", [1, 3, 2], [2, 1, 3])
    ]
    return [bool(tree_allclose(each, expected)) for each in found]


def transformed():
    argnums = range(2, 8)
    shapes = [(4,), (4,), (8, 4), (8,), (4, 8), (4,), (8,), (8,)]
    keys = jax.random.split(jax.random.PRNGKey(0), len(shapes))
    weights = [jax.random.uniform(k, s) for k, s in zip(keys, shapes, strict=True)]

    @jax.jit
    def both(*weights):
        found = gx.jacve(Perceptron, order="rev", argnums=argnums)(*weights)
        return gx.tree_allclose(found, jax.jacrev(Perceptron, argnums=argnums)(*weights))

    points = jax.random.uniform(jax.random.PRNGKey(1), (5, 5), minval=0.5, maxval=1.5)
    batched = jax.vmap(jacve(BlackScholes, order="fwd", argnums=range(5)))
    wanted = jax.vmap(jax.jacfwd(BlackScholes, argnums=range(5)))
    return [bool(both(*weights)), bool(tree_allclose(batched(*points.T), wanted(*points.T)))]


def counted():
    point = [jnp.float32(x) for x in (0.01, 0.02, 0.02, 0.01, 0.03, 0.03)]
    jacobians, counts = jacve(RoeFlux_1d, "rev", argnums=range(6), count_ops=True)(*point)
    shapes = [[block.shape for block in row] for row in jacobians]
    return shapes, counts["num_muls"], counts["num_adds"], counts["order_counts"][0]


def with_values():
    x, y = jnp.float32(1.0), jnp.float32(2.0)
    values, jacobians = jacve(Simple, "rev", argnums=(0, 1), has_aux=True)(x, y)
    return bool(tree_allclose(values, Simple(x, y))), len(jacobians), len(jacobians[0])


def of_a_jaxpr():
    x = jnp.array([0.1, 0.2, 0.3, 0.05])
    program = jax.make_jaxpr(Helmholtz)(x)
    rows = vertex_elimination_jaxpr(program.jaxpr, "rev", program.literals, x, argnums=(0,))
    return type(rows).__name__, bool(tree_allclose(rows[0], jax.jacfwd(Helmholtz)(x)))


def refused():
    try:
        jacve(four, order=[1], argnums=(0, 1))(1.0, 1.0, 2.0, 7.0)
    except ValueError as error:
        return "missing" in str(error)


def main(folder):
    return {
        "orders": orders(),
        "transformed": transformed(),
        "counted": counted(),
        "with_values": with_values(),
        "of_a_jaxpr": of_a_jaxpr(),
        "refused": refused(),
    }
