"""Sown trees of which some leaves do not depend on what is differentiated.

The reference adds a perturbation ε at the sow and differentiates with respect to it, in plain JAX. Each
program takes a function `mark(tree, i)` that stands at the place of the sow; `i` is the iteration of the loop
around it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import apply_component, component
from chainrule.harvest import intermediate_stats, save_intermediates, sow
from chainrule.runtime import Array, Differentiable, Float32


def sown(tree, i=None):
    return sow(tree, "h")


def shifted(epsilon):
    """A mark that adds perturbations; those of a loop have its axis in front."""

    def mark(tree, i=None):
        return jax.tree.map(
            lambda leaf, e: leaf if e is None else leaf + (e if i is None else e[i]), tree, epsilon
        )

    return mark


def has_derivative(leaf):
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def zeros_of(tree, length=None):
    """Perturbations for a tree: zeros, and `None` for leaves that have no derivative."""
    front = () if length is None else (length,)

    def zero(leaf):
        return jnp.zeros((*front, *jnp.shape(leaf))) if has_derivative(leaf) else None

    return jax.tree.map(zero, tree)


def check(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, expected
    )


Scalar = Differentiable[Array[(), Float32]]
X, Y = jnp.array([0.4, 0.9]), jnp.array([1.3, 0.6])


def tail(tree):
    """Some nonlinear function of the floats of a tree."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if has_derivative(leaf)]
    total = sum((jnp.sin(leaf) * (n + 1) for n, leaf in enumerate(leaves)), jnp.zeros(2))
    for leaf in leaves:
        total = total * (1.0 + leaf)
    return jnp.sum(total)


def plain(mark, x, y):
    return tail(mark({"x": x**2, "y": y}))


def with_other_leaves(mark, x, y):
    frozen = {"constant": 0.7, "stopped": jax.lax.stop_gradient(x), "n": 3, "none": None}
    return tail(mark({"x": jnp.sin(x), "y": y, **frozen}))


def jitted(mark, x, y):
    return jax.jit(lambda x, y: plain(mark, x, y))(x, y)


def checkpointed(mark, x, y):
    return jax.checkpoint(lambda x, y: plain(mark, x, y))(x, y)


def checkpointed_after(mark, x, y):
    return jax.checkpoint(tail)(mark({"x": x**2, "y": y}))


def branch(mark, x, y):
    return jax.lax.cond(x[0] > 0, lambda: plain(mark, x, y), lambda: x[0])


def into_custom_vjp(mark, x, y):
    @jax.custom_vjp
    def scaled(a, b):
        return jnp.sum(a * b)

    scaled.defvjp(
        lambda a, b: (jnp.sum(a * b), (a, b)), lambda ab, ct: (3.0 * ct * ab[1], 5.0 * ct * ab[0])
    )
    tree = mark({"x": x**2, "y": y})
    return scaled(tree["x"], tree["y"])


def into_custom_jvp(mark, x, y):
    @jax.custom_jvp
    def product(a, b):
        return jnp.sum(a * b)

    @product.defjvp
    def _(primals, tangents):
        (a, b), (ta, tb) = primals, tangents
        return jnp.sum(a * b), jnp.sum(ta * b * 2.0 + tb * a * 7.0)

    tree = mark({"x": x**2, "y": y})
    return product(tree["x"], tree["y"])


ONCE = [
    plain, with_other_leaves, jitted, checkpointed, checkpointed_after, branch, into_custom_vjp,
    into_custom_jvp,
]  # fmt: skip


def sown_tree(program):
    """What a program marks, from a run without sow."""
    seen = []

    def mark(tree, i=None):
        seen.append(tree)
        return tree

    with jax.disable_jit():
        program(mark, X, Y)
    return seen[0]


def reference(program, x=X, y=Y, length=None):
    epsilon = zeros_of(sown_tree(program), length)
    return jax.grad(lambda e: program(shifted(e), x, y))(epsilon)


def from_vjp(f):
    def pulled(x, y):
        value, pull = jax.vjp(lambda x: f(x, y), x)
        return pull(jnp.ones_like(value))

    return pulled


