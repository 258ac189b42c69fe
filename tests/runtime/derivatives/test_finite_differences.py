import itertools
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import jax
import numpy as np
import pytest
from pydantic import BaseModel, model_validator

from chainrule.errors import CapabilityError, InputError, PathError
from chainrule.runtime import Array, BFloat16, Differentiable, Float16, Float32, Float64
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)

EXACT = ["central", "forward", "richardson", "complex_step"]
TOLERANCE = {"central": 1e-9, "forward": 1e-6, "richardson": 1e-11, "complex_step": 1e-14}
EVALUATIONS = {"central": 12, "forward": 7, "richardson": 24, "complex_step": 6}


def assert_blocks_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for out, row in expected.items():
        for path, block in row.items():
            assert found[out][path].shape == block.shape
            np.testing.assert_allclose(found[out][path], block, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("algorithm", EXACT)
def test_jacobian_against_closed_form(problem, algorithm):
    found = finite_difference_jacobian(
        problem.apply, problem.inputs, problem.input_paths, problem.output_paths,
        algorithm=algorithm, eps="auto",
    )  # fmt: skip
    assert_blocks_close(found, problem.reference, TOLERANCE[algorithm])


@pytest.mark.parametrize("algorithm", EXACT)
def test_evaluations_do_not_grow_with_outputs(problem, algorithm):
    for outputs in ({"y"}, {"y", "n.s"}):
        problem.calls = 0
        finite_difference_jacobian(
            problem.apply, problem.inputs, problem.input_paths, outputs, algorithm=algorithm
        )
        assert problem.calls == EVALUATIONS[algorithm]


@pytest.mark.parametrize("algorithm", EXACT)
def test_products_against_closed_form(problem, tangent, cotangent, algorithm):
    paths = (problem.input_paths, problem.output_paths)
    options = {"algorithm": algorithm, "eps": "auto"}
    pushed = finite_difference_jvp(problem.apply, problem.inputs, *paths, tangent, **options)
    for path, value in problem.push(tangent).items():
        np.testing.assert_allclose(pushed[path], value, atol=10 * TOLERANCE[algorithm])
    pulled = finite_difference_vjp(problem.apply, problem.inputs, *paths, cotangent, **options)
    for path, value in problem.pull(cotangent).items():
        np.testing.assert_allclose(pulled[path], value, atol=10 * TOLERANCE[algorithm])


def test_fixed_step_is_absolute():
    # The forward difference of x² is 2x + h, exactly for numbers that add without rounding.
    found = finite_difference_jacobian(
        lambda d: {"y": d["x"] ** 2}, {"x": 4.0}, {"x"}, {"y"}, algorithm="forward", eps=0.25
    )
    assert found["y"]["x"] == 8.25


def test_steps_per_path(problem, tangent):
    paths = (problem.input_paths, problem.output_paths)
    eps = {"x": 1e-5, "a.b": 1e-3}
    found = finite_difference_jacobian(problem.apply, problem.inputs, *paths, eps=eps)
    assert_blocks_close(found, problem.reference, 1e-6)
    pushed = finite_difference_jvp(problem.apply, problem.inputs, *paths, tangent, eps=eps)
    for path, value in problem.push(tangent).items():
        np.testing.assert_allclose(pushed[path], value, atol=1e-6)


@pytest.mark.parametrize("eps", [{"x": 1e-4}, {"x": 1e-4, "a.b": 1.0, "c": 1.0}, -1.0, "large"])
def test_steps_that_do_not_fit(problem, eps):
    with pytest.raises(InputError) as caught:
        finite_difference_jacobian(
            problem.apply, problem.inputs, problem.input_paths, {"y"}, eps=eps
        )
    assert caught.value.code == "bad_eps"


def test_automatic_step_scales_with_each_element():
    x = np.array([1e-12, 1e-12, 2e-12])
    found = finite_difference_jacobian(
        lambda d: {"y": np.exp(d["x"] / 1e-12)}, {"x": x}, {"x"}, {"y"}, eps="auto"
    )
    expected = np.diag(np.exp(x / 1e-12) / 1e-12)
    np.testing.assert_allclose(found["y"]["x"], expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("dtype", "x", "tolerance"),
    [
        (np.float32, 100.0, 1e-2),
        (np.float32, 1000.0, 1e-2),
        (np.float64, 1e4, 1e-3),
        (np.float64, 1e6, 1e-3),
    ],
)
def test_richardson_shortens_a_step_within_which_outputs_vary(dtype, x, tolerance):
    at = {"x": np.array([x, 0.5 * x], dtype)}

    def waves(inputs):
        return {"y": np.sin(inputs["x"]).astype(dtype)}

    how = {"algorithm": "richardson", "eps": "auto"}
    expected = np.cos(at["x"].astype(float))
    jacobian = finite_difference_jacobian(waves, at, {"x"}, {"y"}, **how)["y"]["x"]
    np.testing.assert_allclose(jacobian, np.diag(expected), atol=tolerance)
    pushed = finite_difference_jvp(waves, at, {"x"}, {"y"}, {"x": [1.0, -2.0]}, **how)["y"]
    np.testing.assert_allclose(pushed, expected * [1.0, -2.0], atol=2 * tolerance)
    pulled = finite_difference_vjp(waves, at, {"x"}, {"y"}, {"y": [1.0, -2.0]}, **how)["x"]
    np.testing.assert_allclose(pulled, expected * [1.0, -2.0], atol=2 * tolerance)


def test_noise_does_not_shorten_a_step():
    # A solver that stops at a tolerance: short steps would difference what it left.
    generator = np.random.default_rng(0)

    def solver(inputs):
        x = inputs["x"]
        return {"y": x**3 * (1 + 1e-9 * generator.normal(size=x.shape)), "zero": 0 * x}

    x = np.array([300.0, 1e5])
    found = finite_difference_jacobian(
        solver, {"x": x}, {"x"}, {"y", "zero"}, algorithm="richardson", eps="auto"
    )
    np.testing.assert_allclose(np.diag(found["y"]["x"]), 3 * x**2, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["central", "forward", "richardson"])
@pytest.mark.parametrize("x", [1e-8, 1e-12, 1e-18, 1e-300])
def test_an_input_near_zero_moves_until_the_outputs_notice(algorithm, x):
    apply = lambda d: {"y": 1.0 + 2.0 * d["x"] + np.exp(d["x"])}  # noqa: E731
    how = {"algorithm": algorithm, "eps": "auto"}
    found = finite_difference_jacobian(apply, {"x": x}, {"x"}, {"y"}, **how)
    np.testing.assert_allclose(found["y"]["x"], 3.0, rtol=1e-3)
    pushed = finite_difference_jvp(apply, {"x": x}, {"x"}, {"y"}, {"x": -2.0}, **how)
    np.testing.assert_allclose(pushed["y"], -6.0, rtol=1e-3)


@pytest.mark.parametrize("algorithm", EXACT)
def test_a_tangent_over_inputs_of_many_magnitudes(algorithm):
    # One step for all would be lost in the rounding of the large inputs, or jump over the small one.
    inputs = {"a": np.array(1e-12), "b": np.array(2.0), "c": np.array(1e9)}
    pushed = finite_difference_jvp(
        lambda d: {"y": np.stack([np.log(d["a"]) * 1e-12, d["b"] ** 2, d["c"] * 1e-9])},
        inputs, inputs.keys(), {"y"}, {"a": 1.0, "b": -2.0, "c": 3.0},
        algorithm=algorithm, eps="auto",
    )  # fmt: skip
    np.testing.assert_allclose(pushed["y"], [1.0, -8.0, 3e-9], rtol=1e-3)


class Single(BaseModel):
    x: Differentiable[Array[(None,), Float32]]


class Narrow(BaseModel):
    """A float32 field beside one that a validator computes from it."""

    x: Differentiable[Array[(None,), Float32]]
    double: Array[(None,), Float64] | None = None

    @model_validator(mode="after")
    def _compute(self):
        self.__dict__["double"] = 2.0 * self.x.astype(np.float64)
        return self


def test_float32_schema_divides_by_the_step_really_taken():
    # 1e-4 is not a float32 distance at 3: dividing by 2e-4 would be off by a part in a thousand.
    seen = []

    def apply(inputs):
        seen.append(inputs.x.dtype)
        return {"y": inputs.x.astype(np.float64) ** 2}

    inputs = Single(x=np.array([3.1, 70.3], np.float32))
    found = finite_difference_jacobian(apply, inputs, {"x"}, {"y"}, eps=1e-4)
    assert set(seen) == {np.dtype("float32")}
    np.testing.assert_allclose(np.diag(found["y"]["x"]), 2 * inputs.x, rtol=1e-6)


def test_points_go_through_the_schema():
    inputs = Narrow(x=np.array([1.0, 2.0], np.float32))
    found = finite_difference_jacobian(
        lambda model: {"y": model.double**2}, inputs, {"x"}, {"y"}, eps="auto"
    )
    np.testing.assert_allclose(found["y"]["x"], np.diag([8.0, 16.0]), rtol=1e-3)


def test_plain_float32_inputs_are_perturbed_in_float64():
    seen = []

    def apply(inputs):
        seen.append(inputs["x"].dtype)
        return {"y": inputs["x"] ** 2}

    inputs = {"x": np.array([3.1], np.float32)}
    finite_difference_jacobian(apply, inputs, {"x"}, {"y"})
    assert set(seen) == {np.dtype("float64")}


@pytest.mark.parametrize("algorithm", ["central", "forward", "richardson"])
def test_float32_schema_and_a_tangent(algorithm):
    inputs = Single(x=np.array([3.1, 70.3], np.float32))
    found = finite_difference_jvp(
        lambda m: {"y": m.x.astype(np.float64) * 3.0}, inputs, {"x"}, {"y"},
        {"x": np.array([1.0, 0.0])}, algorithm=algorithm, eps=1e-4,
    )  # fmt: skip
    np.testing.assert_allclose(found["y"], [3.0, 0.0], rtol=1e-6, atol=1e-12)


def test_lost_step_along_a_tangent_is_an_error():
    inputs = Single(x=np.array([1e6], np.float32))
    with pytest.raises(InputError) as caught:
        finite_difference_jvp(lambda m: {"y": m.x}, inputs, {"x"}, {"y"}, {"x": [1.0]})
    assert caught.value.code == "step_lost"


def test_lost_step_is_an_error():
    inputs = Single(x=np.array([1e6], np.float32))
    with pytest.raises(InputError, match="lost in rounding") as caught:
        finite_difference_jacobian(lambda m: {"y": m.x}, inputs, {"x"}, {"y"}, eps=1e-4)
    assert caught.value.code == "step_lost"


def test_output_buffer_may_be_reused_by_the_program():
    buffer = np.zeros(3)

    def apply(inputs):
        np.multiply(inputs["x"], 3.0, out=buffer)
        return {"y": buffer}

    found = finite_difference_jacobian(apply, {"x": np.ones(3)}, {"x"}, {"y"})
    np.testing.assert_allclose(found["y"]["x"], 3 * np.eye(3), rtol=1e-9)


def test_complex_step_refuses_code_that_drops_imaginary_parts():
    def apply(inputs):
        return {"y": np.abs(inputs["x"])}

    with pytest.raises(CapabilityError) as caught:
        finite_difference_jacobian(apply, {"x": np.ones(2)}, {"x"}, {"y"}, algorithm="complex_step")
    assert caught.value.code == "complex_step_unsupported"


def test_stochastic_estimate_is_exact_in_expectation():
    # Over all sign patterns the cross terms cancel; many samples of a linear map come close.
    A = np.random.default_rng(3).normal(size=(2, 12))
    arguments = (lambda d: {"y": A @ d["x"]}, {"x": np.ones(12)}, {"x"}, {"y"})
    estimates = [
        finite_difference_jacobian(*arguments, algorithm="stochastic", num_samples=11, seed=s)
        for s in range(300)
    ]
    mean = np.mean([e["y"]["x"] for e in estimates], axis=0)
    np.testing.assert_allclose(mean, A, atol=0.25)
    u = {"y": np.array([1.0, -2.0])}
    gradients = [
        finite_difference_vjp(*arguments, u, algorithm="stochastic", num_samples=11, seed=s)
        for s in range(300)
    ]
    np.testing.assert_allclose(np.mean([g["x"] for g in gradients], axis=0), u["y"] @ A, atol=0.5)


def test_stochastic_uses_the_samples_asked_for(problem):
    paths = (problem.input_paths, problem.output_paths)
    finite_difference_jacobian(
        problem.apply, problem.inputs, *paths, algorithm="stochastic", num_samples=3, seed=0
    )
    assert problem.calls == 6
    # No fewer samples than elements: central differences, exact and as cheap.
    found = finite_difference_jacobian(
        problem.apply, problem.inputs, *paths, algorithm="stochastic", seed=0
    )
    assert_blocks_close(found, problem.reference, 1e-6)


def test_evaluations_in_other_processes():
    # `dict` with the same names is a function that a spawned process can import.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        found = finite_difference_jacobian(dict, {"x": np.ones(2)}, {"x"}, {"x"}, executor=executor)
    np.testing.assert_allclose(found["x"]["x"], np.eye(2), rtol=1e-9)


def test_threads_overlap():
    barrier = threading.Barrier(2, timeout=300)

    def apply(inputs):
        barrier.wait()
        return {"y": inputs["x"]}

    with ThreadPoolExecutor(2) as executor:
        found = finite_difference_jacobian(
            apply, {"x": np.ones(2)}, {"x"}, {"y"}, executor=executor
        )
    np.testing.assert_allclose(found["y"]["x"], np.eye(2), rtol=1e-9)


def test_scalars_and_empty_arrays():
    found = finite_difference_jacobian(
        lambda d: {"y": d["x"] * 2, "e": d["e"]},
        {"x": np.float64(1.0), "e": np.zeros((0,))},
        {"x", "e"},
        {"y", "e"},
    )
    assert found["y"]["x"].shape == ()
    assert found["y"]["e"].shape == (0,)
    assert found["e"]["e"].shape == (0, 0)
    none = finite_difference_jacobian(lambda d: {"y": d["x"]}, {"x": 1.0}, set(), {"y"})
    assert none == {"y": {}}
    for eps in (1e-4, "auto", {}):
        zero = finite_difference_jvp(lambda d: {"y": d["x"]}, {"x": 1.0}, set(), {"y"}, {}, eps=eps)
        assert zero["y"] == 0


class Half(BaseModel):
    x: Differentiable[Array[(3,), BFloat16]]
    h: Differentiable[Array[(2,), Float16]]


@pytest.mark.parametrize("algorithm", ["central", "forward", "richardson"])
def test_bfloat16_beside_float16(algorithm):
    # A few bits of mantissa: the step is coarse, a quadratic is not.
    half = Half(x=[1.5, 2.0, 0.25], h=[1.0, 3.0])
    found = finite_difference_jacobian(
        lambda v: {"y": v.x * 4, "z": v.h * v.h}, half, {"x", "h"}, {"y", "z"},
        algorithm=algorithm, eps="auto",
    )  # fmt: skip
    np.testing.assert_allclose(found["y"]["x"], 4 * np.eye(3), rtol=0.02, atol=1e-12)
    np.testing.assert_allclose(found["z"]["h"], np.diag([2.0, 6.0]), rtol=0.1, atol=1e-12)
    product = finite_difference_vjp(
        lambda v: {"y": v.x * 4}, half, {"x"}, {"y"}, {"y": np.ones(3)}, eps="auto"
    )
    np.testing.assert_allclose(product["x"], 4.0, rtol=0.02)


@pytest.mark.parametrize(
    ("inputs", "path", "code"),
    [
        ({"x": np.arange(3)}, "x", "path_not_differentiable"),
        ({"x": np.ones(2) * 1j}, "x", "path_not_differentiable"),
        ({"x": None}, "x", "path_not_differentiable"),
        ({"x": 1.0}, "z", "path_unknown"),
    ],
)
def test_inputs_that_cannot_vary(inputs, path, code):
    with pytest.raises((InputError, PathError)) as caught:
        finite_difference_jacobian(lambda d: d, inputs, {path}, {"x"})
    assert caught.value.code == code


def test_unknown_algorithm(problem):
    with pytest.raises(InputError, match="complex_step") as caught:
        finite_difference_jvp(problem.apply, problem.inputs, {"x"}, {"y"}, {}, algorithm="magic")
    assert caught.value.code == "unknown_algorithm"


def test_outputs_must_keep_their_shape():
    sizes = itertools.count(1)
    with pytest.raises(CapabilityError) as caught:
        finite_difference_jacobian(lambda d: {"y": np.ones(next(sizes))}, {"x": 1.0}, {"x"}, {"y"})
    assert caught.value.code == "output_shape_changed"


def test_vector_must_name_the_selected_paths(problem):
    with pytest.raises(InputError) as caught:
        finite_difference_vjp(problem.apply, problem.inputs, {"x"}, {"y"}, {"n.s": 1.0})
    assert caught.value.code == "vector_keys_mismatch"


@pytest.mark.parametrize("algorithm", EXACT)
def test_programs_that_work_in_place(algorithm):
    def apply(inputs):
        inputs["x"] *= inputs["w"]
        inputs["w"] += 1.0
        return {"y": inputs["x"]}

    inputs = {"x": np.array([1.0, 2.0]), "w": np.array([3.0, 4.0])}
    found = finite_difference_jacobian(apply, inputs, {"x"}, {"y"}, algorithm=algorithm)
    np.testing.assert_allclose(found["y"]["x"], np.diag([3.0, 4.0]), rtol=1e-9)
    np.testing.assert_array_equal(inputs["w"], [3.0, 4.0])


def test_a_failing_evaluation_stops_the_others():
    def apply(inputs):
        raise ZeroDivisionError("at a point")

    with ThreadPoolExecutor(1) as executor, pytest.raises(ZeroDivisionError):
        finite_difference_jacobian(apply, {"x": np.ones(50)}, {"x"}, {"y"}, executor=executor)


@pytest.mark.parametrize("eps", [0, -1.0, float("nan"), float("inf"), None, [1e-3], "small"])
def test_steps_that_are_no_steps(eps):
    with pytest.raises(InputError, match="eps") as caught:
        finite_difference_jacobian(lambda d: d, {"x": np.ones(2)}, {"x"}, {"x"}, eps=eps)
    assert caught.value.code == "bad_eps"


@pytest.mark.parametrize("count", [0, -1])
def test_an_estimate_needs_a_sample(count):
    with pytest.raises(InputError, match="num_samples must be 1 or more") as caught:
        finite_difference_jacobian(
            lambda d: d, {"x": np.ones(2)}, {"x"}, {"x"}, algorithm="stochastic", num_samples=count
        )
    assert caught.value.code == "bad_num_samples"


def test_vectors_that_do_not_fit():
    inputs, paths = {"x": np.ones((2, 2))}, ({"x"}, {"x"})
    for differentiate in (finite_difference_jvp, finite_difference_vjp):
        with pytest.raises(InputError, match=r"'x' has shape \[3\], expected \[2, 2\]") as caught:
            differentiate(lambda d: d, inputs, *paths, {"x": np.ones(3)})
        assert caught.value.code == "vector_shape_mismatch"
    with pytest.raises(InputError, match="must be real") as caught:
        finite_difference_jvp(lambda d: d, inputs, *paths, {"x": 1j * np.ones((2, 2))})
    assert caught.value.code == "vector_not_real"


@pytest.mark.parametrize("algorithm", ["central", "stochastic"])
def test_cotangents_of_real_inputs_are_real(algorithm):
    """Outputs may be complex; the convention is JAX's, without conjugation."""

    def turned(x):
        return x * (1 + 2j)

    x, u = np.linspace(1.0, 2.0, 20), np.full(20, 1j)
    found = finite_difference_vjp(
        lambda d: {"y": turned(d["x"])},
        {"x": x},
        {"x"},
        {"y"},
        {"y": u},
        algorithm=algorithm,
        seed=0,
    )["x"]
    assert found.dtype == np.float64
    if algorithm == "central":
        (expected,) = jax.vjp(turned, x)[1](u)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("algorithm", ["central", "forward", "richardson"])
def test_no_derivative_where_an_input_is_not_finite(value, algorithm):
    found = finite_difference_jacobian(
        lambda d: {"y": 2 * d["x"]}, {"x": value}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )
    assert np.isnan(found["y"]["x"])


def test_no_derivative_where_an_output_is_not_finite():
    found = finite_difference_jacobian(
        lambda d: {"y": d["x"] + np.array([np.inf, 0.0])}, {"x": 1.0}, {"x"}, {"y"}, eps="auto"
    )
    np.testing.assert_allclose(found["y"]["x"], [np.nan, 1.0])
