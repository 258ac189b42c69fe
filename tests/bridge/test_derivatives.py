"""Which endpoints derivatives ask, for what, and what they do where there is nothing to ask."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component, from_callable
from chainrule.errors import CapabilityError, InputError
from chainrule.runtime import SparseArray, load_component

HERE = Path(__file__).parent
X, A = np.array([0.3, -0.7, 1.1]), np.array(1.7)


class Recorder:
    """A component that writes down what it is asked."""

    def __init__(self, component, endpoints=None):
        self._component = component
        self.requests = []
        self.abstract_evaluations = 0
        self.available_endpoints = list(endpoints or component.available_endpoints)

    def __getattr__(self, name):
        value = getattr(self._component, name)
        if name == "abstract_eval":
            self.abstract_evaluations += 1
        if name not in ("apply", "jacobian", "jacobian_vector_product", "vector_jacobian_product"):
            return value

        def ask(inputs, **request):
            paths = [tuple(v) for k, v in request.items() if k.endswith(("_inputs", "_outputs"))]
            self.requests.append((name, *paths))
            return value(inputs, **request)

        return ask


@pytest.fixture
def numpy_component():
    return load_component(HERE / "components" / "numpy_component.py")


def apply(component, x, a, **options):
    return apply_component(component, {"x": x, "a": a}, **options)


def test_only_needed_paths_are_asked_for(numpy_component):
    recorder = Recorder(numpy_component)
    jax.jit(jax.grad(lambda x: apply(recorder, x, A)["s"]))(X)
    assert recorder.requests == [("vector_jacobian_product", ("x",), ("s",))]


def test_tangents_are_asked_for_moving_inputs_only(numpy_component):
    recorder = Recorder(numpy_component)
    jax.jit(lambda a: jax.jvp(lambda a: apply(recorder, X, a)["y"], (a,), (a,))[1])(A)
    assert ("jacobian_vector_product", ("a",), ("y", "s")) in recorder.requests


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev])
def test_a_jacobian_is_one_request(numpy_component, transform):
    recorder = Recorder(numpy_component)
    jax.jit(transform(lambda x: apply(recorder, x, A)["y"]))(X)
    assert [name for name, *_ in recorder.requests if name != "apply"] == ["jacobian"]


def test_materialize_jacobian_false_asks_for_products(numpy_component):
    recorder = Recorder(numpy_component)
    f = jax.jacrev(lambda x: apply(recorder, x, A, materialize_jacobian=False)["y"])
    np.testing.assert_allclose(f(X), jax.jacrev(lambda x: apply(numpy_component, x, A)["y"])(X))
    assert "jacobian" not in [name for name, *_ in recorder.requests]


@pytest.mark.parametrize(
    "available", ["jacobian", "jacobian_vector_product", "vector_jacobian_product"]
)
def test_one_derivative_endpoint_gives_all(numpy_component, available):
    recorder = Recorder(numpy_component, ["apply", "abstract_eval", available])

    def both(component):
        f = lambda x, a: apply(component, x, a)  # noqa: E731
        outputs, pull = jax.vjp(f, X, A)
        return jax.jvp(f, (X, A), (X, A)), pull(outputs), jax.jacrev(f)(X, A)

    wanted, found = both(numpy_component), both(recorder)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-12), found, wanted)
    asked = {name for name, *_ in recorder.requests} - {"apply"}
    assert asked == {available}


def test_no_derivative_endpoint_is_an_error_when_tracing(numpy_component):
    recorder = Recorder(numpy_component, ["apply", "abstract_eval"])
    with pytest.raises(CapabilityError, match="`vector_jacobian_product`") as caught:
        jax.make_jaxpr(jax.grad(lambda x: apply(recorder, x, A)["s"]))(X)
    assert caught.value.code == "no_first_derivative"


def test_a_signature_is_evaluated_abstractly_once(numpy_component):
    recorder = Recorder(numpy_component)
    for _ in range(3):
        jax.jit(jax.grad(lambda x: apply(recorder, x, A)["s"]))(X)
        jax.vmap(lambda x: apply(recorder, x, A)["s"])(np.stack([X, X]))
    assert recorder.abstract_evaluations == 1
    jax.make_jaxpr(lambda x: apply(recorder, x, A)["s"])(X[:2])
    assert recorder.abstract_evaluations == 2


def test_equal_calls_are_merged(numpy_component):
    recorder = Recorder(numpy_component)
    jax.jit(lambda x: apply(recorder, x, A)["s"] + apply(recorder, x, A)["y"].sum())(X)
    assert len(recorder.requests) == 1


def half_differentiable():
    numpy_side = from_callable(
        lambda x, n: (x * n, n + 1),
        jvp=lambda p, t: (t[0] * p[1], np.zeros(p[1].shape, p[1].dtype)),
        abstract=lambda x, n: (x, n),
    )
    return numpy_side, (X, np.array(3))


def test_integer_inputs_have_float0_tangents():
    f, (x, n) = half_differentiable()
    g = jax.jit(jax.grad(lambda x, n: f(x, n)[0].sum(), argnums=(0, 1), allow_int=True))
    along_x, along_n = g(x, n)
    np.testing.assert_allclose(along_x, np.full(3, 3.0))
    assert along_n.dtype == jax.dtypes.float0
    tangents = jax.jvp(f, (x, n), (x, np.zeros((), jax.dtypes.float0)))[1]
    assert tangents[1].dtype == jax.dtypes.float0


def test_a_derivative_by_an_undifferentiable_input_is_an_error(undifferentiable):
    with pytest.raises(InputError, match="`weight`") as caught:
        jax.grad(lambda w: apply_component(undifferentiable, {"x": X, "weight": w})["y"].sum())(1.0)
    assert caught.value.code == "input_not_differentiable"


def test_an_undifferentiable_output_is_constant_forward_and_an_error_backward(undifferentiable):
    f = lambda x: apply_component(undifferentiable, {"x": x, "weight": A})  # noqa: E731
    tangent = jax.jvp(f, (X,), (X,))[1]
    np.testing.assert_array_equal(tangent["norm"], 0.0)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x)["y"].sum()))(X), np.full(3, A))
    push = jax.vmap(jax.linearize(f, X)[1])
    for gradient in (
        jax.grad(lambda x: f(x)["norm"]),
        lambda x: jax.grad(lambda v: push(v)["norm"].sum())(x[None]),
    ):
        with pytest.raises(CapabilityError, match="`norm`") as caught:
            gradient(X)
        assert caught.value.code == "output_not_differentiable"
    ignored = jax.grad(lambda x: f(x)["y"].sum() + jax.lax.stop_gradient(f(x)["norm"]))(X)
    np.testing.assert_allclose(ignored, np.full(3, A))


@pytest.fixture
def undifferentiable(tmp_path):
    source = """
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    weight: Array[(), Float64]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    norm: Array[(), Float64]