DERIVATIVES = {
    "grad": jax.grad,
    "vjp": from_vjp,
    "jacrev": lambda f: jax.jacrev(lambda x, y: f(x, y)),
    "has_aux": lambda f: jax.grad(lambda x, y: (f(x, y), x), has_aux=True),
    "value_and_grad": jax.value_and_grad,
    "jit(grad)": lambda f: jax.jit(jax.grad(f)),
    "linearize": lambda f: (
        lambda x, y: jax.linear_transpose(jax.linearize(lambda x: f(x, y), x)[1], x)(1.0)
    ),
}


@pytest.mark.parametrize("program", ONCE)
def test_every_leaf_has_its_cotangent(program):
    def f(x, y):
        return program(sown, x, y)

    gradient, found = save_intermediates(jax.grad(f))(X, Y)
    np.testing.assert_allclose(gradient, jax.grad(f)(X, Y), rtol=1e-6)
    check(found["h"]["cotangent"], reference(program))


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_for_every_way_to_ask(derivative):
    _, found = save_intermediates(DERIVATIVES[derivative](lambda x, y: plain(sown, x, y)))(X, Y)
    expected = reference(plain)
    if derivative == "jacrev":  # the axis of the outputs, which is that of a scalar
        found["h"]["cotangent"] = jax.tree.map(lambda leaf: leaf[0], found["h"]["cotangent"])
    check(found["h"]["cotangent"], expected)


def test_with_respect_to_another_argument():
    _, found = save_intermediates(jax.value_and_grad(lambda x, y: plain(sown, x, y), argnums=1))(
        X, Y
    )
    check(found["h"]["cotangent"], reference(plain))


def closed_over(mark, x, y):
    def step(c, i):
        tree = mark({"c": c, "y": y}, i)
        return jnp.sin(tree["c"]) * tree["y"], None

    return jnp.sum(jax.lax.scan(step, x, jnp.arange(3))[0])


def scanned_inputs(mark, x, y):
    def step(c, item):
        i, z = item
        tree = mark({"c": c, "z": z}, i)
        return jnp.sin(tree["c"]) + tree["z"] ** 2 * c, None

    return jnp.sum(jax.lax.scan(step, x, (jnp.arange(3), jnp.stack([y, y + 1, y + 2])))[0])


def frozen_carry(mark, x, y):
    """What is added to `k` in one iteration is still there in the next ones."""

    def step(carry, i):
        tree = mark(carry, i)
        return {"c": jnp.sin(tree["c"]) * tree["k"], "k": 0.5 * tree["k"]}, tree["c"] * tree["k"]

    end, outputs = jax.lax.scan(step, {"c": x, "k": y}, jnp.arange(3))
    return jnp.sum(end["c"]) + jnp.sum(outputs)


def in_fori(mark, x, y):
    def step(i, c):
        tree = mark((c, y), i)
        return tree[0] * jnp.cos(tree[1])

    return jnp.sum(jax.lax.fori_loop(0, 3, step, x))


def in_map(mark, x, y):
    def one(item):
        i, z = item
        tree = mark({"a": z * x, "b": z * y, "n": i}, i)
        return tree["a"] * tree["b"] ** 2

    return jnp.sum(jax.lax.map(one, (jnp.arange(3), jnp.array([1.0, 2.0, 3.0]))))


def checkpointed_scan(mark, x, y):
    def step(c, i):
        tree = mark({"c": c, "y": y}, i)
        return jnp.sin(tree["c"]) * tree["y"], None

    return jnp.sum(jax.lax.scan(jax.checkpoint(step), x, jnp.arange(3))[0])


@pytest.mark.parametrize(
    "program", [closed_over, scanned_inputs, frozen_carry, in_fori, in_map, checkpointed_scan]
)
def test_in_loops(program):
    _, found = save_intermediates(jax.grad(lambda x, y: program(sown, x, y)))(X, Y)
    check(found["h"]["cotangent"], reference(program, length=3))


XS, YS = jnp.stack([X, X + 0.1, X - 0.2]), jnp.stack([Y, Y + 0.3, Y - 0.1])


