"""Automatic steps: one for each input element and each output, of any magnitude."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float32, Float64, component
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)

ALGORITHMS = ["central", "forward", "richardson"]
SCALES = [1e-12, 1e-6, 1e-3, 1.0, 30.0, 1e5, 1e9, 1e19]


class Single(BaseModel):
    x: Differentiable[Array[(None,), Float32]]


class Double(BaseModel):
    x: Differentiable[Array[(None,), Float64]]


def assert_slopes(apply, at, slopes, *, rtol, algorithm, **options):
    """All three endpoints against the diagonal of a Jacobian."""
    how = {"algorithm": algorithm, "eps": "auto", **options}
    jacobian = finite_difference_jacobian(apply, at, {"x"}, {"y"}, **how)["y"]["x"]
    dense = jacobian.todense() if hasattr(jacobian, "todense") else jacobian
    np.testing.assert_allclose(np.diag(dense), slopes, rtol=rtol)
    assert not (dense - np.diag(np.diag(dense))).any()
    pulled = finite_difference_vjp(apply, at, {"x"}, {"y"}, {"y": np.ones(len(slopes))}, **how)
    np.testing.assert_allclose(pulled["x"], slopes, rtol=rtol)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("schema", [Double, Single])
@given(st.lists(st.sampled_from(SCALES), min_size=1, max_size=5), st.sampled_from([1.0, -1.0]))
def test_every_element_has_its_own_step(algorithm, schema, scales, sign):
    x = sign * np.array(scales) * np.linspace(1.0, 1.7, len(scales))
    at = schema(x=x)
    scale = np.array(scales)
    exact = at.x.astype(float)
    apply = lambda m: {"y": (np.exp(m.x / scale) + 1.0).astype(m.x.dtype)}  # noqa: E731
    rtol = {Double: 1e-4, Single: 2e-2}[schema]
    with np.errstate(all="ignore"):
        slopes = np.exp(exact / scale) / scale
        assert_slopes(apply, at, slopes, rtol=rtol, algorithm=algorithm)
        tangent = exact * np.linspace(-1.0, 2.0, len(scales))
        pushed = finite_difference_jvp(
            apply, at, {"x"}, {"y"}, {"x": tangent}, algorithm=algorithm, eps="auto"
        )["y"]
        np.testing.assert_allclose(pushed, slopes * tangent, rtol=rtol, atol=rtol * 0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("large", [1e5, 1e9, 1e19])
def test_a_tangent_of_ones_over_mixed_scales(algorithm, large):
    x = np.array([large, 2.0, 1e-7])
    apply = lambda d: {  # noqa: E731
        "y": np.array([np.sin(d["x"][1]), d["x"][0] / large, np.sqrt(1 + d["x"][2])])
    }
    pushed = finite_difference_jvp(
        apply, {"x": x}, {"x"}, {"y"}, {"x": np.ones(3)}, algorithm=algorithm, eps="auto"
    )
    np.testing.assert_allclose(pushed["y"], [np.cos(2.0), 1 / large, 0.5], rtol=1e-5)


@pytest.mark.parametrize("sparsity", ["detect", np.eye(4, dtype=bool)], ids=["detected", "given"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_columns_of_different_scales_share_an_evaluation(algorithm, sparsity):
    x = np.array([1e-9, 2.0, 1e6, -1e-3])
    apply = lambda d: {"y": np.sin(d["x"]) + 1.5}  # noqa: E731
    options = {"sparsity": sparsity}
    assert_slopes(apply, {"x": x}, np.cos(x), rtol=1e-3, algorithm=algorithm, **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_output_has_its_own_step(algorithm):
    # The logarithm takes a step of 1e-12 of a part, the sum one of about 1e-6: neither suits the other.
    def apply(inputs):
        x = inputs["x"]
        return {"y": np.array([np.log(x), 1.0 + x, 1e12 * x])}

    found = finite_difference_jacobian(
        apply, {"x": 1e-12}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )
    np.testing.assert_allclose(found["y"]["x"], [1e12, 1.0, 1e12], rtol=1e-5)

    def fast(inputs):
        x = inputs["x"]
        return {"y": np.array([np.sin(x), 1e6 * x, x**2])}

    found = finite_difference_jacobian(
        fast, {"x": 1e6}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )
    np.testing.assert_allclose(found["y"]["x"], [np.cos(1e6), 1e6, 2e6], rtol=1e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(st.floats(1.0, 1e7), st.booleans())
def test_oscillation_at_any_argument(algorithm, x, is_at_a_zero):
    # Around a zero of the sine the quotients to both sides agree with any step.
    x = np.pi * np.round(x / np.pi) if is_at_a_zero else x
    apply = lambda d: {"y": np.sin(d["x"])}  # noqa: E731
    found = finite_difference_jacobian(
        apply, {"x": x}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )["y"]["x"]
    np.testing.assert_allclose(found, np.cos(x), atol=2e-3)


@pytest.mark.parametrize("x", [3.0, 20.0, 100.0, 333.0, 1000.0])
def test_oscillation_in_float32(x):
    @component(framework="numpy", derivatives="finite")
    def wave(x: Differentiable[Float32]) -> Differentiable[Float32]:
        return np.sin(x)

    found = wave.jacobian({"x": x})["result"]["x"]
    np.testing.assert_allclose(found, np.cos(np.float32(x)), atol=2e-3)


def test_a_jump_is_reported():
    with pytest.warns(RuntimeWarning, match="do not converge"):
        finite_difference_jacobian(
            lambda d: {"y": 1.0 + np.floor(d["x"])}, {"x": 3.0}, {"x"}, {"y"}, eps="auto"
        )


@pytest.mark.parametrize("slope", [1.0, 0.0])
@pytest.mark.parametrize(
    ("x", "algorithm", "evaluations"),
    [
        (1.0, "central", 3), (1.0, "forward", 2), (1.0, "richardson", 5),
        (0.0, "central", 3), (300.0, "central", 3), (0.01, "central", 3),
        (1e5, "central", 5), (1e-4, "central", 5), (1e-9, "central", 7),
    ],
)  # fmt: skip
def test_evaluations_of_an_automatic_step(x, algorithm, evaluations, slope):
    calls = []

    def apply(inputs):
        calls.append(1)
        return {"y": 2.0 + slope * inputs["x"]}

    found = finite_difference_jacobian(
        apply, {"x": x}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )
    np.testing.assert_allclose(found["y"]["x"], slope, rtol=1e-6)
    assert len(calls) <= evaluations


@given(st.floats(0.0, 1.0) | st.sampled_from([1e-6, 1e-9, 1e-12, 1e-15, 1 - 1e-6, 1 - 1e-12]))
def test_accuracy_near_a_bound(x):
    class Fraction(BaseModel):
        x: Differentiable[Float64] = Field(ge=0, le=1)

    def apply(inputs):
        assert 0 <= inputs.x <= 1
        return {"y": 3 * np.sqrt(1 + inputs.x)}

    at = Fraction(x=x)
    expected = 1.5 / np.sqrt(1 + x)
    found = finite_difference_jacobian(apply, at, {"x"}, {"y"}, eps="auto")["y"]["x"]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    pushed = finite_difference_jvp(apply, at, {"x"}, {"y"}, {"x": -2.0}, eps="auto")["y"]
    np.testing.assert_allclose(pushed, -2 * expected, rtol=1e-7)


def steep(x):
    return np.tanh(30 * (x - 1))


# A function of x over its scale, and its derivative.
FUNCTIONS = {
    "exp": (np.exp, np.exp),
    "1 + exp": (lambda x: 1 + np.exp(x), np.exp),
    "sin": (np.sin, np.cos),
    "8 sin": (lambda x: np.sin(8 * x), lambda x: 8 * np.cos(8 * x)),
    "log": (lambda x: np.log(np.abs(x)), lambda x: 1 / x),
    "1 / x": (lambda x: 1 / x, lambda x: -1 / x**2),
    "cube": (lambda x: x**3, lambda x: 3 * x**2),
    "steep": (steep, lambda x: 30 * (1 - steep(x) ** 2)),
    "tiny": (lambda x: 1e-30 * np.sin(x), lambda x: 1e-30 * np.cos(x)),
    "huge": (lambda x: 1e30 * np.sin(x), lambda x: 1e30 * np.cos(x)),
}


def noise(x):
    """Between -1 and 1, and unrelated for two different numbers."""
    digest = hashlib.blake2b(np.float64(x).tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") / 2**31 - 1


@pytest.mark.filterwarnings("ignore:The finite differences")
@pytest.mark.parametrize("relative_noise", [0.0, 1e-9])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("algorithm", "order"), [("central", 2), ("forward", 1), ("richardson", 4)]
)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]),
    st.floats(0.1, 3.0) | st.floats(-3.0, -0.1),
)
def test_errors_are_those_of_the_best_step(algorithm, order, dtype, relative_noise, name, scale, x):
    """Rounding is unit / h, or noise / h, of the output; truncation is hᵖ of what varies on the scale."""
    function, slope = FUNCTIONS[name]
    x = dtype(x * scale)
    at, unit = np.float64(x) / scale, float(np.finfo(dtype).eps)

    def apply(inputs):
        at = np.float64(inputs["x"]) / scale
        return {"y": dtype(function(at) * (1 + relative_noise * noise(at)))}

    found = finite_difference_jacobian(
        apply, {"x": np.asarray(x)}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )["y"]["x"]
    step = unit ** (1 / (order + 1)) * min(abs(at), 1)
    rate = {"8 sin": 8, "steep": 30}.get(name, 1) / min(abs(at), 1)
    size, exact = abs(function(at)), slope(at)
    allowed = (10 * unit + 4 * relative_noise) / step * size
    allowed += (rate * step) ** order * (rate * size + abs(exact)) + 2e-3 * abs(exact)
    assert abs(found * scale - exact) <= allowed


@pytest.mark.parametrize("algorithm", ["central", "richardson"])
@pytest.mark.parametrize("offset", [1.0, 10.0, 100.0])
@given(st.floats(-12.0, -2.0))
def test_programs_that_lose_digits_inside(algorithm, offset, exponent):
    """The rounding error is not that of the output, but `offset` times as large."""
    x = 10.0**exponent

    def apply(inputs):
        return {"y": 1.0 + ((inputs["x"] + offset) ** 2 - offset**2) / offset}

    found = finite_difference_jacobian(
        apply, {"x": x}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )["y"]["x"]
    np.testing.assert_allclose(found, 2 * (x + offset) / offset, rtol=2e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("x", [1e-3, 1e-9, 1e-15, -1e-6])
def test_a_program_that_takes_numbers_of_one_sign_only(algorithm, x):
    def apply(inputs):
        if inputs["x"] * x <= 0:
            raise ValueError("on the other side of zero")
        return {"y": 3.0 + inputs["x"] + np.sqrt(1 + inputs["x"])}

    found = finite_difference_jacobian(
        apply, {"x": x}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
    )["y"]["x"]
    np.testing.assert_allclose(found, 1 + 0.5 / np.sqrt(1 + x), rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("x", [1e-15, 1e-12, -1e-10])
def test_small_float32_inputs_of_a_small_scale(algorithm, x):
    x = np.float32(x)
    found = finite_difference_jacobian(
        lambda d: {"y": np.exp(d["x"] / np.float32(1e-9))},
        {"x": np.asarray(x)}, {"x"}, {"y"}, algorithm=algorithm, eps="auto",
    )["y"]["x"]  # fmt: skip
    np.testing.assert_allclose(found, 1e9 * np.exp(np.float64(x) / 1e-9), rtol=2e-2)


@pytest.mark.parametrize(("frequency", "x"), [(8.0, 18.0), (40.0, 3.6), (100.0, 1.44)])
def test_quotients_over_two_lengths_that_agree_by_chance(frequency, x):
    """With steps of 0.94 and 1.88 periods the quotients are within 8 % of each other, and both are wrong."""
    at = np.float32(1e-9 * x)
    found = finite_difference_jacobian(
        lambda d: {"y": np.float32(np.sin(frequency * (np.float64(d["x"]) / 1e-9)))},
        {"x": np.asarray(at)}, {"x"}, {"y"}, algorithm="richardson", eps="auto",
    )["y"]["x"]  # fmt: skip
    exact = frequency * np.cos(frequency * (np.float64(at) / 1e-9)) * 1e9
    np.testing.assert_allclose(found, exact, rtol=1e-2)


@pytest.mark.parametrize("where", ["point", "tangent"])
def test_products_with_nan_are_nan(where):
    """They were never finished: no step is the shortest one."""
    vectors = {"point": np.array([1.0, 2.0]), "tangent": np.array([1.0, 0.5])}
    vectors[where][1] = np.nan
    found = finite_difference_jvp(
        lambda inputs: {"y": inputs["x"] ** 2},
        {"x": vectors["point"]},
        {"x"},
        {"y"},
        {"x": vectors["tangent"]},
    )
    assert np.isnan(found["y"][1])


SATURATING = {
    "tanh": (np.tanh, 1.0),
    "2 + tanh": (lambda x: 2 + np.tanh(x), 1.0),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), 0.25),
    "sin": (np.sin, 1.0),
    "odd": (lambda x: x + x**3, 1.0),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bound", [None, 0.0])
@given(st.sampled_from(sorted(SATURATING)), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-2, 1.0, 1e4]))
def test_zero_says_nothing_about_its_scale(algorithm, bound, name, scale):
    """The quotients of an odd function agree with any step. A voltage of zero varies by microvolts."""

    class Inputs(BaseModel):
        x: Differentiable[Float64] = Field(ge=bound)

    function, slope = SATURATING[name]
    apply = lambda m: {"y": function(m.x / scale)}  # noqa: E731
    at, how = Inputs(x=0.0), {"algorithm": algorithm, "eps": "auto"}
    with np.errstate(over="ignore"):
        found = finite_difference_jacobian(apply, at, {"x"}, {"y"}, **how)["y"]["x"]
        pushed = finite_difference_jvp(apply, at, {"x"}, {"y"}, {"x": 2.0}, **how)["y"]
    np.testing.assert_allclose([found * scale, pushed * scale], [slope, 2 * slope], rtol=5e-3)


@pytest.mark.parametrize("algorithm", ["central", "richardson"])
@pytest.mark.parametrize("scale", [1e-9, 1e-7, 3e-6])
def test_a_step_that_leaves_the_domain_becomes_shorter(algorithm, scale):
    def apply(inputs):
        return {"y": np.sqrt(1 + inputs["x"] / scale) + np.log(1 - inputs["x"] / scale)}

    with np.errstate(invalid="ignore", divide="ignore"):
        found = finite_difference_jacobian(
            apply, {"x": 0.0}, {"x"}, {"y"}, algorithm=algorithm, eps="auto"
        )["y"]["x"]
    np.testing.assert_allclose(found * scale, -0.5, rtol=5e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("power", [2, 3, 5])
def test_a_derivative_of_zero_at_zero_is_no_jump(algorithm, scale, power):
    """Of xⁿ at 0 the quotients are hⁿ⁻¹: no two agree, and all go to 0. A warning is an error here."""
    how = {"algorithm": algorithm, "eps": "auto"}
    found = finite_difference_jacobian(
        lambda m: {"y": (m["x"] / scale) ** power}, {"x": 0.0}, {"x"}, {"y"}, **how
    )["y"]["x"]
    assert abs(found * scale) < 1e-4


def test_noise_in_many_elements_is_one_warning():
    """As of a solver with adaptive steps: the text is the same, so Python shows it once."""
    with pytest.warns(RuntimeWarning, match="of 'y' by 'x' do not converge") as told:
        finite_difference_jacobian(
            lambda d: {"y": 1.0 + np.floor(d["x"])},
            {"x": np.full(5, 3.0)},
            {"x"},
            {"y"},
            eps="auto",
        )
    assert len({str(each.message) for each in told}) == 1
