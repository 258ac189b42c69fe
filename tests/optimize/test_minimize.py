"""Minimisation: known optima by every kind of method, and what solvers accept in silence is refused."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import Field

import chainrule
from chainrule import Component, ComponentError, InputError, minimize
from chainrule.errors import CapabilityError, StorageError
from chainrule.runtime import (
    Array,
    Bounds,
    Complex128,
    Differentiable,
    Float32,
    Float64,
    component,
    load_component,
)

Vector = Differentiable[Array[(3,), Float64]]
TARGET = np.array([1.0, 0.25, 0.25])
START = {"x": [0.1, 0.1, 0.1]}


def rosenbrock(p):
    x = jnp.concatenate([p["a"], p["b"].ravel()])
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def square(p):
    return jnp.sum((p["x"] - TARGET) ** 2)


def total(p):
    return jnp.sum(p["x"])


@component(framework="numpy", derivatives="finite")
def distance(
    x: Annotated[Vector, Field(ge=0, le=0.5)], mode: str = "fine"
) -> tuple[Differentiable[Float64], Differentiable[Float64]]:
    return float(np.sum((x - TARGET) ** 2)), float(x.sum())


@component(framework="jax")
def impedance(z: Differentiable[Array[(2,), Complex128]]) -> Differentiable[Float64]:
    return jnp.sum(jnp.abs(z - (1 + 2j)) ** 2)


def _skip_without_package(method):
    packages = {"nlopt": "nlopt", "ipopt": "casadi"}
    package = packages.get(method.partition(".")[0])
    if package is not None:
        pytest.importorskip(package)


@pytest.mark.parametrize(
    "method", ["L-BFGS-B", "SLSQP", "trust-constr", "BFGS", "Newton-CG", "optimistix.BFGS"]
)
def test_rosenbrock_over_a_pytree(method):
    start = {"b": np.zeros((1, 2), "float32"), "a": np.zeros(1)}
    found = minimize(rosenbrock, start, method=method, tolerance=1e-8)
    assert found.success, found.message
    assert found.x["b"].shape == (1, 2)
    assert (found.x["b"].dtype, found.x["a"].dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(found.x["b"], 1.0, atol=1e-3)
    assert not jax.config.jax_enable_x64


def test_bounds_come_from_the_schema_and_what_does_not_vary_stays():
    found = minimize(distance, {**START, "mode": "coarse"}, objective="result_0")
    assert found.success
    np.testing.assert_allclose(found.x["x"], [0.5, 0.25, 0.25], atol=1e-6)
    assert found.x["mode"] == "coarse"
    assert found.value == pytest.approx(0.25)
    assert found.evaluations == len(found.history) < 10
    assert found.history[-1].value <= found.history[0].value
    # At the optimum an element is at its bound, where differences step inwards.
    free = minimize(lambda p: square(p), {"x": np.full(3, 0.1)})
    np.testing.assert_allclose(free.x["x"], TARGET, atol=1e-6)


def test_bounds_that_the_schema_only_mentions():
    limits = Field(json_schema_extra={"minimum": 0, "maximum": 0.5})

    @component(derivatives="finite")
    def unchecked(x: Annotated[Vector, limits]) -> Differentiable[Float64]:
        return float(np.sum((x - TARGET) ** 2))

    found = minimize(unchecked, {"x": np.full(3, 0.1)})
    np.testing.assert_allclose(found.x["x"], [0.5, 0.25, 0.25], atol=1e-6)


@pytest.mark.filterwarnings("ignore:delta_grad == 0.0")  # scipy's advice for linear constraints
@pytest.mark.parametrize("method", ["SLSQP", "trust-constr", "nlopt.LD_SLSQP", "ipopt", "COBYQA"])
@pytest.mark.parametrize("who", ["component", "function"])
def test_constraints(method, who):
    """min |x - t|² with x ≤ 0.5 and Σx ≤ 0.8: the first element at its bound, the others share the rest."""
    _skip_without_package(method)
    if who == "component":
        found = minimize(distance, START, constraints={"result_1": Bounds(le=0.8)}, method=method)
    else:
        start = {"x": np.full(3, 0.1)}
        found = minimize(
            square, start, bounds={"x": (0, 0.5)}, constraints=[(total, Bounds(le=0.8))], method=method,
            sparse=method == "trust-constr",
        )  # fmt: skip
    assert found.success, found.message
    np.testing.assert_allclose(found.x["x"], [0.5, 0.15, 0.15], atol=2e-3)


@pytest.mark.parametrize("method", ["SLSQP", "trust-constr", "nlopt.LD_SLSQP", "ipopt"])
def test_inequality_and_equality_of_a_published_problem(method):
    """Hock and Schittkowski's problem 71, the example of Ipopt's manual."""
    found = minimize(
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        np.array([1.0, 5.0, 5.0, 1.0]),
        bounds={"x": (1, 5)},
        constraints=[(jnp.prod, Bounds(ge=25)), (lambda x: x @ x, Bounds(ge=40, le=40))],
        method=method,
    )
    assert found.success
    assert found.value == pytest.approx(17.0140173, rel=1e-6)


@pytest.mark.parametrize("method", ["SLSQP", "nlopt.LD_SLSQP", "ipopt"])
def test_equal_bounds_are_an_equality(method):
    _skip_without_package(method)
    found = minimize(
        square, {"x": np.zeros(3)}, constraints=[(total, Bounds(ge=0.9, le=0.9))], method=method
    )
    np.testing.assert_allclose(found.x["x"], TARGET - 0.2, atol=1e-5)


def test_one_evaluation_per_point():
    points = []

    def apply(x):
        points.append(x.tobytes())
        return np.sum((x - TARGET) ** 2), x.sum()

    both = chainrule.from_callable(
        apply,
        vjp=lambda primals, u: (u[0] * 2 * (primals[0] - TARGET) + u[1],),
        abstract=lambda x: (jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), x.dtype)),
    )
    # Objective and constraint are one call of the program.
    found = minimize(lambda p: both(p["x"])[0], {"x": np.zeros(3)})
    assert len(points) == len(set(points)) == found.evaluations


def test_a_component_in_single_precision_and_one_behind_a_handle():
    @component(framework="jax")
    def narrow(x: Differentiable[Array[(2,), Float32]]) -> Differentiable[Float32]:
        return jnp.sum((x - 2) ** 2)

    found = minimize(Component.from_api(narrow), {"x": [0.0, 1.0]})
    assert found.x["x"].dtype == np.float32
    np.testing.assert_allclose(found.x["x"], 2.0, atol=1e-4)


def test_products_with_the_hessian_are_asked_for_and_no_matrix(tmp_path):
    source = tmp_path / "bowl.py"
    source.write_text(BOWL)
    bowl = load_component(source)
    found = minimize(bowl, {"x": np.zeros(3)}, method="Newton-CG")
    np.testing.assert_allclose(found.x["x"], [1.0, 0.5, 0.25], rtol=1e-6)
    counted = bowl.apply({"x": np.zeros(3)})
    assert counted["products"] > 0
    assert counted["matrices"] == 0


BOWL = '''
"""f = ½ xᵀDx − Σx."""
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64, Int64

D = np.array([1.0, 2.0, 4.0])
COUNTS = {"products": 0, "matrices": 0}

class InputSchema(BaseModel):
    x: Differentiable[Array[(3,), Float64]]

class OutputSchema(BaseModel):
    f: Differentiable[Float64]
    products: Int64
    matrices: Int64

def apply(inputs):
    x = inputs.x
    return {"f": 0.5 * x @ (D * x) - x.sum(), **COUNTS}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": cotangent_vector["f"] * (D * inputs.x - 1)}

def jacobian(inputs, jac_inputs, jac_outputs):
    COUNTS["matrices"] += 1
    return {"f": {"x": D * inputs.x - 1}}

def hessian_vector_product(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
    COUNTS["products"] += 1
    return {"x": cotangent_vector["f"] * D * tangent_vector["x"]}
'''


def test_a_run_that_meets_nan_is_no_success():
    found = minimize(lambda p: jnp.where(p["x"] < 0.5, jnp.nan, p["x"]), {"x": 1.0}, method="BFGS")
    assert not found.success
    assert "not a finite number at evaluation" in found.message
    assert found.value >= 0.5
    with pytest.raises(InputError, match="at the start") as caught:
        minimize(lambda p: jnp.log(p["x"]), {"x": -1.0})
    assert caught.value.code == "not_finite"
    with pytest.raises(InputError, match=r"respect to x\[1\] is not finite at the start"):
        minimize(lambda p: jnp.sqrt(p["x"]).sum(), {"x": np.array([1.0, 0.0])})


@pytest.mark.parametrize("algorithm", ["LBFGS", "MMA", "SLSQP", "VAR2"])
def test_nlopt_ends_where_others_do(algorithm):
    """NLopt loses the exception of a function now and then, and raises its own without a word."""
    found = minimize(lambda x: 10 * x - jnp.log(x), 5.0, method=f"nlopt.LD_{algorithm}")
    assert found.success or "not a finite number" in found.message
    found = minimize(
        lambda x: x**2, 0.5, bounds={"x": (0, 1)}, method="nlopt.LD_SLSQP",
        constraints=[(lambda x: x, Bounds(ge=2))],
    )  # fmt: skip
    assert not found.success
    assert "NLopt" in found.message


def test_a_gradient_of_the_wrong_size_is_refused():
    short = chainrule.from_callable(
        lambda x: np.sum(x**2), vjp=lambda primals, u: (u * 2 * primals[0][:2],),
        abstract=lambda x: jax.ShapeDtypeStruct((), x.dtype),
    )  # fmt: skip
    with pytest.raises(ComponentError, match=r"f64\[2\] at .* where f64\[3\] was promised"):
        minimize(lambda p: short(p["x"]), {"x": np.ones(3)})


def test_the_authors_error_arrives():
    @component(derivatives="finite")
    def fragile(x: Vector) -> Differentiable[Float64]:
        if x[0] > 0.15:
            raise ArithmeticError("no convergence")
        return float(np.sum((x - TARGET) ** 2))

    with pytest.raises(ComponentError, match="no convergence"):
        minimize(fragile, START)
    pytest.importorskip("casadi")
    with pytest.raises(ComponentError, match="no convergence"):  # Ipopt would drop it
        minimize(fragile, START, method="ipopt")


def test_the_callback_ends_a_run_and_a_checkpoint_goes_on(tmp_path):
    file = tmp_path / "run" / "best.npz"
    seen = []
    start = {"a": np.zeros(1), "b": np.zeros((1, 2))}
    first = minimize(
        rosenbrock,
        start,
        callback=lambda step: seen.append(step) or len(seen) == 9,
        checkpoint=file,
    )
    assert not first.success
    assert first.message == "Stopped: the callback ended the run."
    assert first.value == min(step.value for step in seen)
    second = minimize(rosenbrock, start, checkpoint=file)
    assert second.success
    assert second.history[:9] == tuple(seen)
    assert second.history[9].value == first.value  # it began at the best point
    assert second.evaluations == len(second.history) > 9
    with pytest.raises(InputError, match=r"variables are a\[1\], b\[1, 2\]") as caught:
        minimize(square, {"x": np.zeros(3)}, checkpoint=file)
    assert caught.value.code == "bad_checkpoint"
    with pytest.raises(StorageError, match="cannot be written"):
        minimize(square, {"x": np.zeros(3)}, checkpoint=file / "below")
    file.write_bytes(b"nonsense")
    with pytest.raises(StorageError):
        minimize(rosenbrock, start, checkpoint=file)


@pytest.mark.parametrize(
    "method",
    ["L-BFGS-B", "SLSQP", "trust-constr", "TNC", "BFGS", "CG", "Newton-CG", "trust-ncg", "trust-krylov",
     "Nelder-Mead", "Powell", "COBYLA", "COBYQA", "ipopt", "nlopt.LD_SLSQP", "nlopt.LN_COBYLA",
     "optimistix.BFGS", "optimistix.NonlinearCG"],
)  # fmt: skip
def test_every_method_is_followed_stopped_and_restarted(method, tmp_path):
    _skip_without_package(method)
    file, seen = tmp_path / "best.npz", []

    def far(p):
        return jnp.sum((p["x"] - 20 * TARGET) ** 4) + jnp.sum(p["x"] ** 2)

    def stop_at_the_fourth(step):
        seen.append((step.value, float(far(step.x))))
        return step.evaluation == 4

    start = {"x": np.full(3, 0.1)}
    settings = {"method": method, "checkpoint": file}
    first = minimize(far, start, callback=stop_at_the_fourth, **settings)
    assert (first.success, first.message) == (False, "Stopped: the callback ended the run.")
    assert first.evaluations == len(first.history) == len(seen) == 4
    np.testing.assert_allclose(*zip(*seen, strict=True), rtol=1e-6)
    assert first.value == pytest.approx(min(value for value, _ in seen))
    second = minimize(far, start, **settings)
    assert second.history[:4] == first.history
    assert second.history[4].value == pytest.approx(first.value)
    assert second.value <= first.value
    third = minimize(far, start, max_evaluations=2, **settings)
    assert 0 < third.evaluations - second.evaluations <= 2


def test_constraints_hold_within_a_part_of_a_large_bound():
    """NLopt's MMA ends 0.9 beyond a bound of 10⁹: as many digits as numbers have."""
    _skip_without_package("nlopt")
    for size in (1.0, 1e9):
        found = minimize(
            lambda x: jnp.sum((x - 2.0) ** 2),
            np.zeros(2),
            constraints=[(lambda x, size=size: size * x, Bounds(le=size, ge=-3 * size))],
            method="nlopt.LD_MMA",
        )
        assert found.success, found.message
        np.testing.assert_allclose(found.x, 1.0, rtol=1e-6)
        assert found.history[0].violation == 0
        assert max(step.violation for step in found.history) < 10
    outside = minimize(
        square,
        {"x": np.full(3, 0.1)},
        constraints=[(lambda p: 1e9 * total(p), Bounds(ge=1e10))],
        bounds={"x": (0, 1)},
    )
    assert not outside.success
    assert outside.history[0].violation == pytest.approx(0.97)


