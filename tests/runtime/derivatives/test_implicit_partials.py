"""Implicit functions whose author gives the partial derivatives of the residual."""

from collections import Counter

import numpy as np
import pytest
from pydantic import BaseModel
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

from chainrule.errors import ComponentError
from chainrule.runtime import Array, Differentiable, Float64, load_component
from chainrule.runtime.derivatives import ImplicitFunction, Products
from chainrule.runtime.testing import check_gradients

N, M = 81, 128
LAPLACE = diags_array([-np.ones(N - 1), 2.5 * np.ones(N), -np.ones(N - 1)], offsets=[-1, 0, 1])
SOURCE = np.random.default_rng(0).normal(size=(N, M))
INPUTS = {"x": np.random.default_rng(1).normal(size=M)}
U = np.linspace(-1, 1, N)
V = np.linspace(0, 1, M)
PATHS = ({"x"}, {"u"})


def residual(inputs, outputs):
    u = outputs["u"]
    return {"r": LAPLACE @ u + 0.1 * u**3 - SOURCE @ inputs["x"]}


def slope(outputs):
    return csc_array(LAPLACE + diags_array(0.3 * outputs["u"] ** 2))


def solve(inputs):
    u = np.zeros(N)
    for _ in range(30):
        u = u - splu(slope({"u": u})).solve(residual(inputs, {"u": u})["r"])
    return {"u": u}


DENSE = {
    "by_inputs": lambda x, y: {"r": {"x": -SOURCE}},
    "by_outputs": lambda x, y: {"r": {"u": slope(y).toarray()}},
}
SPARSE = {"by_inputs": lambda x, y: csc_array(-SOURCE), "by_outputs": lambda x, y: slope(y)}
PRODUCTS = {
    "by_inputs": Products(
        push=lambda x, y, v: {"r": -SOURCE @ v["x"]}, pull=lambda x, y, w: {"x": -SOURCE.T @ w["r"]}
    ),
    "by_outputs": Products(
        push=lambda x, y, v: {"r": slope(y) @ v["u"]},
        pull=lambda x, y, w: {"u": slope(y).T @ w["r"]},
    ),
}
SOLVES = {
    "by_inputs": PRODUCTS["by_inputs"],
    "solve_linear": lambda x, y, right: {"u": splu(slope(y)).solve(right["r"])},
    "solve_transpose": lambda x, y, right: {"r": splu(slope(y)).solve(right["u"], trans="T")},
}
VARIANTS = {
    "differences": {},
    "dense": DENSE,
    "sparse": SPARSE,
    "products": PRODUCTS,
    "solves": SOLVES,
    "half": {"by_outputs": DENSE["by_outputs"]},
}


