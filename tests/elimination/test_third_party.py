"""Functions of other packages, and what they use that ours do not: `auto` is right wherever JAX is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.elimination import explain_jacobian, jacobian, value_and_jacobian
from chainrule.errors import CapabilityError

X = np.array([0.5, 1.2, 2.0])
A = np.array([[3.0, 1.0, 0.0], [1.0, 4.0, 0.5], [0.0, 0.5, 5.0]])


def assert_as_jacrev(function, **settings):
    expected = jax.jacrev(function)(X)
    np.testing.assert_allclose(jacobian(function, **settings)(X), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("solver", ["LU", "GMRES"])
def test_linear_solves_of_lineax(solver):
    """Its rules apply `asarray` to the tangent, and the state of a solver must not get one."""
    lx = pytest.importorskip("lineax")
    solve = lx.GMRES(1e-12, 1e-12) if solver == "GMRES" else getattr(lx, solver)()

    def with_matrix(x):
        return lx.linear_solve(lx.MatrixLinearOperator(A + jnp.diag(x**2)), x, solve).value

    def with_function(x):
        """An open program with constants among the parameters of an equation."""
        shape = jax.ShapeDtypeStruct((3,), x.dtype)
        operator = lx.FunctionLinearOperator(lambda v: jnp.asarray(A) @ v * x.sum(), shape)
        return lx.linear_solve(operator, x, solve).value

    assert_as_jacrev(with_matrix if solver == "LU" else with_function)
    assert_as_jacrev(with_function if solver == "LU" else with_matrix, method="elimination")


def test_roots_of_optimistix():
    optx = pytest.importorskip("optimistix")

    def function(x):
        def residual(y, a):
            return jnp.asarray(A) @ y + y**3 - a

        return optx.root_find(residual, optx.Newton(1e-10, 1e-10), jnp.zeros(3), x).value

    assert_as_jacrev(function)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["Euler", "Kvaerno3"])
def test_differential_equations_of_diffrax(solver):
    """A `custom_vjp` loop that refuses derivatives with respect to some of its operands."""
    dfx = pytest.importorskip("diffrax")
    term = dfx.ODETerm(lambda t, y, a: -y * a)
    options = {}
    if solver == "Kvaerno3":
        options["stepsize_controller"] = dfx.PIDController(1e-4, 1e-6)

    def function(x):
        how = getattr(dfx, solver)()
        return dfx.diffeqsolve(term, how, 0.0, 1.0, 0.25, jnp.ones(3), x, **options).ys[0]

    assert_as_jacrev(function)


def written(x):
    ref = jax.new_ref(jnp.zeros(3))
    ref[...] = 2 * x
    ref[0] += x[1] ** 2
    return ref[...] * x


def written_in_a_loop(x):
    ref = jax.new_ref(jnp.zeros(3))

    def body(i, carry):
        ref[i] = x[i] ** 2
        return carry

    jax.lax.fori_loop(0, 3, body, 0)
    return ref[...]


def written_by_a_call(x):
    ref = jax.new_ref(x**2)

    @jax.jit
    def update(ref, x):
        ref[1] = x[0] ** 3

    update(ref, x)
    return jax.freeze(ref)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable arrays")
@pytest.mark.parametrize(
    "function", [written, written_in_a_loop, written_by_a_call, jax.jit(written)]
)
def test_mutable_arrays(function, caplog):
    assert_as_jacrev(function)
    assert_as_jacrev(function, method="jacrev")
    assert not caplog.records
    with pytest.raises(CapabilityError, match=r"new_ref.*x\.at") as caught:
        jacobian(function, method="elimination")(X)
    assert caught.value.code == "mutable_array"
    explained = explain_jacobian(function, X)
    assert explained.chosen == "jacrev"
    assert "mutable array" in explained.left_out["elimination"]


def test_a_rule_that_raises_is_named():
    """A rule may refuse; then the equation is named, and the error of the rule is the cause."""

    @jax.custom_jvp
    def refusing(x):
        return x * 2

    def rule(primals, tangents):
        raise AssertionError

    refusing.defjvp(rule)
    with pytest.raises(CapabilityError, match=r"custom_jvp_call.*AssertionError") as caught:
        jacobian(lambda x: refusing(x) * x, method="elimination")(X)
    assert caught.value.code == "no_partials"
    assert isinstance(caught.value.__cause__, AssertionError)


def test_what_has_no_derivative_is_not_differentiated():
    """As in JAX, a derivative behind `stop_gradient` is not asked for: this rule would refuse."""

    @jax.custom_jvp
    def scaled(x, scale):
        return x * scale

    @scaled.defjvp
    def rule(primals, tangents):
        raise AssertionError

    scaled.defjvps(lambda t, y, x, scale: t * scale, None)

    def function(x):
        return scaled(x, jax.lax.stop_gradient(jnp.sin(x))) + jnp.floor(x)

    assert_as_jacrev(function, method="elimination")


def looking(x):
    return jnp.sin(x) if x[0] > 0 else x**2


def shaped_by_values(x):
    return jax.ops.segment_sum(x * x, np.array([0, 1, 1]))


def closing_over_a_tracer(x):
    return jax.scipy.special.expn(2 + 0 * x, x)


@pytest.mark.parametrize("function", [looking, shaped_by_values])
def test_functions_that_jax_cannot_compile(function):
    """`jacrev` runs them, outside of `jit`; a program of their own they have not."""
    for x in (X, -X):
        found = jacobian(function)(x)
        np.testing.assert_allclose(found, jax.jacrev(function)(x), rtol=1e-12)
    (value, aux), found = value_and_jacobian(lambda x: (function(x), 7), has_aux=True)(X)
    np.testing.assert_allclose(value, function(X))
    np.testing.assert_allclose(found, jax.jacrev(function)(X))
    assert aux == 7
    with pytest.raises(jax.errors.JAXTypeError):
        jax.jit(jacobian(function))(X) if function is looking else jacobian(
            function, order="reverse"
        )(X)


def test_rules_that_close_over_a_value_that_is_being_traced():
    found = jacobian(closing_over_a_tracer)(X)
    expected = jax.jacfwd(closing_over_a_tracer)(X)
    np.testing.assert_allclose(found, expected, rtol=1e-9, equal_nan=True)


def test_the_layout_of_functions_that_jax_cannot_compile():
    def function(a, b):
        return {"s": a["x"] * b if b > 0 else b, "t": b**2}

    a, b = {"x": np.float32([1.0, 2.0])}, np.float64(3.0)
    found = jacobian(function, (0, 1))(a, b)
    expected = jax.jacrev(function, (0, 1))(a, b)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_allclose, found, expected)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, expected)