@pytest.mark.parametrize("axis_of_y", [0, None])
def test_per_example(axis_of_y):
    ys = YS if axis_of_y == 0 else Y
    derivative = jax.vmap(jax.grad(lambda x, y: plain(sown, x, y)), in_axes=(0, axis_of_y))
    _, found = save_intermediates(derivative)(XS, ys)
    expected = jax.vmap(lambda x, y: reference(plain, x, y), in_axes=(0, axis_of_y))(XS, ys)
    check(found["h"]["cotangent"], expected)


def test_of_a_batch():
    def loss(x, y, epsilon=None):
        marked = sown if epsilon is None else shifted
        if epsilon is None:
            return jnp.sum(jax.vmap(lambda x, y: plain(sown, x, y))(x, y))
        return jnp.sum(jax.vmap(lambda x, y, e: plain(marked(e), x, y))(x, y, epsilon))

    _, found = save_intermediates(jax.grad(loss))(XS, YS)
    expected = jax.grad(loss, argnums=2)(XS, YS, {"x": jnp.zeros((3, 2)), "y": jnp.zeros((3, 2))})
    check(found["h"]["cotangent"], expected)


def test_statistics():
    _, stats = intermediate_stats(jax.grad(lambda x, y: plain(sown, x, y)))(X, Y)
    expected = reference(plain)["y"]
    np.testing.assert_allclose(
        stats["h"]["cotangent"]["y"].norm, jnp.linalg.norm(expected), rtol=1e-5
    )


class TestSecondOrder:
    """A scalar x and a frozen scalar y. With ε at the sow, λ(x, ε) = ∂f/∂ε."""

    x, y = 0.8, 1.7

    @staticmethod
    def f(mark, x, y):
        tree = mark({"x": x**3, "y": y})
        return jnp.sin(tree["x"] * tree["y"]) * tree["y"] + tree["x"] ** 2

    def setup_method(self):
        self.zero = {"x": 0.0, "y": 0.0}
        self.sown = lambda x, y: self.f(sown, x, y)
        self.shifted = lambda x, e: self.f(shifted(e), x, self.y)
        self.cotangent = lambda x: jax.grad(self.shifted, argnums=1)(x, self.zero)
        self.tangent = {"x": 3 * self.x**2, "y": 0.0}

    def modes(self, derivative):
        return save_intermediates(derivative)(self.x, self.y)[1]["h"]

    def test_forward_over_reverse(self):
        found = self.modes(jax.hessian(self.sown))
        tangent_of_cotangent = jax.jvp(self.cotangent, (self.x,), (1.0,))[1]
        check(
            jax.tree.map(jnp.ravel, found["cotangent"]),
            jax.tree.map(jnp.ravel, self.cotangent(self.x)),
        )
        check(
            jax.tree.map(jnp.ravel, found["tangent_of_cotangent"]),
            jax.tree.map(jnp.ravel, tangent_of_cotangent),
        )
        check(jax.tree.map(jnp.ravel, found["tangent"]), jax.tree.map(jnp.ravel, self.tangent))

    def test_reverse_over_reverse(self):
        found = self.modes(jax.grad(jax.grad(self.sown)))
        slope = jax.grad(self.shifted)
        check(found["cotangent"], self.cotangent(self.x))
        check(found["outer_cotangent"], jax.grad(slope, argnums=1)(self.x, self.zero))
        # The inner gradient is λ · ∂h/∂x, so its derivative by λ is ∂h/∂x.
        check(found["cotangent_of_cotangent"], self.tangent)

    def test_reverse_over_forward(self):
        found = self.modes(
            jax.grad(lambda x, y: jax.jvp(lambda x: self.sown(x, y), (x,), (1.0,))[1])
        )

        def pushed(e):
            return jax.jvp(lambda x: self.shifted(x, e), (self.x,), (1.0,))[1]

        check(found["tangent"], self.tangent)
        check(found["cotangent"], jax.grad(pushed)(self.zero))
        # The directional derivative is λ · t, so its derivative by the tangent t is λ.
        check(found["cotangent_of_tangent"], self.cotangent(self.x))


