"""Vectors and results have the shapes of outputs where the schema leaves sizes open."""

from types import ModuleType

import numpy as np
import pytest
from pydantic import BaseModel

from chainrule.errors import ComponentError, InputError
from chainrule.runtime import Array, Differentiable, Float64, load_component

AT = {"x": [1.0, 2.0, 3.0]}
PATHS = (["x"], ["y"])
WRONG = [[1.0], np.ones(5), 1.0, np.ones((3, 1))]


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[..., Float64]]


def make(**functions):
    """A component that doubles its input; `calls` counts `apply`."""
    module = ModuleType("double")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    calls = []

    def apply(inputs):
        calls.append(1)
        return {"y": 2 * inputs.x}

    module.apply = apply
    vars(module).update(functions)
    return load_component(module), calls


def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * cotangent_vector["y"] * np.ones_like(inputs.x)}


@pytest.mark.parametrize("cotangent", WRONG, ids=str)
def test_a_cotangent_of_another_shape_is_refused(cotangent):
    double, _ = make(vector_jacobian_product=vjp)
    double.apply(AT)  # which tells the shapes
    for endpoint in (double.vector_jacobian_product, double.value_and_vjp):
        with pytest.raises(InputError, match="cotangent_vector at 'y'"):
            endpoint(AT, *PATHS, {"y": cotangent})
    with pytest.raises(InputError):
        double.vector_jacobian_product(AT, *PATHS, {"y": [cotangent, cotangent]}, batched=True)


def test_a_cotangent_that_fits_the_outputs_of_an_authors_value_and_vjp():
    def value_and_vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return {"y": 2 * inputs.x}, {"x": 2 * cotangent_vector["y"] * np.ones_like(inputs.x)}

    double, calls = make(value_and_vjp=value_and_vjp)
    both = double.value_and_vjp(AT, *PATHS, {"y": [1.0, 0.0, 2.0]})
    np.testing.assert_array_equal(both["gradient"]["x"], [2.0, 0.0, 4.0])
    assert not calls
    with pytest.raises(InputError):
        double.value_and_vjp(AT, *PATHS, {"y": [1.0]})


def test_apply_is_not_run_to_check_a_shape():
    double, calls = make(vector_jacobian_product=vjp)
    for size in (3, 4):
        at = {"x": np.arange(1.0, size + 1)}
        found = double.vector_jacobian_product(at, *PATHS, {"y": np.ones(size)})["x"]
        np.testing.assert_array_equal(found, 2 * np.ones(size))
    assert not calls


def test_a_cotangent_that_numpy_would_stretch_is_refused_before_any_apply():
    double, calls = make(vector_jacobian_product=vjp)
    with pytest.raises(InputError, match="cotangent_vector at 'y'"):
        double.vector_jacobian_product(AT, *PATHS, {"y": [1.0]})
    assert len(calls) == 1
    # An output of size 1 takes it.
    found = double.vector_jacobian_product({"x": [2.0]}, *PATHS, {"y": [3.0]})
    np.testing.assert_array_equal(found["x"], [6.0])


def test_a_batch_of_cotangents_that_numpy_would_stretch_is_refused_before_any_apply():
    double, calls = make(vector_jacobian_product=vjp)
    with pytest.raises(InputError, match="cotangent_vector at 'y'"):
        double.vector_jacobian_product(AT, *PATHS, {"y": [[1.0], [2.0]]}, batched=True)
    assert len(calls) == 1
    found = double.vector_jacobian_product(
        {"x": [2.0]}, *PATHS, {"y": [[3.0], [4.0]]}, batched=True
    )
    np.testing.assert_array_equal(found["x"], [[6.0], [8.0]])
    assert len(calls) == 2


def test_results_that_numpy_would_stretch_are_refused_before_any_apply():
    functions = {
        "jacobian_vector_product": lambda inputs, jvp_inputs, jvp_outputs, tangent_vector: {
            "y": 2 * tangent_vector["x"][:1]
        },
        "jacobian": lambda inputs, jac_inputs, jac_outputs: {
            "y": {"x": 2 * np.eye(inputs.x.size)[:1]}
        },
    }
    ones = {"x": np.ones(3)}
    requests = {
        "jacobian_vector_product": lambda c, at: c.jacobian_vector_product(
            at, *PATHS, {"x": np.ones(len(at["x"]))}
        ),
        "jacobian": lambda c, at: c.jacobian(at, *PATHS),
    }
    for name, request in requests.items():
        double, calls = make(**{name: functions[name]})
        with pytest.raises(ComponentError) as caught:
            request(double, ones)
        assert caught.value.code == "bad_output"
        assert len(calls) == 1
        for _ in range(2):  # right for one input; the size is asked once
            request(double, {"x": [1.0]})
        assert len(calls) == 2


def test_sizes_that_depend_on_values():
    def pull(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        gradient = np.zeros_like(inputs.x)
        gradient[inputs.x > 0] = cotangent_vector["y"]
        return {"x": gradient}

    positive, _ = make(
        apply=lambda inputs: {"y": inputs.x[inputs.x > 0]}, vector_jacobian_product=pull
    )
    for x in ([1.0, 2.0], [-1.0, 2.0], [1.0, -2.0], [1.0, 2.0]):
        count = int(np.sum(np.array(x) > 0))
        positive.apply({"x": x})
        found = positive.vector_jacobian_product({"x": x}, *PATHS, {"y": np.ones(count)})["x"]
        np.testing.assert_array_equal(found, np.array(x) > 0)
        with pytest.raises(InputError):
            positive.vector_jacobian_product({"x": x}, *PATHS, {"y": np.ones(count + 1)})


def test_a_derivative_where_apply_fails_stays_there():
    def fail(inputs):
        raise RuntimeError("no licence")

    double, _ = make(apply=fail, vector_jacobian_product=vjp)
    found = double.vector_jacobian_product(AT, *PATHS, {"y": np.ones(3)})["x"]
    np.testing.assert_array_equal(found, 2 * np.ones(3))


def test_a_tangent_result_of_another_shape_is_the_components_fault():
    double, _ = make(
        jacobian_vector_product=lambda inputs, jvp_inputs, jvp_outputs, tangent_vector: {
            "y": np.ones(1)
        }
    )
    double.apply(AT)
    calls = {
        "jvp": lambda: double.jacobian_vector_product(AT, *PATHS, {"x": np.ones(3)}),
        "jacobian": lambda: double.jacobian(AT),
        "vjp": lambda: double.vector_jacobian_product(AT, *PATHS, {"y": np.ones(3)}),
    }
    for call in calls.values():
        with pytest.raises(ComponentError) as caught:
            call()
        assert caught.value.code == "bad_output"


def test_a_jacobian_of_another_shape():
    double, _ = make(
        jacobian=lambda inputs, jac_inputs, jac_outputs: {"y": {"x": np.eye(4)[:, :3]}}
    )
    double.apply(AT)
    with pytest.raises(InputError):
        double.vector_jacobian_product(AT, *PATHS, {"y": np.ones(4)})
    for call in (
        lambda: double.jacobian(AT),
        lambda: double.jacobian_vector_product(AT, *PATHS, {"x": np.ones(3)}),
        lambda: double.vector_jacobian_product(AT, *PATHS, {"y": np.ones(3)}),
    ):
        with pytest.raises(ComponentError) as caught:
            call()
        assert caught.value.code == "bad_output"
