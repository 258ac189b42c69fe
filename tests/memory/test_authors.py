"""Arrays of authors and callers inside one process: schemas, derived derivatives, residuals, recipes."""

import functools
from dataclasses import dataclass, is_dataclass
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    RootModel,
    field_validator,
    model_validator,
)

from chainrule import component
from chainrule._device import own_copy
from chainrule.runtime import (
    Array,
    Differentiable,
    Float64,
    SparseArray,
    WithResiduals,
    load_component,
)
from chainrule.runtime.derivatives import (
    ImplicitFunction,
    finite_difference_jacobian,
    hvp_from_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
)

try:
    import torch
except ImportError:  # one more kind of array where it is installed
    torch = None

TENSORS = () if torch is None else (torch.Tensor,)
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

Vector = Array[(None,), Float64]
Moving = Differentiable[Vector]


def tensor():
    return a() if torch is None else torch.ones(3, dtype=torch.float64)


def destroy(tree):
    """Overwrite every array that can be reached."""
    if isinstance(tree, np.ndarray):
        assert tree.flags.writeable
        tree[...] = np.nan if tree.dtype.kind == "f" else 0
    elif isinstance(tree, TENSORS):
        tree.fill_(torch.nan)
    elif isinstance(tree, BaseModel):
        destroy(dict(tree))
    elif isinstance(tree, dict):
        destroy(list(tree.values()))
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            destroy(item)
    elif is_dataclass(tree):
        destroy(vars(tree))


class Inner(BaseModel):
    x: Vector


@dataclass
class Record:
    x: Vector


class Declared(BaseModel):
    x: Vector
    optional: Vector | None
    union: Array[(2, 2), Float64] | Vector
    items: list[Vector]
    pair: tuple[Vector, Vector]
    by_name: dict[str, Vector]
    inner: Inner
    inners: list[Inner]
    record: Record
    root: RootModel[list[Vector]]


class Undeclared(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")
    anything: Any
    plain: np.ndarray
    options: dict
    nested: dict[str, list[Any]]


class Early(BaseModel):
    x: Annotated[Vector, BeforeValidator(lambda x: destroy_and_return(x))]
    y: Vector
    z: Vector

    @field_validator("y", mode="before")
    @classmethod
    def of_y(cls, y):
        return destroy_and_return(y)

    @model_validator(mode="before")
    @classmethod
    def of_all(cls, data):
        destroy(data["z"])
        return data


def destroy_and_return(x):
    destroy(x)
    return np.zeros(3)


def a(value=1.0):
    return np.full(3, value)


CALLS = {
    "declared": (
        Declared,
        lambda: {
            "x": a(), "optional": a(), "union": a(), "items": [a(), a()], "pair": (a(), a()),
            "by_name": {"k": a()}, "inner": {"x": a()}, "inners": [{"x": a()}, Inner(x=a())],
            "record": Record(a()), "root": [a()],
        },
    ),
    "a model": (
        Declared,
        lambda: Declared(
            x=a(), optional=None, union=a(), items=[a()], pair=(a(), a()), by_name={}, inner={"x": a()},
            inners=[], record=Record(a()), root=[a()],
        ),
    ),
    "undeclared": (
        Undeclared,
        lambda: {
            "anything": [a(), {"k": (a(), tensor())}], "plain": a(), "options": {"k": a()},
            "nested": {"k": [a()]}, "extra": a(),
        },
    ),
    "early validators": (Early, lambda: {"x": a(), "y": a(), "z": a()}),
}  # fmt: skip


def arrays_in(tree):
    if isinstance(tree, (np.ndarray, *TENSORS)):
        return [tree]
    if isinstance(tree, BaseModel):
        tree = dict(tree)
    if is_dataclass(tree):
        tree = vars(tree)
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [array for item in tree for array in arrays_in(item)]
    return []


@pytest.mark.parametrize("name", CALLS)
def test_inputs_of_every_schema_are_the_authors_own(name):
    schema, make = CALLS[name]

    def spoil(inputs: schema) -> float:
        destroy(inputs)
        return 1.0

    inputs = make()
    before = [np.array(np.asarray(each.tolist())) for each in arrays_in(inputs)]
    spoiler = component(spoil)
    for _ in range(2):
        spoiler.apply(inputs)
    for array, was in zip(arrays_in(inputs), before, strict=True):
        np.testing.assert_array_equal(array.tolist(), was)


def test_defaults_are_the_authors_own():
    class Defaults(BaseModel):
        x: Vector = np.ones(3)
        y: Vector = [1.0, 2.0]

    @component
    def total(inputs: Defaults) -> float:
        result = inputs.x.sum() + inputs.y.sum()
        destroy(inputs)
        return result

    assert [total.apply({})["result"] for _ in range(3)] == [6.0] * 3


def test_results_of_every_kind_are_the_callers_own():
    state = {
        "plain": np.ones(3),
        "items": [np.ones(3)],
        "anything": {"k": np.ones(3)},
        "tensor": tensor(),
    }

    class Results(BaseModel):
        plain: Vector
        items: list[Vector]
        anything: Any
        tensor: Vector

    @component
    def constant(x: float) -> Results:
        return state

    first, second = constant.apply({"x": 1.0}), constant.apply({"x": 1.0})
    destroy(first)
    for tree in (second, state, constant.apply({"x": 2.0})):
        for array in arrays_in(tree):
            assert array.tolist() == [1.0] * 3
    destroy(state)
    assert all(array.tolist() == [1.0] * 3 for array in arrays_in(second))


class InputSchema(BaseModel):
    x: Moving
    fixed: Vector


class OutputSchema(BaseModel):
    y: Moving


def module(**functions):
    """A component from the functions of an author: y = x² · fixed."""
    made = ModuleType("authored")
    vars(made).update(InputSchema=InputSchema, OutputSchema=OutputSchema, **functions)
    return load_component(made)


BUFFER = np.empty(3)


def spoiling(function):
    """A function that overwrites its arguments and returns the same buffer every time."""

    @functools.wraps(function)
    def call(**arguments):
        result = function(**arguments)
        for argument in arguments.values():
            argument.clear() if isinstance(argument, set) else destroy(argument)
        for key, value in result.items():
            BUFFER[...] = value
            result[key] = BUFFER
        return result

    return call


def apply(inputs):
    return spoiling(lambda inputs: {"y": inputs.x**2 * inputs.fixed})(inputs=inputs)


@spoiling
def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 2 * inputs.x * inputs.fixed * tangent_vector["x"]}


