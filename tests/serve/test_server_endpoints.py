"""Endpoints that a server adds: `minimize` against closed forms, `plot` for every kind of figure."""

from __future__ import annotations

import io
from types import ModuleType

import numpy as np
import pytest
from pydantic import BaseModel, Field

from chainrule.errors import ComponentError, InputError
from chainrule.runtime import Array, Differentiable, Float64, component, load_component
from chainrule.runtime.internal import Run
from chainrule.serve._server_endpoints import ADDED, added_endpoints


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]] = [3.0, -2.0]
    a: Differentiable[Float64] = Field(1.5, ge=1, le=4)
    name: str = "bowl"


class OutputSchema(BaseModel):
    cost: Differentiable[Float64]
    parts: Differentiable[Array[("n",), Float64]]
    label: str


class Bowl:
    """cost = a + Σ (x − 1)², a component as an object with the names of a module."""

    InputSchema = InputSchema
    OutputSchema = OutputSchema
    cheap = True

    @staticmethod
    def apply(inputs):
        parts = (inputs.x - 1) ** 2
        return OutputSchema(cost=inputs.a + parts.sum(), parts=parts, label=inputs.name)

    @staticmethod
    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        weights = cotangent_vector.get("cost", 0.0) + cotangent_vector.get("parts", 0.0)
        found = {
            "x": 2 * (inputs.x - 1) * weights,
            "a": np.asarray(cotangent_vector.get("cost", 0.0)),
        }
        return {path: found[path] for path in vjp_inputs}

    @staticmethod
    def plot(inputs, outputs):
        return f"<p>{outputs.label}: {outputs.parts.sum()}</p>"


@pytest.fixture
def bowl():
    module = ModuleType("bowl")
    for name in (
        "InputSchema",
        "OutputSchema",
        "apply",
        "vector_jacobian_product",
        "plot",
        "cheap",
    ):
        setattr(module, name, getattr(Bowl, name))
    return load_component(module)


def ask(component, endpoint, **body):
    return ADDED[endpoint](component, {"inputs": {}, **body}, Run(component.config))


def test_what_is_added(bowl):
    assert added_endpoints(bowl) == ["check_gradients", "minimize", "plot"]
    assert bowl.openapi_schema["x-cheap"] is True

    @component
    def double(x: float) -> float:
        return 2 * x

    assert added_endpoints(double) == []


def test_minimum_within_the_bounds_of_the_schema(bowl):
    found = ask(bowl, "minimize", objective="cost", free=["x", "a"])
    assert found["success"]
    np.testing.assert_allclose(found["inputs"]["x"], [1, 1], atol=1e-5)
    assert found["inputs"]["a"] == 1.0
    assert found["value"] == pytest.approx(1.0)
    assert found["history"][0] == 1.5 + 4 + 9
    assert min(found["history"]) == found["value"]


def test_maximum_mean_and_what_stays(bowl):
    found = ask(bowl, "minimize", objective="cost", free=["a"], maximize=True)
    assert (float(found["inputs"]["a"]), found["value"]) == (4.0, 4.0 + 13)
    found = ask(bowl, "minimize", objective="parts", reduction="mean", free=["x"])
    assert found["history"][0] == 6.5
    np.testing.assert_allclose(found["inputs"]["x"], [1, 1], atol=1e-4)
    assert list(found["inputs"]) == ["x"]


def test_a_run_that_may_take_one_evaluation_keeps_its_best_point(bowl):
    found = ask(bowl, "minimize", objective="cost", free=["x"], max_evaluations=1)
    assert (found["success"], len(found["history"]), found["value"]) == (False, 1, 14.5)


def test_why_an_optimisation_ended_is_said_in_words(bowl):
    found = ask(bowl, "minimize", objective="cost", free=["x", "a"])  # `a` ends at its bound
    assert found["message"] == (
        "Converged: the gradient is zero, except where a bound holds an input."
    )
    found = ask(bowl, "minimize", objective="cost", free=["x"], max_evaluations=1)
    assert found["message"] == "Stopped at the limit of 1 evaluations."


def cost_of_a(value, slope):
    """cost = value(a), with a gradient that may be wrong."""
    module = ModuleType("cost_of_a")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    module.apply = lambda inputs: OutputSchema(cost=value(inputs.a), parts=inputs.x, label="")
    module.vector_jacobian_product = lambda inputs, vjp_inputs, vjp_outputs, cotangent_vector: {
        "a": np.asarray(cotangent_vector["cost"] * slope(inputs.a))
    }
    return load_component(module)


@pytest.mark.parametrize(
    ("value", "slope", "message"),
    [
        (
            lambda a: 1e8 + (a - 3) ** 4,
            lambda a: 4 * (a - 3) ** 3,
            "Converged: the value no longer changes.",
        ),
        (
            lambda a: (a - 3) ** 2,
            lambda a: -2 * (a - 3),
            "Stopped: no better value was found along the gradient. Check the gradients.",
        ),
    ],
    ids=["flat", "wrong"],
)
def test_optimisations_that_end_early_say_why(value, slope, message):
    found = ask(cost_of_a(value, slope), "minimize", objective="cost", free=["a"])
    assert found["message"] == message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"objective": "cost", "free": ["y"]}, "path_unknown"),
        ({"objective": "label", "free": ["x"]}, "bad_objective"),
        ({"objective": "missing", "free": ["x"]}, "bad_objective"),
        ({"objective": "cost", "free": []}, "invalid_input"),
        ({"objective": "cost", "free": ["x"], "max_evaluations": 10**6}, "invalid_input"),
    ],
)
def test_requests_that_are_refused(bowl, body, code):
    with pytest.raises(InputError) as caught:
        ask(bowl, "minimize", **body)
    assert caught.value.code == code


class Document:
    """A figure that writes its HTML into a file object, as PyVista's plotter does."""

    def export_html(self, file):
        assert file is None
        return io.StringIO("<b>3D</b>")


def test_plots_of_every_kind():
    from matplotlib.figure import Figure

    kinds = {"html": "<i>x</i>", "matplotlib": Figure(), "exported": Document(), "bad": 3}

    def plot(inputs, outputs):
        assert outputs.result == 2 * inputs.x
        return kinds[inputs.kind] if inputs.kind == "html" else {"title": kinds[inputs.kind]}

    @component(plot=plot)
    def double(x: float, kind: str) -> float:
        return 2 * x

    def shown(kind):
        inputs = {"x": 1.0, "kind": kind}
        return ask(double, "plot", inputs=inputs, outputs=double.apply(inputs))

    assert added_endpoints(double) == ["plot"]
    assert shown("html") == {"plot": "<i>x</i>"}
    assert shown("matplotlib")["title"].startswith('<img alt="" style="display:block;')
    assert shown("exported") == {"title": "<b>3D</b>"}
    with pytest.raises(ComponentError, match="Expected plot"):
        shown("bad")
    with pytest.raises(InputError):
        ask(double, "plot", inputs={"x": 1.0, "kind": "html"}, outputs={"result": "two"})