def test_only_what_is_free_varies():
    @component(derivatives="finite")
    def stress(
        area: Vector, load: Differentiable[Float64] = 10.0
    ) -> tuple[Differentiable[Float64], Vector]:
        return area.sum(), load / area

    start = {"area": np.full(3, 4.0)}
    limit = {"constraints": {"result_1": Bounds(le=4.0)}, "bounds": {"area": (0.5, 10)}}
    for each in (stress, Component.from_api(stress)):
        found = minimize(each, start, free=["area"], **limit)
        assert found.success
        np.testing.assert_allclose(found.x["area"], 2.5, rtol=1e-6)
        assert found.x["load"] == 10.0
        loaded = minimize(each, start | {"load": 20.0}, free=["area"], **limit)
        np.testing.assert_allclose(loaded.x["area"], 5.0, rtol=1e-6)
    tree = {"a": np.ones(2), "b": {"c": 3.0, "d": np.float32(2.0)}}
    found = minimize(lambda p: jnp.sum((p["a"] - p["b"]["c"]) ** 2), tree, free=["a"])
    np.testing.assert_allclose(found.x["a"], 3.0, rtol=1e-6)
    assert found.x["b"] == tree["b"]
    for wrong in ("a", ["a", "b"]):
        with pytest.raises(InputError, match=r"out of a, b\.c, b\.d; found '[ab]'") as caught:
            minimize(lambda p: jnp.sum(p["a"] ** 2), tree, free=wrong)
        assert caught.value.code == "path_unknown"
    with pytest.raises(InputError, match="nothing to vary"):
        minimize(lambda p: jnp.sum(p["a"] ** 2), tree, free=[])