@spoiling
def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.x * inputs.fixed * cotangent_vector["y"]}


X, FIXED, V = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 0.5]), np.array([1.0, -1.0, 4.0])
SLOPE = 2 * X * FIXED
PRODUCTS = {
    "jvp": {"jacobian_vector_product": jacobian_vector_product},
    "vjp": {"vector_jacobian_product": vector_jacobian_product},
}
PRODUCTS["both"] = PRODUCTS["jvp"] | PRODUCTS["vjp"]


def inputs():
    return {"x": X.copy(), "fixed": FIXED.copy()}


@pytest.mark.parametrize("given", PRODUCTS)
def test_derived_derivatives_call_the_author_with_fresh_arrays(given):
    authored = module(apply=apply, **PRODUCTS[given])
    held, v, vectors = inputs(), V.copy(), np.stack([V, 2 * V, -V])
    for _ in range(2):
        jacobian = authored.jacobian(held, ["x"], ["y"])["y"]["x"]
        np.testing.assert_allclose(jacobian, np.diag(SLOPE))
        pushed = authored.jacobian_vector_product(held, ["x"], ["y"], {"x": v})["y"]
        pulled = authored.vector_jacobian_product(held, ["x"], ["y"], {"y": v})["x"]
        np.testing.assert_allclose([pushed, pulled], [SLOPE * V] * 2)
        many = authored.vector_jacobian_product(held, ["x"], ["y"], {"y": vectors}, batched=True)
        np.testing.assert_allclose(many["x"], SLOPE * np.stack([V, 2 * V, -V]))
        both = authored.value_and_vjp(held, ["x"], ["y"], {"y": v})
        np.testing.assert_allclose(both["outputs"]["y"], X**2 * FIXED)
        np.testing.assert_allclose(both["gradient"]["x"], SLOPE * V)
    np.testing.assert_array_equal([held["x"], held["fixed"], v], [X, FIXED, V])


