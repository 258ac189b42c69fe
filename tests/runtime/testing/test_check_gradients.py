"""Gradient checks find wrong derivatives, and only those."""

import io
import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel
from rich.console import Console

import chainrule
from chainrule import runtime
from chainrule.errors import CapabilityError, InputError
from chainrule.runtime import Array, Differentiable, Float64, load_component
from chainrule.runtime.testing import check_gradients


@dataclass(frozen=True)
class Spec:
    dtype: str | None


@dataclass
class Quadratic:
    """y = x² k, s = Σx·k. `wrong` multiplies one block of one endpoint."""

    wrong: dict[str, float] = field(default_factory=dict)
    dtype: str = "float64"
    size: int = 3

    available_endpoints = (
        "apply", "jacobian", "jacobian_vector_product", "vector_jacobian_product",
        "abstract_eval", "health",
    )  # fmt: skip

    @property
    def differentiable_inputs(self):
        return {"x": Spec(self.dtype), "p.{}": Spec("float64"), "absent": Spec("float64")}

    @property
    def differentiable_outputs(self):
        return {"y": Spec(self.dtype), "l.[]": Spec("float64")}

    def apply(self, inputs: Any) -> Any:
        x, k = np.asarray(inputs["x"], self.dtype), float(inputs["p"]["k a"])
        return {
            "y": (x**2 * np.asarray(k, self.dtype)).astype(self.dtype),
            "l": [np.float64(x.astype(float).sum() * k)],
            "name": "quadratic",
        }

    def _blocks(self, endpoint, inputs):
        x, k = np.asarray(inputs["x"], float), float(inputs["p"]["k a"])
        factor = self.wrong.get(endpoint, 1.0)
        return {
            "y": {"x": np.diag(2 * x * k), "p.{k a}": x**2},
            "l.[0]": {"x": factor * k * np.ones_like(x), "p.{k a}": np.array(x.sum())},
        }

    def jacobian(self, inputs, jac_inputs, jac_outputs):
        blocks = self._blocks("jacobian", inputs)
        return {o: {i: blocks[o][i] for i in jac_inputs} for o in jac_outputs}

    def jacobian_vector_product(self, inputs, jvp_inputs, jvp_outputs, tangent_vector):
        blocks = self._blocks("jacobian_vector_product", inputs)
        return {
            o: sum(np.tensordot(blocks[o][i], tangent_vector[i], np.ndim(tangent_vector[i]))
                   for i in jvp_inputs)
            for o in jvp_outputs
        }  # fmt: skip

    def vector_jacobian_product(self, inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        blocks = self._blocks("vector_jacobian_product", inputs)
        return {
            i: sum(np.tensordot(cotangent_vector[o], blocks[o][i], np.ndim(cotangent_vector[o]))
                   for o in vjp_outputs)
            for i in vjp_inputs
        }  # fmt: skip

    def abstract_eval(self, inputs):
        return {
            "y": inputs["x"],
            "l": [{"shape": [], "dtype": self.wrong.get("abstract_eval", "float64")}],
            "name": "quadratic",
        }


def payload(size=3):
    return {"inputs": {"x": np.linspace(0.5, 2.0, size).tolist(), "p": {"k a": 1.5}}}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("eps", ["auto", 1e-3, {"x": 1e-3, "p.{k a}": 1e-2}])
def test_right_derivatives_pass(dtype, eps):
    report = check_gradients(Quadratic(dtype=dtype), payload(), eps=eps)
    assert report.passed, report.to_dict()
    tests = [(check.endpoint, check.test) for check in report.checks]
    assert len(tests) == 8
    assert ("all derivatives", "adjoint") in tests
    assert ("abstract_eval", "shapes") in tests


ENDPOINTS = ["jacobian", "jacobian_vector_product", "vector_jacobian_product"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_wrong_endpoint_is_found_and_named(endpoint, dtype):
    report = check_gradients(Quadratic({endpoint: 1.3}, dtype=dtype), payload())
    assert not report.passed
    failed = {(check.endpoint, check.test) for check in report.failures}
    assert failed == {
        (endpoint, "pointwise"), (endpoint, "taylor"), ("all derivatives", "adjoint"),
    }  # fmt: skip
    (pointwise,) = [check for check in report.failures if check.test == "pointwise"]
    assert len(pointwise.mismatches) == 3
    for mismatch in pointwise.mismatches:
        assert (mismatch.output_path, mismatch.input_path) == ("l.[0]", "x")
        assert mismatch.found == pytest.approx(1.3 * 1.5)
        assert mismatch.expected == pytest.approx(1.5, rel=1e-2)


def test_a_small_error_escapes_pointwise_but_not_the_taylor_test():
    report = check_gradients(Quadratic({"jacobian": 1.02}), payload())
    assert {(c.endpoint, c.test) for c in report.failures} == {
        ("jacobian", "taylor"), ("all derivatives", "adjoint"),
    }  # fmt: skip


def test_wrong_shapes_are_found():
    report = check_gradients(Quadratic({"abstract_eval": "float32"}), payload())
    (check,) = report.failures
    assert check.test == "shapes"
    assert "l.[0]: abstract_eval gives float32[], apply float64[]" in check.summary


def test_an_exception_is_a_failed_check():
    class Broken(Quadratic):
        def jacobian(self, *arguments):
            raise ZeroDivisionError("no")

    report = check_gradients(Broken(), payload())
    assert [c.endpoint for c in report.failures] == ["jacobian"]
    assert isinstance(report.failures[0].error, ZeroDivisionError)


def test_not_a_number_is_a_failed_check():
    report = check_gradients(Quadratic({"jacobian": float("nan")}), payload())
    assert {("jacobian", "pointwise"), ("jacobian", "taylor")} <= {
        (c.endpoint, c.test) for c in report.failures
    }


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.5, False)])
def test_second_derivatives(factor, passed):
    class Curved(Quadratic):
        available_endpoints = (*Quadratic.available_endpoints, "hessian_vector_product")

        def hessian_vector_product(self, inputs, hvp_inputs, hvp_outputs, u, v):
            x, k = np.asarray(inputs["x"], float), float(inputs["p"]["k a"])
            w, z = v["x"], v["p.{k a}"]
            by_x = u["y"] * (2 * k * w + 2 * x * z) + u["l.[0]"] * z
            by_k = np.sum(u["y"] * 2 * x * w) + np.sum(u["l.[0]"] * w)
            return {"x": factor * by_x, "p.{k a}": by_k}

    report = check_gradients(Curved(), payload())
    assert report.passed is passed
    assert {c.test for c in report.failures} == (set() if passed else {"curvature"})


