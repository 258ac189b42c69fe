"""Functions with a derivative rule of their own: linear rules are eliminated, all others left to JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from chainrule.elimination import explain_jacobian, jacobian, linearization
from chainrule.errors import CapabilityError

X = np.array([0.3, -0.7, 1.2])


def with_pull(pull):
    """2x ↦ sin(2x)·x, with a rule for the cotangent of the sine."""
    function = jax.custom_vjp(jnp.sin)
    function.defvjp(lambda x: (jnp.sin(x), x), lambda x, u: (pull(x, u),))
    return lambda x: function(2 * x) * x


def with_push(push):
    function = jax.custom_jvp(jnp.sin)
    function.defjvp(lambda x, t: (jnp.sin(x[0]), push(x[0], t[0])))
    return lambda x: function(2 * x) * x


NOT_LINEAR = {
    "clip": lambda x, u: jnp.clip(u, -0.1, 0.1) * jnp.cos(x),
    "normalise": lambda x, u: u / (1 + jnp.linalg.norm(u)),
    "in a branch": lambda x, u: lax.cond(x[0] > 0, lambda u: jnp.maximum(u, 0.0), lambda u: u, u),
    "sign": lambda x, u: jnp.sign(u),
    "round": lambda x, u: jnp.round(2.6 * u),
    "floor": lambda x, u: jnp.floor(1.5 * u),
    "cast to int": lambda x, u: (3 * u).astype(int).astype(float),
    "plus one": lambda x, u: u + 1,
    "constant": lambda x, u: jnp.ones_like(u),
    "residual": lambda x, u: x,
    "sort": lambda x, u: jnp.sort(u),
    "product": lambda x, u: u * u[::-1],
    "cumprod": lambda x, u: jnp.cumprod(u),
    "one-hot": lambda x, u: jax.nn.one_hot(jnp.argmax(u), u.shape[0]),
    "where with a constant": lambda x, u: jnp.where(x > 0, u, 1.0),
    "pad with a constant": lambda x, u: jnp.pad(u[1:], (1, 0), constant_values=3.0),
    "take out of bounds": lambda x, u: jnp.take(u, jnp.array([0, 1, 7])),
    "until small": lambda x, u: lax.while_loop(lambda c: jnp.max(c) > 0.1, lambda c: c / 2, u),
    "loop": lambda x, u: lax.fori_loop(0, 80, lambda i, c: jnp.sin(c), u),
    "affine loop": lambda x, u: lax.fori_loop(0, 80, lambda i, c: c * 0.5 + 1, u),
    "carry": lambda x, u: lax.scan(lambda c, t: (c + t, c * 0 + 1), 0.0, u)[1],
    "stop_gradient": lambda x, u: lax.stop_gradient(u) * 3,
    "cast to float32": lambda x, u: u.astype(jnp.float32).astype(u.dtype) * 2,
    "cast to bfloat16": lambda x, u: u.astype(jnp.bfloat16).astype(u.dtype) * x,
    "cast to complex64": lambda x, u: u.astype(jnp.complex64).real.astype(u.dtype),
    "cast in a loop": lambda x, u: lax.scan(
        lambda c, t: (c + t.astype(jnp.float16).astype(c.dtype), c), 0.0, u
    )[1],
    "reduce_precision": lambda x, u: lax.reduce_precision(u, 11, 20),
    "small exponents": lambda x, u: lax.reduce_precision(u, 5, 52),
    "narrow product": lambda x, u: jnp.matmul(
        jnp.outer(x, x), u, preferred_element_type=jnp.float32
    ).astype(u.dtype),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_rules_that_are_not_linear_are_left_to_jacrev(name):
    f = with_pull(NOT_LINEAR[name])
    np.testing.assert_allclose(jacobian(f)(X), jax.jacrev(f)(X), rtol=1e-10)
    with pytest.raises(CapabilityError, match="not linear") as caught:
        jacobian(f, order="reverse")(X)
    assert caught.value.code == "nonlinear_rule"
    assert "test_custom_rules.py" in str(caught.value)


def test_the_refusal_names_the_equation_and_holds_for_every_request():
    f = with_pull(NOT_LINEAR["sign"])
    for refused in (
        linearization(f),
        jacobian(f, sparse=True),
        jacobian(f, method="elimination"),
        jacobian(f, backend="native"),
    ):
        with pytest.raises(CapabilityError, match="because of `sign`"):
            refused(X)
    assert explain_jacobian(f, X).chosen == "jacrev"


@pytest.mark.parametrize("name", ["clip", "plus one", "sign"])
@pytest.mark.parametrize("loop", ["scan", "map", "fori", "while", "branch"])
def test_such_rules_inside_of_loops_and_branches(name, loop):
    step = with_pull(NOT_LINEAR[name])

    def function(x):
        if loop == "scan":
            return lax.scan(lambda c, _: (step(c), None), x, None, length=70)[0] * x
        if loop == "map":
            return lax.map(step, jnp.tile(x, (70, 1))).sum(0) * x
        if loop == "fori":
            return lax.fori_loop(0, 70, lambda i, c: step(c), x) * x
        if loop == "while":
            return lax.while_loop(lambda c: c[1] < 1, lambda c: (step(c[0]), 2), (x, 0))[0] * x
        return lax.cond(x[0] > 0, step, lambda c: c, x) * x

    with pytest.raises(CapabilityError, match="not linear"):
        jacobian(function, method="elimination")(X)
    if loop != "while":  # JAX has no reverse mode for it, and the rule no forward mode
        np.testing.assert_allclose(jacobian(function)(X), jax.jacrev(function)(X), rtol=1e-10)


def test_a_tangent_rule_that_is_not_linear_is_left_to_jacfwd():
    f = with_push(lambda x, t: jnp.sign(t) * x)
    np.testing.assert_allclose(jacobian(f)(X), jax.jacfwd(f)(X), rtol=1e-10)
    with pytest.raises(CapabilityError, match="not linear"):
        jacobian(f, method="elimination")(X)


LINEAR = {
    "scale": lambda x, u: jnp.where(x > 0, u, 3 * u / x),
    "softmax": lambda x, u: jax.nn.softmax(x) * (u - (u * x).sum()),
    "matrix": lambda x, u: jnp.outer(x, x) @ u,
    "sums": lambda x, u: jnp.cumsum(u[::-1])[::-1] * x,
    "scan": lambda x, u: lax.scan(lambda c, t: (c + t, c * 2), 0.0, u)[1],
    "long scan": lambda x, u: lax.fori_loop(0, 80, lambda i, c: c * x + u, u),
    "while": lambda x, u: lax.while_loop(lambda c: c[1] < 9, lambda c: (c[0] / 2, c[1] + 1), (u, 0))[0],
    "cond": lambda x, u: lax.cond(x[0] > 0, lambda u: u * x, lambda u: jnp.zeros_like(u), u),
    "index": lambda x, u: u[np.array([2, 0, 0])] + jnp.pad(u[1:], (1, 0)),
    "dynamic index": lambda x, u: u.at[jnp.argmax(x)].set(0.0) + u[jnp.argmin(x)],
    "solve": lambda x, u: jnp.linalg.solve(jnp.outer(x, x) + jnp.eye(3), u),
    "zeros": lambda x, u: jnp.zeros_like(u),
    "cast": lambda x, u: u.astype(jnp.complex128).real * x.astype(jnp.float32),
    "reduce_precision": lambda x, u: lax.reduce_precision(u, 11, 52) * 2,
    "checkpoint": lambda x, u: jax.checkpoint(lambda u: jax.jit(jnp.sum)(u) * x)(u),
    "transform": lambda x, u: jnp.fft.irfft(jnp.fft.rfft(u), 3) * x,
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_rules_that_are_linear_are_eliminated(name):
    for function in (with_pull(LINEAR[name]), with_push(LINEAR[name])):
        is_pull = "custom_vjp" in str(jax.make_jaxpr(function)(X))
        reference = (jax.jacrev if is_pull else jax.jacfwd)(function)(X)
        for order in ("forward", "reverse"):
            found = jacobian(function, order=order)(X)
            np.testing.assert_allclose(found, reference, rtol=1e-6, atol=1e-9)


def test_rules_that_cast_to_the_precision_of_operands_or_results_are_eliminated():
    """What is computed in float32 and given back in bfloat16 is rounded as any bfloat16 is."""
    matrix = jnp.asarray([[0.5, 2.0, 0.25], [1.0, -0.25, 4.0]], jnp.float32)

    @jax.custom_vjp
    def inside(x):  # bfloat16 → bfloat16
        return x * 2

    def pull(x, u):
        return ((u.astype(jnp.float32) * 2).astype(x.dtype),)

    inside.defvjp(lambda x: (x * 2, x), pull)

    @jax.custom_vjp
    def product(x):  # bfloat16 → float32
        return matrix @ x.astype(jnp.float32)

    product.defvjp(lambda x: (product(x), x), lambda x, u: ((u @ matrix).astype(x.dtype),))
    x = jnp.asarray(X, jnp.bfloat16)
    for function in (inside, product):
        found = jacobian(lambda x, f=function: f(x) * 2, order="reverse")(x)
        expected = jax.jacrev(lambda x, f=function: f(x) * 2)(x)
        np.testing.assert_array_equal(found.astype(float), expected.astype(float))


def test_a_rule_may_apply_the_function_to_the_tangent_or_cotangent():
    """The rule is run, not differentiated; its derivative would be itself again, without end."""

    @jax.custom_jvp
    def pushed(x):
        return x * 1.5

    pushed.defjvp(lambda x, t: (pushed(x[0]), pushed(t[0]) * x[0]))

    @jax.custom_vjp
    def pulled(x):
        return x * 1.5

    pulled.defvjp(lambda x: (pulled(x), x), lambda x, u: (pulled(u) * x,))
    for function in (pushed, pulled):
        for settings_ in ({}, {"method": "elimination"}):
            found = jacobian(lambda x, f=function: f(2 * x) * 3, **settings_)(X)
            np.testing.assert_allclose(found, np.diag(2 * X * 1.5 * 2 * 3))


def test_a_rule_is_run_also_where_it_calls_a_function_with_another_rule():
    """A straight-through estimator inside of a rule rounds the cotangent: its own rule is not asked."""

    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)

    rounded.defjvp(lambda x, t: (rounded(x[0]), t[0]))
    function = with_pull(lambda x, u: rounded(3 * u))
    np.testing.assert_allclose(jacobian(function)(X), jax.jacrev(function)(X))


STEPS = {
    "scale": lambda x, u, v: u * x,
    "add": lambda x, u, v: u + v,
    "subtract": lambda x, u, v: u - v,
    "mask": lambda x, u, v: jnp.where(x > 0, u, v),
    "matrix": lambda x, u, v: jnp.outer(x, jnp.cos(x)) @ u,
    "turn": lambda x, u, v: u[::-1],
    "total": lambda x, u, v: jnp.broadcast_to(u.sum(), u.shape),
    "branch": lambda x, u, v: lax.cond(x[0] > 0, lambda u, v: u + v, lambda u, v: v, u, v),
    "loop": lambda x, u, v: lax.scan(lambda c, t: (c + t, c * 0.5), v[0], u)[1],
    "product": lambda x, u, v: u * v,
    "square": lambda x, u, v: u**2,
    "absolute": lambda x, u, v: jnp.abs(u),
    "larger": lambda x, u, v: jnp.maximum(u, v),
    "one more": lambda x, u, v: u + 1,
    "clip": lambda x, u, v: jnp.clip(u, -1.0, 1.0),
}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9)), min_size=1, max_size=4)
)
def test_what_is_proved_linear_is_linear(steps):
    def pull(x, u):
        values = [u]
        for name, second in steps:
            values.append(STEPS[name](x, values[-1], values[second % len(values)]))
        return values[-1]

    function = with_pull(pull)
    u, v = np.array([1.5, -0.3, 0.8]), np.array([-2.0, 3.0, 0.1])
    is_linear = np.allclose(pull(X, 2 * u - 3 * v), 2 * pull(X, u) - 3 * pull(X, v), atol=1e-9)
    try:
        found = jacobian(function, method="elimination")(X)
    except CapabilityError:
        return
    assert is_linear
    np.testing.assert_allclose(found, jax.jacrev(function)(X), rtol=1e-9, atol=1e-12)


def test_a_loop_inside_of_a_function_with_its_own_tangents_is_no_obstacle_to_a_reverse_sweep():
    @jax.custom_jvp
    def root(a):
        """Newton's method for x² = a."""

        def step(state):
            x, _ = state
            better = (x + a / x) / 2
            return better, jnp.abs(better - x).max()

        return jax.lax.while_loop(lambda state: state[1] > 1e-12, step, (a + 1.0, jnp.inf))[0]

    root.defjvp(lambda primals, tangents: (root(*primals), tangents[0] / (2 * root(*primals))))
    a = np.linspace(1.0, 4.0, 30)

    def total(a):
        return (root(a) * a).sum()

    assert explain_jacobian(total, a).chosen == "jacrev"
    np.testing.assert_allclose(jacobian(total)(a), 1.5 * np.sqrt(a), rtol=1e-9)


def test_a_rule_that_gets_zeros_for_a_constant_operand_is_linear():
    # The rule of xlogy(n, x) adds ṅ·log(x) to ẋ·n/x, with ṅ = 0.
    counts = np.array([1.0, 2.0, 0.0])
    found = jacobian(lambda x: jax.scipy.special.xlogy(counts, x), sparse=True)(X**2)
    assert found.nse == 3
    np.testing.assert_allclose(found.todense(), np.diag(counts / X**2), rtol=1e-6)


def test_a_loop_over_tangents_is_an_obstacle():
    @jax.custom_jvp
    def halved(x):
        return jax.lax.while_loop(lambda state: state[0] < 3, _halve, (0, x))[1]

    halved.defjvp(lambda primals, tangents: (halved(*primals), halved(*tangents)))
    x = np.ones(30)
    assert (
        explain_jacobian(lambda x: halved(x).sum(), x).left_out["jacrev"].startswith("JAX cannot")
    )
    np.testing.assert_allclose(jacobian(lambda x: halved(x).sum())(x), np.full(30, 0.125))


def _halve(state):
    count, x = state
    return count + 1, x / 2