def test_a_bare_array_has_the_path_x():
    found = minimize(lambda x: jnp.sum((x - 2) ** 2), np.zeros(3), bounds={"x": (None, [1, 2, 3])})
    np.testing.assert_allclose(found.x, [1, 2, 2], atol=1e-6)
    with pytest.raises(InputError, match=r"for example \{'x': \(0, 1\)\}; found a tuple"):
        minimize(lambda x: jnp.sum(x**2), np.zeros(3), bounds=(0, 1))


def test_a_callback_sees_the_variables_and_the_history_does_not_keep_them():
    seen = []
    found = chainrule.minimize(
        lambda p: (p["a"] - 1.0) ** 2 + jnp.sum(p["b"] ** 2),
        {"a": 0.0, "b": np.ones(2)},
        callback=seen.append,
    )
    assert all(set(step.x) == {"a", "b"} for step in seen)
    np.testing.assert_allclose(seen[-1].x["a"], found.x["a"], atol=1e-6)
    assert all(step.x is None for step in found.history)
    assert tuple(seen) == found.history


def test_the_number_of_evaluations_is_bounded():
    found = minimize(rosenbrock, {"a": np.zeros(1), "b": np.zeros((1, 2))}, max_evaluations=3)
    assert (found.success, found.evaluations) == (False, 3)
    assert "max_evaluations" in found.message