def test_a_tangent_of_a_frozen_leaf_is_zero_also_where_its_derivative_is_infinite():
    """The function has a finite derivative by x; captured, it still has: 0 · ∞ does not enter."""

    def f(x, y):
        tree = sow({"x": x, "y": y}, "h")
        return tree["x"] * jnp.sqrt(tree["y"])

    (_, tangent), found = save_intermediates(lambda x: jax.jvp(f, (x, 0.0), (1.0, 0.0)))(2.0)
    assert jnp.isnan(tangent)  # a zero that is given as a number is one

    pushed = save_intermediates(lambda x: jax.jvp(lambda x: f(x, 0.0), (x,), (1.0,)))
    (_, tangent), found = pushed(2.0)
    assert tangent == 0.0
    assert found["h"]["tangent"] == {"x": 1.0, "y": 0.0}
    gradient, found = save_intermediates(jax.grad(f))(2.0, 0.0)
    assert gradient == 0.0
    assert found["h"]["cotangent"] == {"x": 0.0, "y": jnp.inf}


class TestNoDerivativeExists:
    """Where a frozen leaf has no derivative, the function works as before, and the leaf has `None`."""

    def test_in_a_while_loop(self):
        def f(x, y, z):
            tree = sow({"x": x, "y": y}, "h")
            n = jax.lax.while_loop(lambda n: n < 8, lambda n: n + tree["y"], jnp.float32(1.0))
            other = sow({"x": x, "z": z}, "other")
            return tree["x"] ** 2 * n * other["z"]

        gradient, found = save_intermediates(jax.grad(f))(3.0, 5.0, 2.0)
        assert gradient == 132.0
        assert found["h"]["primal"] == {"x": 3.0, "y": 5.0}
        assert found["h"]["cotangent"] == {"x": 132.0, "y": None}
        assert found["other"]["cotangent"] == {"x": 0.0, "z": 99.0}

    def test_in_an_input_of_a_component(self):
        @component(framework="jax")
        def scale(x: Scalar, factor: Array[(), Float32]) -> Scalar:
            return x * factor

        def f(x, y):
            tree = sow({"x": x, "factor": y}, "h")
            return apply_component(scale, tree, inline=False)["result"] ** 2

        gradient, found = save_intermediates(jax.grad(f))(3.0, 5.0)
        assert gradient == 150.0
        assert found["h"]["cotangent"] == {"x": 150.0, "factor": None}


WRAPPERS = {
    "plain": lambda inner: inner,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda inner: lambda x, y: jax.lax.cond(x[0] < 9, inner, lambda x, y: x, x, y),
}


def make_program(kinds, wrapper):
    """A tree with leaves of these kinds, sown inside a transformation."""
    make = {
        "moving": lambda n, x, y: jnp.sin(x * (n + 1)),
        "frozen": lambda n, x, y: y * (n + 1.0),
        "constant": lambda n, x, y: n + 0.5,
        "stopped": lambda n, x, y: jax.lax.stop_gradient(x) + n,
        "int": lambda n, x, y: n,
    }

    def program(mark, x, y):
        def inner(x, y, i=None):
            tree = mark([make[kind](n, x, y) for n, kind in enumerate(kinds)], i)
            return x * 0.5 + tail(tree) * 0.1

        if wrapper == "scan":
            end = jax.lax.scan(lambda c, i: (inner(c, y, i), None), x, jnp.arange(2))[0]
        elif wrapper == "vmap":
            end = jax.vmap(inner)(x, y, jnp.arange(2))
        else:
            end = WRAPPERS[wrapper](inner)(x, y)
        return jnp.sum(end)

    return program


@given(
    st.lists(st.sampled_from(["moving", "frozen", "constant", "stopped", "int"]), max_size=3),
    st.sampled_from([*WRAPPERS, "scan", "vmap"]),
)
@settings(max_examples=15)
def test_random_trees_in_transformations(kinds, wrapper):
    program = make_program(["moving", *kinds], wrapper)

    def f(x, y):
        return program(sown, x, y)

    gradient, found = save_intermediates(jax.grad(f))(X, Y)
    np.testing.assert_allclose(gradient, jax.grad(f)(X, Y), rtol=1e-5)
    check(
        found["h"]["cotangent"],
        reference(program, length=2 if wrapper in ("scan", "vmap") else None),
    )