@pytest.mark.parametrize("algorithm", ["central", "forward", "richardson", "complex_step"])
@pytest.mark.parametrize("is_model", [False, True])
def test_finite_differences_call_the_author_with_fresh_arrays(algorithm, is_model):
    def spoil(inputs):
        at = inputs if is_model else InputSchema.model_construct(**inputs)
        y = at.x**2 * at.fixed
        destroy(at)
        return {"y": y}

    held = InputSchema(**inputs()) if is_model else inputs()
    for _ in range(2):
        blocks = finite_difference_jacobian(
            spoil, held, ["x"], ["y"], algorithm=algorithm, eps="auto"
        )
        np.testing.assert_allclose(blocks["y"]["x"], np.diag(SLOPE), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(dict(held)["fixed"], FIXED)


def test_helpers_call_the_author_with_fresh_arrays():
    def jvp(inputs, jvp_inputs, jvp_outputs, tangent_vector):
        result = {"y": 2 * inputs["x"] * inputs["fixed"] * tangent_vector["x"]}
        destroy([inputs, tangent_vector])
        return result

    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        result = {"x": 2 * inputs["x"] * inputs["fixed"] * cotangent_vector["y"]}
        destroy([inputs, cotangent_vector])
        return result

    def evaluate(inputs):
        result = {"y": inputs["x"] ** 2 * inputs["fixed"]}
        destroy(inputs)
        return result

    held, v, cotangent = inputs(), {"x": V.copy()}, {"y": V.copy()}
    found = jacobian_from_jvp(jvp, held, ["x"], ["y"])["y"]["x"]
    np.testing.assert_allclose(found, np.diag(SLOPE))
    found = jacobian_from_vjp(vjp, evaluate, held, ["x"], ["y"])["y"]["x"]
    np.testing.assert_allclose(found, np.diag(SLOPE))
    found = hvp_from_vjp(vjp, held, ["x"], ["y"], cotangent, v)["x"]
    np.testing.assert_allclose(found, 2 * FIXED * V * V, rtol=1e-6)
    np.testing.assert_array_equal([held["x"], v["x"], cotangent["y"]], [X, V, V])


def test_implicit_functions_call_the_author_with_fresh_arrays():
    def solve(inputs):
        result = {"y": np.sqrt(inputs["a"])}
        destroy(inputs)
        return result

    def residual(inputs, outputs):
        result = {"r": outputs["y"] ** 2 - inputs["a"]}
        destroy([inputs, outputs])
        return result

    def solve_linear(inputs, outputs, right):
        result = {"y": right["r"] / (2 * outputs["y"])}
        destroy([inputs, outputs, right])
        return result

    root = ImplicitFunction(solve, residual, solve_linear=solve_linear)
    held = {"a": np.array([1.0, 4.0, 9.0])}
    expected = 1 / (2 * np.sqrt([1.0, 4.0, 9.0]))
    for _ in range(2):
        destroy(root.apply(held))
        np.testing.assert_allclose(root.apply(held)["y"], [1, 2, 3])
        pushed = root.jacobian_vector_product(held, {"a"}, {"y"}, {"a": np.ones(3)})["y"]
        pulled = root.vector_jacobian_product(held, {"a"}, {"y"}, {"y": np.ones(3)})["a"]
        np.testing.assert_allclose([pushed, pulled], [expected] * 2, rtol=1e-6)
        jacobian = root.jacobian(held, {"a"}, {"y"})["y"]["a"]
        np.testing.assert_allclose(jacobian, np.diag(expected), rtol=1e-6)
    np.testing.assert_array_equal(held["a"], [1, 4, 9])


def test_residuals_stay_as_they_were():
    buffer, runs = np.empty(3), []

    def apply(inputs):
        runs.append(1)
        buffer[...] = 2 * inputs.x * inputs.fixed
        y = inputs.x**2 * inputs.fixed
        destroy(inputs)
        return WithResiduals({"y": y}, {"slope": buffer})

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
        result = residuals["slope"] * cotangent_vector["y"]
        destroy([inputs, cotangent_vector, residuals])
        return {"x": result}

    authored = module(apply=apply, vector_jacobian_product=vector_jacobian_product)
    points = [inputs(), inputs() | {"x": 10 * X}]
    for point in points:
        authored.apply(point)
    assert len(runs) == 2
    for _ in range(3):
        for point, factor in zip(points, (1, 10), strict=True):
            found = authored.vector_jacobian_product(point, ["x"], ["y"], {"y": V})["x"]
            np.testing.assert_allclose(found, factor * SLOPE * V)
    assert len(runs) == 2  # what was kept is found by the inputs as they were


@needs_torch
def test_components_in_torch_get_tensors_of_their_own():
    """`torch.func` itself forbids to overwrite what is not differentiated, so derivatives are left out."""

    @component(framework="torch")
    def square(x: Moving, fixed: Vector) -> Moving:
        result = x * x * fixed
        destroy([x, fixed])
        return result

    held = inputs()
    for _ in range(2):
        np.testing.assert_allclose(square.apply(held)["result"], X**2 * FIXED)
    np.testing.assert_array_equal([held["x"], held["fixed"]], [X, FIXED])


@needs_torch
def test_torch_programs_keep_their_tensors():
    import chainrule.torch

    def abstract_eval(abstract_inputs):
        return {"y": abstract_inputs.x}

    authored = module(apply=apply, abstract_eval=abstract_eval, **PRODUCTS["both"])
    x, fixed = torch.tensor(X, requires_grad=True), torch.tensor(FIXED)
    kept = []
    for _ in range(2):
        y = chainrule.torch.apply_component(authored, {"x": x, "fixed": fixed})["y"]
        kept.append(y)
        y.backward(torch.tensor(V))
    np.testing.assert_allclose(x.grad.numpy(), 2 * SLOPE * V)
    for y in kept:
        np.testing.assert_allclose(y.detach().numpy(), X**2 * FIXED)
    np.testing.assert_array_equal([x.detach().numpy(), fixed.numpy()], [X, FIXED])


@needs_torch
def test_tensors_of_the_caller_stay_as_they_are():
    tensor = torch.tensor(X)
    authored = module(apply=apply)
    authored.apply({"x": tensor, "fixed": tensor})
    np.testing.assert_array_equal(tensor.numpy(), X)


class OnDevice:
    """Stands for an array in the memory of a GPU."""

    __cuda_array_interface__ = {}  # noqa: RUF012
    shape, dtype = (3,), np.dtype(np.float64)

    def __init__(self, values):
        self.values = values

    def copy(self):
        return OnDevice(self.values.copy())


def test_arrays_on_a_device_are_copied_there():
    seen = []

    def look(inputs):
        seen.append(inputs.x)
        inputs.x.values[...] = np.nan
        return {"y": FIXED}

    x = OnDevice(X.copy())
    module(apply=look).apply({"x": x, "fixed": FIXED})
    assert isinstance(seen[0], OnDevice)
    np.testing.assert_array_equal(x.values, X)


leaves = st.sampled_from(["array", "tensor", "sparse", "number", "text", "none"])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def grown(tree):
    if isinstance(tree, dict):
        return {key: grown(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(grown, tree))
    makers = {
        "array": a,
        "tensor": tensor,
        "sparse": lambda: SparseArray((3,), [[0], [1]], np.ones(2)),
        "number": lambda: 2.5,
        "none": lambda: None,
    }
    return makers.get(tree, lambda: tree)()


def as_numbers(tree):
    if isinstance(tree, dict):
        return {key: as_numbers(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(as_numbers, tree))
    if isinstance(tree, SparseArray):
        return tree.todense().tolist()
    return tree.tolist() if hasattr(tree, "tolist") else tree


@given(trees)
def test_a_copy_of_a_tree_is_equal_and_shares_nothing(tree):
    original = grown(tree)
    copied = own_copy(original)
    before = as_numbers(original)
    assert as_numbers(copied) == before
    destroy(copied)
    assert as_numbers(original) == before


def test_handles_of_the_tesseract_api_give_their_own_arrays(tmp_path):
    from chainrule.compat.tesseract_core import Tesseract

    file = tmp_path / "tesseract_api.py"
    file.write_text(
        "from pydantic import BaseModel\n"
        "from tesseract_core.runtime import Array, Float64\n"
        "class InputSchema(BaseModel):\n    x: Array[(None,), Float64]\n"
        "class OutputSchema(BaseModel):\n    y: Array[(None,), Float64]\n"
        "def apply(inputs):\n    inputs.x[...] *= 2\n    return {'y': inputs.x}\n"
    )
    x = X.copy()
    with Tesseract.from_tesseract_api(file) as tesseract:
        first = tesseract.apply({"x": x})["y"]
        second = tesseract.apply({"x": x})["y"]
    np.testing.assert_array_equal([first, second], [2 * X] * 2)
    np.testing.assert_array_equal(x, X)