def test_large_arrays_are_sampled():
    calls = []

    class Counted(Quadratic):
        def apply(self, inputs):
            calls.append(1)
            return super().apply(inputs)

    report = check_gradients(
        Counted(), payload(500), max_evals=20, max_output_samples=7, endpoints=["jacobian"]
    )
    assert report.passed
    pointwise = report.checks[0]
    assert pointwise.count % 7 == 0
    assert pointwise.count >= 7 * 4
    assert len(calls) <= 20


def test_directions_lead_away_from_bounds():
    seen = []

    class Bounded(Quadratic):
        def apply(self, inputs):
            if np.max(inputs["x"]) > 2.0:
                raise InputError("x must not be larger than 2")
            seen.append(np.max(inputs["x"]))
            return super().apply(inputs)

    assert check_gradients(Bounded(), payload()).passed
    assert min(seen) < 2.0
    # Elements at the bound go back and others forth; with this seed they do not cancel in the sum.
    wrong = Bounded({"jacobian": 1.02})
    report = check_gradients(wrong, payload(), endpoints=["jacobian"], seed=1)
    assert {check.test for check in report.failures} == {"taylor"}


def test_points_that_are_refused_say_nothing():
    class OneByOne(Quadratic):
        """Elements may move one by one, and not together."""

        def apply(self, inputs):
            if np.count_nonzero(inputs["x"] != np.linspace(0.5, 2.0, 3)) > 1:
                raise InputError("one at a time")
            return super().apply(inputs)

    report = check_gradients(OneByOne(), payload())
    assert report.passed
    assert any("refuses inputs" in check.summary for check in report.checks)


def square_of(size, factor=1.0, **options):
    """x ↦ x² of many elements with a VJP alone, and a list of what was called."""
    calls = []
    Vector = Differentiable[Array[(size,), Float64]]

    class InputSchema(BaseModel):
        x: Vector

    class OutputSchema(BaseModel):
        y: Vector

    module = ModuleType("square")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema

    def apply(inputs):
        calls.append("apply")
        return {"y": inputs.x**2}

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        calls.append("vjp")
        return {"x": factor * 2 * inputs.x * cotangent_vector["y"]}

    module.apply, module.vector_jacobian_product = apply, vector_jacobian_product
    return load_component(module, config=options or None), calls


