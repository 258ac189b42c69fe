"""Tangents and cotangents have the shapes of their arrays: others are refused, not broadcast."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from chainrule.errors import InputError
from chainrule.runtime import Array, Differentiable, Float64, component, load_component

# torch compiles its forward mode with what it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

FIXED = Differentiable[Array[(2, 3), Float64]]
NAMED = Differentiable[Array[("n", "m"), Float64]]
OPEN = Differentiable[Array[(None, None), Float64]]
ANY = Differentiable[Array[..., Float64]]
SHAPE = (2, 3)
X = np.arange(1.0, 7.0).reshape(SHAPE)
CODES = {"array_shape_mismatch", "array_dimensionality_mismatch", "vector_shape_mismatch"}


def by_hand(kind, *, abstract_eval):
    """y = x² with a VJP, a JVP and an HVP of the author's, who asserts what he gets."""

    class InputSchema(BaseModel):
        x: kind

    class OutputSchema(BaseModel):
        result: kind

    module = ModuleType("by_hand")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    module.apply = lambda inputs: {"result": inputs.x**2}

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        assert cotangent_vector["result"].shape == inputs.x.shape
        return {"x": 2 * inputs.x * cotangent_vector["result"]}

    def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
        assert tangent_vector["x"].shape == inputs.x.shape
        return {"result": 2 * inputs.x * tangent_vector["x"]}

    def hessian_vector_product(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
        assert cotangent_vector["result"].shape == tangent_vector["x"].shape == inputs.x.shape
        return {"x": 2 * cotangent_vector["result"] * tangent_vector["x"]}

    module.vector_jacobian_product = vector_jacobian_product
    module.jacobian_vector_product = jacobian_vector_product
    module.hessian_vector_product = hessian_vector_product
    if abstract_eval:
        module.abstract_eval = lambda inputs: {"result": inputs.x}
    return load_component(module)


def square(kind, **options):
    def function(x: kind) -> kind:
        return x * x

    return component(**options)(function)


def jitted(kind):
    @jax.jit
    def function(x: kind) -> kind:
        return jnp.square(x)

    return component(function)


def with_jacobian(kind):
    class InputSchema(BaseModel):
        x: kind

    class OutputSchema(BaseModel):
        result: kind

    module = ModuleType("with_jacobian")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    module.apply = lambda inputs: {"result": inputs.x**2}

    def jacobian(inputs, jac_inputs, jac_outputs):
        block = np.zeros(inputs.x.shape * 2)
        for index in np.ndindex(*inputs.x.shape):
            block[index + index] = 2 * inputs.x[index]
        return {"result": {"x": block}}

    module.jacobian = jacobian
    return load_component(module, config={"derive_hvp": True})


COMPONENTS = {
    "fixed_by_hand": lambda: by_hand(FIXED, abstract_eval=False),
    "named_by_hand": lambda: by_hand(NAMED, abstract_eval=False),
    "open_by_hand": lambda: by_hand(OPEN, abstract_eval=True),
    "any_by_hand": lambda: by_hand(ANY, abstract_eval=True),
    "open_finite": lambda: square(OPEN, derivatives="finite"),
    "open_jax": lambda: square(OPEN, framework="jax"),
    "any_jitted": lambda: jitted(ANY),
    "open_torch": lambda: square(OPEN, framework="torch"),
    "open_jacobian": lambda: with_jacobian(OPEN),
}


@pytest.fixture(scope="module", params=list(COMPONENTS))
def subject(request):
    if request.param == "open_torch":
        pytest.importorskip("torch")
    return COMPONENTS[request.param]()


WRONG = [(), (1,), (3,), (1, 1), (1, 3), (2, 1), (3, 2), (2, 2), (2, 4), (1, 2, 3), (6,), (0, 3)]


@pytest.mark.parametrize("shape", WRONG, ids=str)
def test_vectors_of_other_shapes_are_refused(subject, shape):
    at, paths = {"x": X}, (["x"], ["result"])
    bad, good = np.ones(shape), np.ones(SHAPE)
    calls = [
        lambda: subject.jacobian_vector_product(at, *paths, {"x": bad}),
        lambda: subject.vector_jacobian_product(at, *paths, {"result": bad}),
        lambda: subject.value_and_vjp(at, *paths, {"result": bad}),
        lambda: subject.hessian_vector_product(at, *paths, {"result": bad}, {"x": good}),
        lambda: subject.hessian_vector_product(at, *paths, {"result": good}, {"x": bad}),
    ]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code in CODES


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 1, 3), (4, 2, 1), (4, 3, 2), (2, 3)], ids=str)
def test_batches_of_other_shapes_are_refused(subject, shape):
    at, paths = {"x": X}, (["x"], ["result"])
    for call in (
        lambda: subject.jacobian_vector_product(at, *paths, {"x": np.ones(shape)}, batched=True),
        lambda: subject.vector_jacobian_product(
            at, *paths, {"result": np.ones(shape)}, batched=True
        ),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code in CODES


def test_vectors_that_fit(subject):
    at, paths = {"x": X}, (["x"], ["result"])
    u, v = np.linspace(-1, 1, 6).reshape(SHAPE), np.linspace(0, 1, 6).reshape(SHAPE)
    tolerance = {"rtol": 1e-6, "atol": 1e-6}
    for _ in range(2):
        pushed = subject.jacobian_vector_product(at, *paths, {"x": v})["result"]
        np.testing.assert_allclose(pushed, 2 * X * v, **tolerance)
        pulled = subject.vector_jacobian_product(at, *paths, {"result": u.tolist()})["x"]
        np.testing.assert_allclose(pulled, 2 * X * u, **tolerance)
    batch = np.stack([u, v, u + v, u - v])
    pulled = subject.vector_jacobian_product(at, *paths, {"result": batch}, batched=True)["x"]
    np.testing.assert_allclose(pulled, 2 * X * batch, **tolerance)


@given(
    st.tuples(st.integers(0, 4), st.integers(0, 4)), st.tuples(st.integers(0, 4), st.integers(0, 4))
)
def test_only_the_shape_of_these_inputs_fits(inputs, vector):
    subject = by_hand(OPEN, abstract_eval=True)
    at, paths, u = {"x": np.ones(inputs)}, (["x"], ["result"]), np.ones(vector)
    if inputs == vector:
        pulled = subject.vector_jacobian_product(at, *paths, {"result": u})["x"]
        np.testing.assert_array_equal(pulled, 2 * u)
    else:
        with pytest.raises(InputError):
            subject.vector_jacobian_product(at, *paths, {"result": u})


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (np.ones(SHAPE) * 1j, "array_dtype_mismatch"),
        ([["a"] * 3] * 2, "array_non_numeric"),
        (None, "array_non_numeric"),
    ],
)
def test_vectors_of_other_kinds_are_refused(subject, value, code):
    paths = (["x"], ["result"])
    for call in (
        lambda: subject.jacobian_vector_product({"x": X}, *paths, {"x": value}),
        lambda: subject.vector_jacobian_product({"x": X}, *paths, {"result": value}),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == code


def test_numbers_of_narrower_dtypes_are_widened(subject):
    for dtype in (np.float32, np.int8, bool):
        vector = np.ones(SHAPE, dtype)
        pushed = subject.jacobian_vector_product({"x": X}, ["x"], ["result"], {"x": vector})
        np.testing.assert_allclose(pushed["result"], 2 * X, rtol=1e-6)
