"""Components in CasADi: first and second derivatives against JAX, Ipopt on them, errors that are not lost."""

import gc
import threading
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import Component, ComponentError, InputError
from chainrule.runtime import (
    Array,
    Complex128,
    Differentiable,
    Float64,
    SparseArray,
    component,
    load_component,
)

ca = pytest.importorskip("casadi")

import chainrule.casadi  # noqa: E402

Vector = Differentiable[Array[("n",), Float64]]
Matrix = Differentiable[Array[(2, 2), Float64]]
X, M = np.array([1.0, 2.0, 3.0]), np.array([[1.0, 2.0], [3.0, 4.0]])


def value(x, m):
    return jnp.sum(x**3) * m[0, 1] + jnp.sum(m**2)


@component(framework="jax")
def mixed(
    x: Vector, m: Matrix, mode: str = "a"
) -> tuple[Differentiable[Float64], Differentiable[Array[(2,), Float64]]]:
    return value(x, m), m @ x[:2]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def f():
    return chainrule.casadi.function(
        Component.from_api(mixed), {"x": np.ones(3), "m": np.ones((2, 2))}
    )


def test_values_names_and_sizes(f):
    assert f.name_in() == ["x", "m"]
    assert f.name_out() == ["result_0", "result_1"]
    assert [f.size1_in(k) for k in range(2)] == [3, 4]
    first, second = f(X, M.ravel())
    np.testing.assert_allclose(first, value(X, M))
    np.testing.assert_allclose(
        second.full().ravel(), M @ X[:2]
    )  # matrices are flattened in C order
    with pytest.raises(RuntimeError):
        f(np.ones(2), M.ravel())


def test_a_missing_example_is_asked_for():
    with Component.from_source(f"{__file__}:mixed") as far:
        for each in (mixed, far):
            with pytest.raises(
                InputError, match=r"pass an example of all of them, example=\{'x': …\}"
            ):
                chainrule.casadi.function(each)
            with pytest.raises(InputError, match=r"^apply: at 'm': Field required"):
                chainrule.casadi.function(each, {"x": np.ones(3)})


def test_derivatives(f):
    x, m = ca.MX.sym("x", 3), ca.MX.sym("m", 4)
    first, second = f(x, m)
    v, u = ca.DM([1.0, -1.0, 2.0]), ca.DM([1.0, 3.0])
    found = ca.Function(
        "found",
        [x, m],
        [
            ca.gradient(first, x), ca.gradient(first, m), ca.jacobian(second, m),
            ca.jtimes(second, x, v), ca.jtimes(second, x, u, True), ca.hessian(first, ca.vertcat(x))[0],
        ],
    )(X, M.ravel())  # fmt: skip
    gx, gm = jax.grad(value, (0, 1))(X, M)
    jm = jax.jacobian(lambda m: m @ X[:2])(M).reshape(2, 4)
    jx = np.concatenate([M, np.zeros((2, 1))], axis=1)
    expected = [gx, gm.ravel(), jm, jx @ [1, -1, 2], jx.T @ [1, 3], jax.hessian(value)(X, M)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.full().reshape(np.shape(other)), other, atol=1e-12)


@component(framework="jax")
def swirl(x: Vector, p: Differentiable[Float64] = 1.0) -> Vector:
    return jnp.stack([x[1] * jnp.sin(p * x[0]), p * (1 - x[0] ** 2) * x[1] - x[0]])