@pytest.mark.parametrize("max_evals", [10, 100, 1000])
@pytest.mark.parametrize("size", [3, 40, 1000])
@pytest.mark.parametrize("derive_hvp", [False, True])
def test_the_bound_holds_for_endpoints_that_are_derived(max_evals, size, derive_hvp):
    component, calls = square_of(size, derive_hvp=derive_hvp)
    inputs = {"x": np.linspace(0.5, 2.0, size)}
    report = check_gradients(component, inputs, max_evals=max_evals, show_progress=False)
    assert report.passed
    assert len(calls) <= max_evals
    checked = [check.endpoint for check in report.checks]
    assert checked[0] == "vector_jacobian_product"
    left_out = {each.endpoint for each in report.left_out}
    derivatives = set(component.available_endpoints) - {"apply", "abstract_eval", "health"}
    assert left_out | set(checked) >= derivatives
    assert bool(left_out) == ((size, max_evals) not in {(3, 100), (3, 1000), (40, 1000)})
    for each in report.left_out:
        assert str(max_evals) in each.reason


def test_what_is_left_out_is_shown():
    component, _ = square_of(1000)
    report = check_gradients(component, {"x": np.ones(1000)}, max_evals=100, show_progress=False)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report)
    assert "left out" in console.export_text()
    (jacobian,) = [e for e in report.to_dict()["left_out"] if e["endpoint"] == "jacobian"]
    assert jacobian["reason"].startswith("takes 1001 evaluations of the component's code")
    with pytest.raises(InputError, match="takes 1001 evaluations") as caught:
        check_gradients(
            component, {"x": np.ones(1000)}, max_evals=100, endpoints=["jacobian"],
            show_progress=False,
        )  # fmt: skip
    assert caught.value.code == "bad_option"


def test_a_wrong_native_endpoint_is_found_with_few_evaluations():
    component, calls = square_of(1000, factor=1.5)
    report = check_gradients(component, {"x": np.ones(1000)}, max_evals=20, show_progress=False)
    assert ("vector_jacobian_product", "taylor") in {(c.endpoint, c.test) for c in report.failures}
    assert len(calls) <= 20


def test_the_inputs_with_and_without_the_level_of_a_request():
    component, _ = square_of(3)
    inputs = {"x": [1.0, 2.0, 3.0]}
    assert check_gradients(component, inputs, show_progress=False).passed
    assert check_gradients(component, {"inputs": inputs}, show_progress=False).passed


def test_finite_differences_of_many_inputs_are_checked_by_what_the_bound_allows():
    Vector = Differentiable[Array[(300,), Float64]]
    calls = []

    @runtime.component(derivatives="finite")
    def sine(x: Vector) -> Vector:
        calls.append(1)
        return np.sin(x)

    report = check_gradients(sine, {"x": np.ones(300)}, max_evals=300, show_progress=False)
    assert report.passed
    assert len(calls) <= 300
    assert {check.endpoint for check in report.checks} >= {"jacobian_vector_product"}
    assert "jacobian" in {each.endpoint for each in report.left_out}


def test_a_check_of_nothing_does_not_pass():
    class Plain(Quadratic):
        available_endpoints = ("apply", "abstract_eval")

    with pytest.raises(CapabilityError) as caught:
        check_gradients(Plain(), payload())
    assert caught.value.code == "nothing_to_check"
    with pytest.raises(InputError) as missing:
        check_gradients(Plain(), payload(), endpoints=["jacobian"])
    assert missing.value.code == "endpoint_missing"


@pytest.mark.parametrize(
    "options", [{"max_evals": 9}, {"max_output_samples": 0}, {"rtol": -0.1}, {"rtol": float("nan")}]
)
def test_bounds_within_which_nothing_is_compared(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} must be") as caught:
        check_gradients(Quadratic(), payload(), **options)
    assert caught.value.code == "bad_option"


def test_restricted_to_paths_and_endpoints():
    broken = Quadratic({"jacobian": 2.0})
    assert check_gradients(broken, payload(), output_paths=["y"]).passed
    assert check_gradients(broken, payload(), input_paths=["p.{k a}"]).passed
    report = check_gradients(broken, payload(), endpoints=["vector_jacobian_product"])
    assert report.passed
    assert len(report.checks) == 2


@pytest.mark.parametrize(
    ("body", "options", "code"),
    [
        ([1.0], {}, "bad_payload"),
        (payload(), {"input_paths": ["z"]}, "path_not_differentiable"),
        (payload(), {"output_paths": ["name"]}, "path_not_differentiable"),
    ],
)
def test_requests_that_make_no_sense(body, options, code):
    with pytest.raises(InputError) as caught:
        check_gradients(Quadratic(), body, **options)
    assert caught.value.code == code


def test_paths_from_the_openapi_document():
    class Remote(Quadratic):
        differentiable_inputs = None
        differentiable_outputs = None
        openapi_schema: ClassVar = {
            "components": {
                "schemas": {
                    "ApplyInputSchema": {"differentiable_arrays": {"x": {"dtype": "float64"}}},
                    "ApplyOutputSchema": {"differentiable_arrays": {"l.[]": {}}},
                }
            }
        }

    assert check_gradients(Remote(), payload()).passed


