import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.errors import ComponentError, DefinitionError, PathError
from chainrule.runtime.derivatives import ImplicitFunction, Products, finite_difference_jacobian

MATRIX = np.random.default_rng(0).normal(size=(4, 4)) + 4 * np.eye(4)


def residual(inputs, outputs):
    y = outputs["y"]
    return {"r": MATRIX @ y + 0.1 * y**3 - inputs["b"] * inputs["k"]}


def solve(inputs):
    y = np.zeros(4)
    for _ in range(40):
        slope = MATRIX + np.diag(0.3 * y**2)
        y = y - np.linalg.solve(slope, residual(inputs, {"y": y})["r"])
    return {"y": y}


@pytest.fixture
def inputs():
    return {"b": np.random.default_rng(1).normal(size=4), "k": np.float64(1.5), "name": "test"}


@pytest.fixture
def slope(inputs):
    return MATRIX + np.diag(0.3 * solve(inputs)["y"] ** 2)


def expected_jacobian(inputs, slope):
    return np.linalg.solve(slope, inputs["k"] * np.eye(4)), np.linalg.solve(slope, inputs["b"])


VARIANTS = {
    "dense": {},
    "complex": {"algorithm": "complex_step"},
    "sparse": {"sparsity": np.ones((4, 4), bool)},
    "named sparse": {"sparsity": {"r": {"y": np.ones((4, 4), bool)}}},
    "own solver": {
        "solve_linear": lambda i, o, right: {
            "y": np.linalg.solve(MATRIX + np.diag(0.3 * o["y"] ** 2), right["r"])
        },
        "solve_transpose": lambda i, o, right: {
            "r": np.linalg.solve((MATRIX + np.diag(0.3 * o["y"] ** 2)).T, right["y"])
        },
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_against_closed_form(inputs, slope, variant):
    function = ImplicitFunction(solve, residual, **VARIANTS[variant])
    by_b, by_k = expected_jacobian(inputs, slope)
    jacobian = function.jacobian(inputs, {"b", "k"}, {"y"})
    np.testing.assert_allclose(jacobian["y"]["b"], by_b, atol=1e-9)
    np.testing.assert_allclose(jacobian["y"]["k"], by_k, atol=1e-9)
    v, u = np.random.default_rng(2).normal(size=(2, 4))
    pushed = function.jacobian_vector_product(inputs, {"b", "k"}, {"y"}, {"b": v, "k": 2.0})
    np.testing.assert_allclose(pushed["y"], by_b @ v + 2.0 * by_k, atol=1e-9)
    pulled = function.vector_jacobian_product(inputs, {"b", "k"}, {"y"}, {"y": u})
    np.testing.assert_allclose(pulled["b"], u @ by_b, atol=1e-9)
    np.testing.assert_allclose(pulled["k"], u @ by_k, atol=1e-9)


def test_against_differences_through_the_solver(inputs):
    through = finite_difference_jacobian(solve, inputs, {"b", "k"}, {"y"}, eps="auto")
    implicit = ImplicitFunction(solve, residual).jacobian(inputs, {"b", "k"}, {"y"})
    for path in ("b", "k"):
        np.testing.assert_allclose(implicit["y"][path], through["y"][path], atol=1e-8)


def test_the_solver_runs_once_for_apply_and_its_derivatives(inputs):
    calls = []

    def counted(inputs):
        calls.append(1)
        return solve(inputs)

    function = ImplicitFunction(counted, residual)
    function.apply(inputs)
    function.vector_jacobian_product(inputs, {"b"}, {"y"}, {"y": np.ones(4)})
    function.jacobian_vector_product(inputs, {"b"}, {"y"}, {"b": np.ones(4)})
    assert len(calls) == 1
    function.apply(inputs | {"b": inputs["b"] + 1.0})
    function.apply(inputs | {"name": "other"})
    assert len(calls) == 3


def test_the_caller_may_change_what_it_got(inputs):
    function = ImplicitFunction(solve, residual)
    first = function.apply(inputs)
    first["y"][:] = 0.0
    np.testing.assert_array_equal(function.apply(inputs)["y"], solve(inputs)["y"])


def test_only_some_outputs_are_unknowns(inputs, slope):
    function = ImplicitFunction(
        lambda i: solve(i) | {"iterations": 40, "norm": 1.0}, residual, unknowns={"y"}
    )
    by_b, _ = expected_jacobian(inputs, slope)
    found = function.jacobian(inputs, {"b"}, {"y"})
    np.testing.assert_allclose(found["y"]["b"], by_b, atol=1e-9)


def test_residual_must_determine_the_unknowns(inputs):
    function = ImplicitFunction(lambda i: solve(i) | {"norm": 1.0}, residual)
    with pytest.raises(DefinitionError, match="4 elements for 5 unknowns") as caught:
        function.jacobian(inputs, {"b"}, {"y"})
    assert caught.value.code == "residual_size_mismatch"


@pytest.mark.parametrize("sparsity", [None, np.eye(2, dtype=bool)])
def test_a_residual_that_determines_nothing_is_named(sparsity):
    flat = ImplicitFunction(
        lambda inputs: {"y": np.zeros(2)},
        residual=lambda inputs, outputs: {"r": outputs["y"] ** 2 - inputs["a"]},
        sparsity=None if sparsity is None else {"r": {"y": sparsity}},
    )
    with pytest.raises(ComponentError, match="singular") as caught:
        flat.vector_jacobian_product({"a": np.zeros(2)}, {"a"}, {"y"}, {"y": np.ones(2)})
    assert caught.value.code == "residual_singular"


def test_outputs_that_the_residual_does_not_determine_have_no_derivative():
    """They had the derivative zero."""
    root = ImplicitFunction(
        lambda inputs: {"y": np.sqrt(inputs["a"]), "total": np.sqrt(inputs["a"]).sum()},
        lambda inputs, outputs: {"r": outputs["y"] ** 2 - inputs["a"]},
        unknowns=["y"],
    )
    at = {"a": np.array([4.0, 9.0])}
    for call in (
        lambda: root.vector_jacobian_product(at, {"a"}, {"total"}, {"total": 1.0}),
        lambda: root.jacobian_vector_product(at, {"a"}, {"total"}, {"a": np.ones(2)}),
        lambda: root.jacobian(at, {"a"}, {"y", "total"}),
    ):
        with pytest.raises(PathError, match="Add an equation for 'total'"):
            call()
    # With an equation of its own it has one: Σ√a has the gradient 1 / (2√a).
    whole = ImplicitFunction(
        root.solve,
        lambda inputs, outputs: {
            "r": outputs["y"] ** 2 - inputs["a"],
            "s": outputs["total"] - outputs["y"].sum(),
        },
    )
    found = whole.vector_jacobian_product(at, {"a"}, {"total"}, {"total": 1.0})["a"]
    np.testing.assert_allclose(found, [0.25, 1 / 6], rtol=1e-7)


@pytest.mark.parametrize("as_products", [False, True])
def test_complex_unknowns(as_products):
    """y = √a has the derivative 1 / (2√a), a complex number that products multiply without conjugating."""
    slope = lambda inputs, outputs: np.diag(2 * outputs["y"])  # noqa: E731
    products = Products(
        lambda inputs, outputs, vector: {"r": 2 * outputs["y"] * vector["y"]},
        lambda inputs, outputs, vector: {"y": 2 * outputs["y"] * vector["r"]},
    )
    root = ImplicitFunction(
        lambda inputs: {"y": np.sqrt(inputs["a"])},
        lambda inputs, outputs: {"r": outputs["y"] ** 2 - inputs["a"]},
        by_outputs=products if as_products else slope,
        by_inputs=lambda inputs, outputs: -np.eye(2),
    )
    a, vector = np.array([3 + 4j, 2j]), np.array([1 + 1j, 2 - 1j])
    expected = 0.5 / np.sqrt(a) * vector
    pulled = root.vector_jacobian_product({"a": a}, {"a"}, {"y"}, {"y": vector})["a"]
    pushed = root.jacobian_vector_product({"a": a}, {"a"}, {"y"}, {"a": vector})["y"]
    np.testing.assert_allclose(pulled, expected, rtol=1e-10)
    np.testing.assert_allclose(pushed, expected, rtol=1e-10)
    np.testing.assert_allclose(
        root.jacobian({"a": a}, {"a"}, {"y"})["y"]["a"], np.diag(0.5 / np.sqrt(a)), rtol=1e-10
    )


@pytest.mark.parametrize("as_products", [False, True])
def test_real_inputs_of_complex_unknowns_have_real_cotangents(as_products):
    """y = √(a + i) of a real a has J = 1 / (2y), and the cotangent of a real input is Re(Jᵀu), as in JAX."""
    products = Products(
        lambda inputs, outputs, vector: {"r": -vector["a"]},
        lambda inputs, outputs, vector: {"a": -vector["r"]},
    )
    root = ImplicitFunction(
        lambda inputs: {"y": np.sqrt(inputs["a"] + 1j)},
        lambda inputs, outputs: {"r": outputs["y"] ** 2 - inputs["a"] - 1j},
        by_outputs=lambda inputs, outputs: np.diag(2 * outputs["y"]),
        by_inputs=products if as_products else lambda inputs, outputs: -np.eye(2),
    )
    a, vector = np.array([3.0, -2.0]), np.array([1 + 1j, 2 - 1j])
    with jax.enable_x64(True):
        (expected,) = jax.vjp(lambda a: jnp.sqrt(a + 1j), a)[1](vector)
    pulled = root.vector_jacobian_product({"a": a}, {"a"}, {"y"}, {"y": vector})["a"]
    assert pulled.dtype == np.float64
    np.testing.assert_allclose(pulled, expected, rtol=1e-10)