def apply(inputs):
    return OutputSchema(y=inputs.weight * inputs.x, norm=(inputs.x ** 2).sum())

def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x, "norm": abstract_inputs.weight}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": inputs.weight * cotangent_vector["y"]}
"""
    path = tmp_path / "component.py"
    path.write_text(source)
    return load_component(path)


def cubic():
    """x ↦ a x³ elementwise, with its second derivative."""
    return from_callable(
        lambda x, a: a * x**3,
        vjp=lambda p, u: (3 * p[1] * p[0] ** 2 * u, (p[0] ** 3 * u).sum()),
        hvp=lambda p, u, t: (
            6 * p[1] * p[0] * u * t[0] + 3 * p[0] ** 2 * u * t[1],
            (3 * p[0] ** 2 * u * t[0]).sum(),
        ),
        abstract=lambda x, a: x,
    )


@pytest.mark.parametrize(
    "transform",
    {
        "hessian": lambda f: jax.jit(jax.hessian(lambda x, a: f(x, a).sum(), (0, 1)))(X, A),
        "grad of grad": lambda f: jax.grad(
            lambda x, a: jax.grad(lambda x: f(x, a).sum())(x).sum(), (0, 1)
        )(X, A),
        "grad of jvp": lambda f: jax.jit(
            jax.grad(lambda x, a: jax.jvp(f, (x, a), (X, A))[1].sum(), (0, 1))
        )(X, A),
        "jvp of jvp": lambda f: jax.jvp(
            lambda x, a: jax.jvp(f, (x, a), (X, A))[1], (X, A), (X, A)
        ),
        "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f))(X, A),
        "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f))(X, A),
        "vmap of hessian": lambda f: jax.vmap(
            jax.hessian(lambda x, a: f(x, a).sum()), (0, None)
        )(np.stack([X, 2 * X]), A),
        "hessian of scan": lambda f: jax.hessian(
            lambda x: jax.lax.scan(lambda x, _: (0.1 * f(x, A), None), x, length=2)[0].sum()
        )(X),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_second_order_through_hessian_vector_product(transform):
    wanted = transform[1](lambda x, a: a * x**3)
    found = transform[1](cubic())
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-12), found, wanted)


def test_third_order_is_an_error():
    with pytest.raises(CapabilityError, match="third"):
        jax.hessian(lambda x: jax.grad(lambda x: cubic()(x, A).sum())(x).sum())(X)


def test_complex_derivatives_follow_jax():
    z = np.array([0.3 + 0.4j, -1.0 + 0.2j])
    f = from_callable(
        lambda z: z**2,
        jvp=lambda p, t: 2 * p[0] * t[0],
        vjp=lambda p, u: (2 * p[0] * u,),
        abstract=lambda z: z,
    )
    for transform in (
        lambda f: jax.grad(lambda z: (f(z) * (1 + 2j)).sum(), holomorphic=True)(z),
        lambda f: jax.grad(lambda z: jnp.abs(f(z)).sum())(z),
        lambda f: jax.jvp(f, (z,), (z + 1j,))[1],
        lambda f: jax.jacrev(f, holomorphic=True)(z),
    ):
        np.testing.assert_allclose(transform(f), transform(lambda z: z**2), rtol=1e-12)


def halves_of(function, jvp, vjp, abstract):
    """The same function with one product only, and the other."""
    return [
        from_callable(function, abstract=abstract, jvp=jvp),
        from_callable(function, abstract=abstract, vjp=vjp),
    ]


NOT_HOLOMORPHIC = {
    "to real": (
        lambda z: jnp.real(z) ** 2 + jnp.imag(z) ** 2,
        halves_of(
            lambda z: np.abs(z) ** 2,
            lambda p, t: 2 * np.real(np.conj(p[0]) * t[0]),
            lambda p, u: (2 * np.conj(p[0]) * u,),
            lambda z: np.zeros(z.shape),
        ),
    ),
    "to complex": (
        lambda z: jnp.conj(z) * 1j,
        halves_of(
            lambda z: np.conj(z) * 1j,
            lambda p, t: np.conj(t[0]) * 1j,
            lambda p, u: (np.conj(u * 1j),),
            lambda z: z,
        ),
    ),
    "from real": (
        lambda z: jnp.exp(1j * jnp.real(z)),
        halves_of(
            lambda z: np.exp(1j * z.real),
            lambda p, t: 1j * np.exp(1j * p[0].real) * t[0].real,
            lambda p, u: (np.real(1j * np.exp(1j * p[0].real) * u) + 0j,),
            lambda z: z,
        ),
    ),
}


@pytest.mark.parametrize("name", NOT_HOLOMORPHIC)
def test_one_product_gives_the_other_where_nothing_is_linear_over_complex_numbers(name):
    z, along = np.array([0.3 + 0.4j, -1.0 + 0.2j]), np.array([1.0 + 2j, -0.5 + 1j])
    wanted, ours = NOT_HOLOMORPHIC[name]
    for f in ours:
        outputs, pull = jax.vjp(f, z)
        u = along if outputs.dtype.kind == "c" else along.real
        np.testing.assert_allclose(pull(u)[0], jax.vjp(wanted, z)[1](u)[0], rtol=1e-12)
        pushed = jax.jvp(wanted, (z,), (along,))[1]
        np.testing.assert_allclose(jax.jvp(f, (z,), (along,))[1], pushed, rtol=1e-12)


class Phase:
    """exp(i x) of a real x, by its Jacobian."""

    name = "phase"
    available_endpoints = ("apply", "abstract_eval", "jacobian")
    differentiable_inputs = {"x": {"dtype": "float64"}}  # noqa: RUF012
    differentiable_outputs = {"y": {"dtype": "complex128"}}  # noqa: RUF012
    openapi_schema = {"components": {"schemas": {}}}  # noqa: RUF012

    def apply(self, inputs):
        return {"y": np.exp(1j * inputs["x"])}

    def abstract_eval(self, inputs):
        return {"y": {**inputs["x"], "dtype": "complex128"}}

    def jacobian(self, inputs, jac_inputs, jac_outputs):
        return {"y": {"x": np.diag(1j * np.exp(1j * inputs["x"]))}}


def test_the_cotangent_of_a_real_input_of_a_complex_jacobian():
    phase, u = Phase(), np.array([1 + 2j, 0.5j, -1.0])
    found = jax.vjp(lambda x: apply_component(phase, {"x": x})["y"], X)[1](u)[0]
    np.testing.assert_allclose(found, jax.vjp(lambda x: jnp.exp(1j * x), X)[1](u)[0], rtol=1e-12)


def test_only_a_derivative_can_be_transposed(numpy_component):
    with pytest.raises(CapabilityError, match="only a linear function") as caught:
        jax.linear_transpose(lambda x: apply(numpy_component, x, A)["y"], X)(X)
    assert caught.value.code == "not_linear"


class HalfPrecision:
    """y = a + 2 b of a float16 and a bfloat16, by its Jacobian."""

    name = "half precision"
    available_endpoints = ("apply", "abstract_eval", "jacobian")
    differentiable_inputs = {"a": {"dtype": "float16"}, "b": {"dtype": "bfloat16"}}  # noqa: RUF012
    differentiable_outputs = {"y": {"dtype": "float32"}}  # noqa: RUF012
    openapi_schema = {"components": {"schemas": {}}}  # noqa: RUF012

    def apply(self, inputs):
        return {"y": inputs["a"].astype("float32") + 2 * inputs["b"].astype("float32")}

    def abstract_eval(self, inputs):
        return {"y": {"shape": [3], "dtype": "float32"}}

    def jacobian(self, inputs, jac_inputs, jac_outputs):
        return {"y": {i: np.eye(3, dtype="float32") * (1 if i == "a" else 2) for i in jac_inputs}}


def test_a_jacobian_by_inputs_of_dtypes_that_numpy_does_not_mix():
    component = HalfPrecision()
    f = lambda a, b: apply_component(component, {"a": a, "b": b})["y"]  # noqa: E731
    point = jnp.asarray(X, "float16"), jnp.asarray(X, "bfloat16")
    for transform in (jax.jacfwd, jax.jacrev):
        by_a, by_b = transform(f, (0, 1))(*point)
        np.testing.assert_array_equal(np.asarray(by_a, float), np.eye(3))
        np.testing.assert_array_equal(np.asarray(by_b, float), 2 * np.eye(3))


class SparseJacobian(Recorder):
    """The same component with Jacobian blocks as sparse arrays."""

    def jacobian(self, inputs, jac_inputs, jac_outputs):
        blocks = self._component.jacobian(inputs, jac_inputs, jac_outputs)
        return {
            o: {i: SparseArray.from_dense(b) for i, b in line.items()} for o, line in blocks.items()
        }


def test_sparse_jacobians(numpy_component):
    sparse = SparseJacobian(numpy_component, ["apply", "abstract_eval", "jacobian"])
    for transform in (
        lambda f: jax.jacrev(f)(X, A),
        lambda f: jax.jvp(f, (X, A), (X, A))[1],
        lambda f: jax.vjp(f, X, A)[1](X),
    ):
        wanted = transform(lambda x, a: apply(numpy_component, x, a)["y"])
        found = transform(lambda x, a: apply(sparse, x, a)["y"])
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-12), found, wanted)