def test_readable_table():
    report = check_gradients(Quadratic({"jacobian": 1.3}), payload())
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report)
    text = console.export_text()
    assert "FAILED" in text
    assert "d l.[0][] / d x[0]: 1.95, expected 1.5" in text
    assert report.to_dict()["passed"] is False


@pytest.mark.parametrize("large", [1e4, 1e7, 1e12, 1e19])
@pytest.mark.parametrize("wrong", [1.0, 1.3])
def test_a_large_element_does_not_set_the_step_of_its_neighbour(large, wrong):
    module = ModuleType("mixed")

    class InputSchema(BaseModel):
        x: Differentiable[Array[(2,), Float64]]

    class OutputSchema(BaseModel):
        y: Differentiable[Float64]

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        slope = wrong * (np.sin(inputs.x[1]) + inputs.x[1] * np.cos(inputs.x[1]))
        return {"x": cotangent_vector["y"] * np.array([0.0, slope])}

    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    module.apply = lambda inputs: {"y": np.sin(inputs.x[1]) * inputs.x[1]}
    module.vector_jacobian_product = vector_jacobian_product
    report = check_gradients(load_component(module), {"x": [large, 2.0]}, show_progress=False)
    assert report.passed is (wrong == 1.0), report.to_dict()


@pytest.mark.parametrize("x", [1e3, 1e6])
@pytest.mark.parametrize("wrong", [1.0, 1.3])
def test_a_fast_component_far_from_zero(x, wrong):
    module = ModuleType("fast")

    class Schema(BaseModel):
        x: Differentiable[Float64]

    module.InputSchema = module.OutputSchema = Schema
    module.apply = lambda inputs: {"x": np.sin(inputs.x)}
    module.jacobian = lambda inputs, jac_inputs, jac_outputs: {"x": {"x": wrong * np.cos(inputs.x)}}
    report = check_gradients(load_component(module), {"x": x}, show_progress=False)
    assert report.passed is (wrong == 1.0), report.to_dict()


@pytest.mark.parametrize("max_evals", [10, 30, 100, 1000])
def test_steps_that_are_changed_stay_within_max_evals(max_evals):
    calls = []

    class Counted(Quadratic):
        def apply(self, inputs):
            calls.append(1)
            return super().apply(inputs)

    inputs = {"x": [1e9, 1e-9, 0.0, 2e6], "p": {"k a": 1e-5}}
    check_gradients(
        Counted(size=4), {"inputs": inputs}, endpoints=["jacobian"], max_evals=max_evals
    )
    assert len(calls) <= max_evals


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "all entries of `k` are twice what they should be"),
        (-1.0, "all entries of `k` have the wrong sign"),
        (0.0, "all entries of `k` are zero"),
        (3.7, "all entries of `k` are 3.7 times what they should be"),
    ],
)
def test_a_common_factor_is_named(factor, words):
    class Inputs(BaseModel):
        x: Differentiable[Array[(3,), Float64]]
        k: Differentiable[Float64]

    class Outputs(BaseModel):
        y: Differentiable[Array[(3,), Float64]]

    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        c = cotangent_vector["y"]
        found = {"x": inputs.k * c, "k": factor * np.sum(c * inputs.x)}
        return {path: found[path] for path in vjp_inputs}

    module = ModuleType("spring")
    module.InputSchema, module.OutputSchema, module.vector_jacobian_product = Inputs, Outputs, vjp
    module.apply = lambda inputs: Outputs(y=inputs.k * inputs.x)
    component = load_component(module)
    report = check_gradients(component, {"x": [1.0, 2.0, 3.0], "k": 2.0}, show_progress=False)
    (pointwise, *_) = report.failures
    assert words in pointwise.summary
    assert "`x`" not in pointwise.summary
    assert "FAILED" in report.verdict
    assert str(report).startswith("check-gradients: ")
    assert "✗" in report._repr_html_()
    assert "`" not in report._repr_html_()


def test_a_right_gradient_has_no_contradiction():
    """Entries of 1e6 differ by 1e-3 from their differences: that is a part in 1e9, and is said so."""

    @chainrule.component(framework="numpy", derivatives="finite")
    def steep(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Array[(2,), Float64]]:
        return 1e6 * np.sin(x)

    report = check_gradients(steep, {"x": [0.3, 0.4]}, show_progress=False)
    found = next(check.summary for check in report.checks if check.test == "pointwise")
    assert re.fullmatch(r"0 of 4 entries differ; largest relative difference \S+", found)
    assert float(found.split()[-1]) < 1e-5
    assert re.fullmatch(r"<GradientReport: all \d endpoints passed>", repr(report))