def test_derivatives_of_derivatives_in_both_directions():
    def rates(x, p):
        return jnp.stack([x[1] * jnp.sin(p * x[0]), p * (1 - x[0] ** 2) * x[1] - x[0]])

    at = jnp.array([0.3, -0.7]), jnp.array(1.3)
    v, w, u = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]), jnp.array([2.0, 1.5])

    def forward(x, v, p):
        return jax.jvp(lambda x: rates(x, p), (x,), (v,))[1]

    def reverse(x, u, p):
        return jax.vjp(lambda x: rates(x, p), x)[1](u)[0]

    f = chainrule.casadi.function(swirl, {"x": np.zeros(2)})
    x, p, a = ca.MX.sym("x", 2), ca.MX.sym("p"), ca.MX.sym("a", 2)
    pushed, pulled = ca.jtimes(f(x, p), x, a), ca.jtimes(f(x, p), x, a, True)
    results = [
        ca.jtimes(e, by, ca.DM(np.atleast_1d(np.asarray(s))), transposed)
        for e in (pushed, pulled)
        for by, seeds in ((x, (w, u)), (p, (1.0, u)), (a, (w, u)))
        for s, transposed in zip(seeds, (False, True), strict=True)
    ]
    found = ca.Function("found", [x, p, a], results)(np.asarray(at[0]), 1.3, np.asarray(v))
    expected = []
    for function in (forward, reverse):
        for k, tangent in ((0, w), (2, jnp.array(1.0)), (1, w)):
            inputs = [at[0], v, at[1]]

            def one(z, k=k, inputs=inputs, function=function):
                return function(*inputs[:k], z, *inputs[k + 1 :])

            expected.append(jax.jvp(one, (inputs[k],), (tangent,))[1])
            expected.append(jax.vjp(one, inputs[k])[1](u)[0])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.full().ravel(), np.ravel(other), rtol=1e-10)


@pytest.mark.parametrize("kind", ["cvodes", "idas", "collocation", "rk"])
def test_integrators_and_their_sensitivities(kind):
    @component(framework="jax")
    def decay(x: Vector, k: Differentiable[Float64]) -> Vector:
        return -k * x**2  # x(t) = x₀ / (1 + k t x₀)

    f = chainrule.casadi.function(decay, {"x": np.ones(2), "k": 1.0})
    x, k = ca.MX.sym("x", 2), ca.MX.sym("k")
    integrator = ca.integrator("i", kind, {"x": x, "p": k, "ode": f(x, k)}, 0, 1.0)
    end = ca.sum1(integrator(x0=[1.0, 2.0], p=k)["xf"])
    outputs = [end, ca.jacobian(end, k), ca.hessian(end, k)[0]]
    found = ca.Function("found", [k], outputs)(0.5)

    def closed(k):
        return 1 / (1 + k) + 2 / (1 + 2 * k)

    expected = [closed(0.5), jax.grad(closed)(0.5), jax.grad(jax.grad(closed))(0.5)]
    np.testing.assert_allclose([e.full().item() for e in found], expected, rtol=1e-4)


@component(framework="jax")
def rosenbrock(x: Vector) -> Differentiable[Float64]:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


QUIET = {"print_time": False, "ipopt.print_level": 0, "ipopt.sb": "yes"}


@pytest.mark.parametrize("hessian", ["exact", "limited-memory"])
def test_ipopt(hessian):
    f = chainrule.casadi.function(rosenbrock, {"x": np.zeros(3)})
    x = ca.MX.sym("x", 3)
    options = {**QUIET, "ipopt.hessian_approximation": hessian}
    solver = ca.nlpsol("s", "ipopt", {"x": x, "f": f(x), "g": ca.sum1(x)}, options)
    found = solver(x0=[0, 0, 0], lbg=-10, ubg=10)
    np.testing.assert_allclose(found["x"].full().ravel(), 1.0, atol=1e-5)
    assert solver.stats()["success"]


def test_opti_and_callbacks_that_nobody_holds():
    opti = ca.Opti()
    x = opti.variable(2)
    f = chainrule.casadi.function(rosenbrock, {"x": np.zeros(2)})
    opti.minimize(f(x))
    opti.subject_to(x[0] <= 0.5)
    opti.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes"})
    gc.collect()  # derivative functions are kept by the first one
    np.testing.assert_allclose(opti.solve().value(x), [0.5, 0.25], atol=1e-6)


def with_jacobian(apply, jacobian):
    """A component of one vector with a Jacobian by hand."""

    @component(framework="numpy")
    def plain(x: Vector) -> Vector:
        return x

    module = ModuleType("by_hand")
    vars(module).update(
        InputSchema=plain.input_schema,
        OutputSchema=plain.output_schema,
        apply=lambda inputs: {"result": apply(inputs.x)},
        jacobian=lambda inputs, jac_inputs, jac_outputs: {"result": {"x": jacobian(inputs.x)}},
    )
    return load_component(module)