@pytest.fixture(scope="module")
def jacobian():
    return np.linalg.solve(slope(solve(INPUTS)).toarray(), SOURCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_to_give_them(variant, jacobian):
    function = ImplicitFunction(solve, residual, **VARIANTS[variant])
    tolerance = {"rtol": 1e-6, "atol": 1e-7}
    pulled = function.vector_jacobian_product(INPUTS, *PATHS, {"u": U})["x"]
    np.testing.assert_allclose(pulled, U @ jacobian, **tolerance)
    pushed = function.jacobian_vector_product(INPUTS, *PATHS, {"x": V})["u"]
    np.testing.assert_allclose(pushed, jacobian @ V, **tolerance)
    found = function.jacobian(INPUTS, *PATHS)["u"]["x"]
    np.testing.assert_allclose(found, jacobian, **tolerance)


@pytest.mark.parametrize("variant", ["dense", "sparse", "products", "solves"])
def test_a_vjp_evaluates_the_residual_once(variant):
    calls = Counter()

    def counted(inputs, outputs):
        calls["residual"] += 1
        return residual(inputs, outputs)

    function = ImplicitFunction(solve, counted, **VARIANTS[variant])
    function.apply(INPUTS)
    function.vector_jacobian_product(INPUTS, *PATHS, {"u": U})
    assert calls["residual"] == 1  # for the names and shapes of the equations
    function.jacobian_vector_product(INPUTS, *PATHS, {"x": V})
    assert calls["residual"] == 2


def test_a_vjp_is_one_transposed_solve_and_one_product():
    calls = Counter()

    def count(name, function):
        def counted(*arguments):
            calls[name] += 1
            return function(*arguments)

        return counted

    function = ImplicitFunction(
        count("solve", solve),
        residual,
        by_inputs=Products(
            push=count("push", PRODUCTS["by_inputs"].push),
            pull=count("pull", PRODUCTS["by_inputs"].pull),
        ),
        solve_linear=count("solve_linear", SOLVES["solve_linear"]),
        solve_transpose=count("solve_transpose", SOLVES["solve_transpose"]),
    )
    function.apply(INPUTS)
    function.vector_jacobian_product(INPUTS, *PATHS, {"u": U})
    assert calls == {"solve": 1, "solve_transpose": 1, "pull": 1}
    function.jacobian_vector_product(INPUTS, *PATHS, {"x": V})
    assert calls == {
        "solve": 1, "solve_transpose": 1, "pull": 1, "solve_linear": 1, "push": 1,
    }  # fmt: skip


def test_several_equations_unknowns_and_inputs():
    # a y = b and z = y², with a 2 × 2 block structure of which one block is zero.
    def two(inputs, outputs):
        return {
            "p": inputs["a"] * outputs["y"] - inputs["b"],
            "q": outputs["z"] - outputs["y"] ** 2,
        }

    def matrices(inputs, outputs):
        a, y = inputs["a"], outputs["y"]
        return {
            "p": {"y": np.diag(a), "z": np.zeros((3, 3))},
            "q": {"y": np.diag(-2 * y), "z": diags_array(np.ones(3))},
        }

    function = ImplicitFunction(
        lambda x: {"y": x["b"] / x["a"], "z": (x["b"] / x["a"]) ** 2},
        two,
        by_inputs=lambda x, y: {
            "p": {"a": np.diag(y["y"]), "b": -np.eye(3)},
            "q": {"a": np.zeros((3, 3)), "b": np.zeros((3, 3))},
        },
        by_outputs=matrices,
    )
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, -1.0, 2.0])
    for paths in ({"a"}, {"b"}, {"a", "b"}):
        pulled = function.vector_jacobian_product({"a": a, "b": b}, paths, {"z"}, {"z": np.ones(3)})
        expected = {"a": -2 * b**2 / a**3, "b": 2 * b / a**2}
        assert pulled.keys() == paths
        for path in paths:
            np.testing.assert_allclose(pulled[path], expected[path], rtol=1e-12)


def test_a_matrix_of_another_shape_is_named():
    function = ImplicitFunction(
        solve, residual, by_inputs=lambda x, y: SOURCE[:, :3], by_outputs=SPARSE["by_outputs"]
    )
    with pytest.raises(ComponentError, match=r"\[81, 3\], expected \[81, 128\]") as caught:
        function.vector_jacobian_product(INPUTS, *PATHS, {"u": U})
    assert caught.value.code == "bad_output"


def test_inside_a_component():
    from types import ModuleType

    class InputSchema(BaseModel):
        x: Differentiable[Array[(M,), Float64]]

    class OutputSchema(BaseModel):
        u: Differentiable[Array[(N,), Float64]]

    calls = Counter()

    def counted(inputs, outputs):
        calls["residual"] += 1
        return residual({"x": inputs.x}, outputs)

    function = ImplicitFunction(lambda inputs: solve({"x": inputs.x}), counted, **SPARSE)
    module = ModuleType("implicit")
    module.InputSchema, module.OutputSchema, module.apply = (
        InputSchema,
        OutputSchema,
        function.apply,
    )
    module.vector_jacobian_product = function.vector_jacobian_product
    module.jacobian_vector_product = function.jacobian_vector_product
    component = load_component(module)
    component.apply(INPUTS)
    pulled = component.vector_jacobian_product(INPUTS, *PATHS, {"u": U})["x"]
    assert calls["residual"] == 1
    matrix = np.linalg.solve(slope(solve(INPUTS)).toarray(), SOURCE)
    np.testing.assert_allclose(pulled, U @ matrix, rtol=1e-8)
    report = check_gradients(component, INPUTS, max_evals=300, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]