@pytest.mark.parametrize(
    ("f", "x0", "options", "message"),
    [
        (square, {"x": np.array([1, 2, 3])}, {}, "x is a NumPy array i64[3]"),
        (square, {"x": np.zeros(3), "n": "text"}, {}, "n is"),
        (square, {"x": np.array([0, np.nan, 0])}, {}, r"element [1] of x"),
        (square, {}, {}, "nothing to vary"),
        (distance, {"x": [0.1, 0.9, 0.1]}, {"objective": "result_0"}, "element [1] is larger"),
        (square, {"x": np.ones(3)}, {"bounds": {"x": (0, 0.5)}}, "x[0] is 1, and its bounds are 0 and 0.5"),
        (square, {"x": np.ones(3)}, {"bounds": {"y": (0, 1)}}, "found y"),
        (square, {"x": np.ones(3)}, {"bounds": {"x": 3}}, "as a pair"),
        (square, {"x": np.ones(3)}, {"bounds": {"x": ([0, 0], 1)}}, "fit its shape [3]"),
        (square, {"x": np.ones(3)}, {"bounds": {"x": (2, 1)}}, "not above the upper"),
        (square, {"x": np.ones(3)}, {"bounds": "all"}, "bounds='schema'"),
        (square, {"x": np.ones(3)}, {"method": "Nonsense"}, "There is no method 'Nonsense'"),
        (square, {"x": np.ones(3)}, {"method": "optimistix.Nonsense"}, "it has BFGS"),
        (square, {"x": np.ones(3)}, {"method": "BFGS", "bounds": {"x": (0, 2)}}, "takes no bounds"),
        (square, {"x": np.ones(3)}, {"method": "CG", "constraints": [(total, Bounds(le=1))]}, "constraints"),
        (square, {"x": np.ones(3)}, {"constraints": [(total, Bounds(lt=1))]}, "cannot tell < from"),
        (square, {"x": np.ones(3)}, {"constraints": [total]}, "as pairs"),
        (square, {"x": np.ones(3)}, {"constraints": {"g": Bounds(le=1)}}, "outputs of a component"),
        (square, {"x": np.ones(3)}, {"objective": "y"}, "a function returns its objective"),
        (lambda p: p["x"], {"x": np.ones(3)}, {}, "its shape is [3]"),
        (lambda p: None, {"x": np.ones(3)}, {}, "a number or an array; found nothing"),
        (lambda p: (square(p), "more"), {"x": np.ones(3)}, {}, "a number or an array; found a tuple"),
        (square, {"x": np.ones(3)}, {"constraints": [(lambda p: [1.0], Bounds(le=1))]}, "found a list"),
        (square, np.ones(3), {"bounds": (0, 1)}, "for example {'x': (0, 1)}; found a tuple"),
        (lambda p: np.sum(np.sin(p["x"])), {"x": np.ones(3)}, {}, "cannot be traced by JAX"),
        (lambda p: p["x"].sum() if p["x"][0] > 0 else 1.0, {"x": np.ones(3)}, {}, "jax.numpy"),
        (square, {"x": np.ones(3)}, {"constraints": [(lambda p: np.sin(p["x"]), Bounds(le=1))]}, "traced"),
        (impedance, {"z": [1 + 1j, 2.0]}, {}, "z is complex128, and a solver has real numbers only"),
        (distance, START, {}, "Say which one is minimised"),
        (distance, START, {"objective": "zz"}, "no differentiable output 'zz'"),
        (square, {"x": np.ones(3)}, {"max_evaluations": 0}, "1 or more"),
        (square, {"x": np.ones(3)}, {"tolerance": -1.0}, "tolerance to be a positive number"),
        (square, {"x": np.ones(3)}, {"tolerance": np.nan}, "tolerance to be a positive number"),
        (lambda p: p["x"].sum() * 1j, {"x": np.ones(3)}, {}, "found complex128"),
        (lambda p: p["x"].astype(int).sum(), {"x": np.ones(3)}, {}, "found int"),
        (square, {"x": np.ones(3)}, {"method": "nlopt.LD_MMA", "options": {"a": 1}}, "no option 'a'"),
        (square, {"x": np.ones(3)},
         {"method": "nlopt.LD_MMA", "constraints": [(total, Bounds(ge=1, le=1))]}, "no equality constraints"),
        (square, {"x": np.ones(3)}, {"method": "nlopt.GN_DIRECT"}, "refuses this problem"),
        (distance, [1.0], {}, "as a dictionary; found a list"),
        (square, {"x": np.ones(3)}, {"bound": {"x": (0, 1)}}, "Did you mean 'bounds'?"),
        (square, {"x": np.ones(3)}, {"method": "LBFGSB"}, "Did you mean 'L-BFGS-B'?"),
        (square, {"x": np.ones(3)}, {"options": {"maxitr": 1}}, "maxitr. Did you mean 'maxiter'?"),
        (lambda p: jnp.log(p["x"]), {"x": -1.0}, {}, "is nan, which is not a finite number at the start"),
    ],
)  # fmt: skip
def test_bad_input_is_named(f, x0, options, message):
    with pytest.raises(InputError) as caught:
        minimize(f, x0, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP", "Nelder-Mead", "trust-constr"])
def test_the_message_says_whether_it_converged_and_is_not_in_capitals(method):
    found = minimize(square, {"x": np.ones(3)}, method=method)
    assert found.message.startswith(f"Converged. {method} says: ")
    assert not found.message.split(": ")[1].isupper()
    early = minimize(square, {"x": np.ones(3)}, method="Nelder-Mead", options={"maxiter": 2})
    assert early.message.startswith("Not converged. Nelder-Mead says: ")


def test_a_solver_inside_of_a_transformation_is_refused():
    def of_start(x):
        return minimize(square, {"x": x}).x["x"]

    def of_goal(goal):
        return minimize(lambda p: jnp.sum((p["x"] - goal) ** 2), {"x": np.ones(3)}).x["x"]

    for function in (jax.jit(of_start), jax.vmap(of_goal), jax.jacobian(of_goal)):
        with pytest.raises(InputError, match="values that JAX traces"):
            function(jnp.ones(3))


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "nlopt", None)
    with pytest.raises(CapabilityError, match="pip install"):
        minimize(square, {"x": np.ones(3)}, method="nlopt.LD_MMA")