def test_a_sparse_jacobian():
    def jacobian(x):
        n = x.size
        rows = np.arange(n)
        indices = np.concatenate([np.stack([rows, rows], 1), np.stack([rows[1:], rows[:-1]], 1)])
        return SparseArray((n, n), indices, np.concatenate([2 * x, -np.ones(n - 1)]))

    stencil = with_jacobian(lambda x: x**2 - np.concatenate([[0.0], x[:-1]]), jacobian)
    f = chainrule.casadi.function(stencil, {"x": np.ones(5)}, sparse=True)
    x = ca.MX.sym("x", 5)
    found = ca.Function("j", [x], [ca.jacobian(f(x), x)])(np.arange(1.0, 6.0))
    assert found.nnz() == 9
    expected = np.diag(2 * np.arange(1.0, 6.0)) - np.diag(np.ones(4), -1)
    np.testing.assert_allclose(found.full(), expected)
    np.testing.assert_allclose(f.jacobian()(np.arange(1.0, 6.0), 0).full(), expected)


def test_entries_at_one_place_add_up():
    twice = SparseArray((2, 2), [[0, 0], [0, 0], [1, 1]], [1.0, 2.0, 3.0])
    triple = with_jacobian(lambda x: 3 * x, lambda x: twice)
    f = chainrule.casadi.function(triple, {"x": np.ones(2)}, sparse=True)
    np.testing.assert_allclose(f.jacobian()(np.ones(2), 0).full(), 3 * np.eye(2))


def test_entries_that_the_example_does_not_have_are_refused():
    def jacobian(x):
        order = np.argsort(x)
        return SparseArray((2, 2), np.stack([[0, 1], order], 1), np.ones(2))

    f = chainrule.casadi.function(with_jacobian(np.sort, jacobian), {"x": [1.0, 2.0]}, sparse=True)
    with pytest.raises(RuntimeError):
        f.jacobian()([2.0, 1.0], 0)
    with pytest.raises(ComponentError, match="other non-zero entries than in the example"):
        f.raise_error()


def test_a_component_without_derivatives():
    @component
    def plain(x: Vector) -> Differentiable[Float64]:
        return float(np.sum(x**2))

    x = ca.MX.sym("x", 2)
    without = chainrule.casadi.function(plain, {"x": np.ones(2)})
    with pytest.raises(RuntimeError):
        ca.Function("g", [x], [ca.gradient(without(x), x)])
    f = chainrule.casadi.function(plain, {"x": np.ones(2)}, finite_differences=True)
    found = ca.Function("g", [x], [ca.gradient(f(x), x)])([1.0, 3.0])
    np.testing.assert_allclose(found.full().ravel(), [2, 6], rtol=1e-4)


def test_the_authors_error_comes_out_after_the_solve():
    @component(derivatives="finite")
    def fragile(x: Vector) -> Differentiable[Float64]:
        if x[0] > 0.4:
            raise ArithmeticError("no convergence")
        return float(np.sum((x - 1) ** 2))

    f = chainrule.casadi.function(fragile, {"x": np.zeros(2)})
    with pytest.raises(RuntimeError, match="no convergence"):
        f([1.0, 0.0])
    with pytest.raises(ComponentError, match="no convergence"):
        f.raise_error()
    assert f.error is None
    f.raise_error()  # nothing is left
    x = ca.MX.sym("x", 2)
    options = {**QUIET, "ipopt.hessian_approximation": "limited-memory"}
    solver = ca.nlpsol("s", "ipopt", {"x": x, "f": f(x)}, options)
    solver(x0=[0.0, 0.0])
    with pytest.raises(ComponentError, match="no convergence"):
        f.raise_error()


def test_complex_numbers_are_refused_by_name():
    @component(framework="jax")
    def waves(x: Vector) -> Differentiable[Array[("n",), Complex128]]:
        return x * (1 + 2j)

    with pytest.raises(InputError, match="result is complex128, and CasADi"):
        chainrule.casadi.function(waves, {"x": np.ones(2)})


def test_arguments_of_another_size_are_refused_by_casadi(f):
    for wrong in ((np.ones(4), M.ravel()), (X, M)):
        with pytest.raises(RuntimeError, match="multiple arguments"):
            f(*wrong)
    assert float(f(X, M.ravel())[0]) == pytest.approx(float(value(X, M)))


def test_nan_and_threads(f):
    first, _ = f([np.nan, 0.0, 0.0], M.ravel())
    assert np.isnan(float(first))
    found = {}

    def run(k):
        found[k] = float(f([k, 0.0, 0.0], M.ravel())[0])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: 2 * k**3 + 30.0 for k in range(3)}
