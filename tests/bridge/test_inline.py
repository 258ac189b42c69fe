"""A component written in JAX becomes part of the caller's program."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule import apply_component, component
from chainrule.bridge import PrecisionWarning
from chainrule.errors import CapabilityError, ComponentError, InputError
from chainrule.runtime import Array, Differentiable, Float32, Float64, load_component

Vector = Differentiable[Array[(None,), Float64]]
Named = Differentiable[Array[("n",), Float64]]
X = np.array([0.3, -0.7, 1.1])


@component(framework="jax")
def power(x: Vector, scale: Differentiable[Array[(), Float64]], exponent: int = 2) -> Vector:
    return scale * x**exponent


def f(x, scale=2.0, **static):
    return apply_component(power, {"x": x, "scale": scale, **static})["result"]


def primitives(program):
    return {equation.primitive.name for equation in program.jaxpr.eqns}


def test_there_is_no_host_call_in_the_program():
    program = jax.make_jaxpr(f)(X)
    assert "host_call" not in primitives(program)
    assert "custom_call" not in jax.jit(f).lower(X).as_text()
    host = jax.make_jaxpr(lambda x: apply_component(power, {"x": x, "scale": 2.0}, inline=False))(X)
    assert "host_call" in primitives(host)


def test_the_compiled_program_is_that_of_the_plain_function():
    def compiled(function):
        text = jax.jit(function).lower(X).compile().as_text()
        body = text[text.index("ENTRY") :]
        names: dict[str, str] = {}
        without_metadata = re.sub(r", metadata=\{[^}]*\}", "", body)
        return re.sub(
            r"%[\w.-]+", lambda m: names.setdefault(m[0], f"%{len(names)}"), without_metadata
        )

    def plain(x):
        return 2.0 * x**2

    for transform in (lambda g: g, lambda g: jax.value_and_grad(lambda x: g(x).sum())):
        assert compiled(transform(f)) == compiled(transform(plain))


def test_derivatives_of_every_order():
    third = jax.grad(jax.grad(jax.grad(lambda s: f(X[:1], s, exponent=3)[0] * s**3)))(1.5)
    np.testing.assert_allclose(third, 24 * 1.5 * X[0] ** 3)
    np.testing.assert_allclose(jax.hessian(lambda x: f(x).sum())(X), 4 * np.eye(3))


def test_defaults_are_filled_in_and_static_fields_are_part_of_the_program():
    np.testing.assert_allclose(jax.jit(f)(X), 2 * X**2)
    np.testing.assert_allclose(jax.jit(lambda x: f(x, exponent=3))(X), 2 * X**3)
    np.testing.assert_allclose(f(X, exponent=3), 2 * X**3)


class Material(BaseModel):
    stiffness: Differentiable[Float64] = 3.0
    weights: Array[(2,), Float64] = [1.0, 2.0]


@component(framework="jax")
def pull(
    x: Differentiable[Float64],
    rate: Differentiable[Float64] = 0.5,
    material: Material = Material(weights=[4.0, 5.0]),  # noqa: B008
) -> Differentiable[Float64]:
    return rate * material.stiffness * material.weights.sum() * x


@pytest.mark.parametrize(
    ("given", "slope"),
    [
        ({}, 0.5 * 3 * 9),
        ({"rate": 2.0}, 2 * 3 * 9),
        ({"material": {}}, 0.5 * 3 * 3),
        ({"material": {"stiffness": 1.0}}, 0.5 * 1 * 3),
    ],
)
def test_arrays_that_are_left_out_have_the_authors_defaults(given, slope):
    call = jax.jit(lambda x: apply_component(pull, {"x": x, **given})["result"])
    assert float(call(2.0)) == 2 * slope
    assert float(jax.grad(call)(2.0)) == slope
    assert float(pull.apply({"x": 2.0, **given})["result"]) == 2 * slope


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_known_numbers_inside_of_a_program(kind):
    constant = kind(X)
    np.testing.assert_allclose(jax.jit(lambda x: f(constant) * x)(X), 2 * X**3, rtol=1e-6)
    assert jax.eval_shape(lambda: f(constant)).shape == (3,)


def test_shapes_are_checked_when_tracing():
    with pytest.raises(InputError, match="x"):
        jax.make_jaxpr(f)(np.ones((2, 2)))
    with pytest.raises(InputError, match="scale"):
        jax.make_jaxpr(lambda x: apply_component(power, {"x": x}))(X)
    with pytest.raises(InputError, match="exponent"):
        jax.make_jaxpr(lambda x: f(x, exponent="two"))(X)


def test_inputs_are_converted_to_the_schemas_dtype_and_gradients_back():
    gradient = jax.jit(jax.grad(lambda x: f(x).sum()))(X.astype("float32"))
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, 4 * X, rtol=1e-6)
    integers = jax.jit(f)(np.array([1, 2]))
    assert integers.dtype == np.float64


def test_a_function_that_cannot_be_traced_is_called_on_the_host(tmp_path):
    path = tmp_path / "branching.py"
    path.write_text(
        """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]

def jax_function(inputs):
    return {"y": np.sin(inputs["x"]) if inputs["x"][0] > 0 else inputs["x"]}

def apply(inputs):
    return OutputSchema(**jax_function({"x": inputs.x}))

def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x}
"""
    )
    branching = load_component(path)
    g = lambda x: apply_component(branching, {"x": x})["y"]  # noqa: E731
    assert "host_call" in primitives(jax.make_jaxpr(g)(X))
    np.testing.assert_allclose(jax.vmap(g)(X[None]), np.sin(X)[None])
    with pytest.raises(CapabilityError, match="traceable"):
        jax.jit(g)(X)


def test_export_with_fixed_and_symbolic_shapes():
    exported = jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct((3,), np.float64))
    np.testing.assert_allclose(exported.call(X), 2 * X**2)
    (n,) = jax.export.symbolic_shape("n")
    symbolic = jax.export.export(jax.jit(lambda x: f(x, exponent=2)))(
        jax.ShapeDtypeStruct((n,), np.float64)
    )
    np.testing.assert_allclose(symbolic.call(np.ones(5)), 2 * np.ones(5))
    with pytest.raises(CapabilityError, match="exported") as caught:
        jax.export.export(
            jax.jit(lambda x: apply_component(power, {"x": x, "scale": 2.0}, inline=False))
        )(symbolic.in_avals[0])
    assert caught.value.code == "not_exportable"


def test_without_x64_there_is_a_rule_and_a_warning():
    with jax.enable_x64(False):
        with pytest.warns(PrecisionWarning, match="x64"):
            y = jax.jit(f)(X.astype("float32"))
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, 2 * X**2, rtol=1e-6)


class Layer(BaseModel):
    weight: Differentiable[Array[(None, None), Float32]]
    bias: Differentiable[Array[(None,), Float32]] | None = None


@component(framework="jax")
def network(
    x: Differentiable[Array[(None,), Float32]], layers: list[Layer], mode: str = "tanh"
) -> Differentiable[Array[(None,), Float32]]:
    activation = {"tanh": jnp.tanh, "sin": jnp.sin}[mode]
    for layer in layers:
        weight, bias = _get(layer, "weight"), _get(layer, "bias")
        x = activation(weight @ x + (0.0 if bias is None else bias))
    return x


def _get(node: Any, name: str) -> Any:
    return node[name] if isinstance(node, dict) else getattr(node, name)


def test_nested_inputs_with_optional_parts():
    key = np.random.default_rng(0)
    layers = [
        {"weight": key.normal(size=(2, 3)).astype("float32"), "bias": np.ones(2, "float32")},
        {"weight": key.normal(size=(1, 2)).astype("float32")},
    ]

    def loss(layers, x, inline):
        inputs = {"x": x, "layers": layers, "mode": "sin"}
        return apply_component(network, inputs, inline=inline)["result"].sum()

    x = X.astype("float32")
    inlined = jax.jit(jax.grad(loss), static_argnums=2)(layers, x, True)
    on_host = jax.grad(loss)(layers, x, False)

    def reference(layers, x):
        y = jnp.sin(layers[0]["weight"] @ x + layers[0]["bias"])
        return jnp.sin(layers[1]["weight"] @ y).sum()

    wanted = jax.grad(reference)(layers, x)
    for found in (inlined, on_host):
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-5), found, wanted)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_outputs_are_what_the_schema_says(jit):
    @component(framework="jax")
    def narrow(x: Differentiable[Array[("n",), Float64]]) -> Differentiable[Array[("n",), Float32]]:
        return 2 * x

    @component(framework="jax")
    def stretched(x: Array[("n",), Float64]) -> Array[(4,), Float64]:
        return x.sum(keepdims=True)

    @component(framework="jax")
    def wrong(x: Array[("n",), Float64]) -> Array[(2,), Float64]:
        return x

    def run(c):
        return jit(lambda x: apply_component(c, {"x": x})["result"])(X)

    assert run(narrow).dtype == np.float32
    np.testing.assert_allclose(run(stretched), np.full(4, X.sum()))
    with pytest.raises(ComponentError, match=r"f64\[2\], found f64\[3\]") as caught:
        run(wrong)
    assert caught.value.code == "bad_output"


@pytest.mark.parametrize("how", ["eager", "jit", "inline=False"])
def test_names_of_dimensions_mean_one_size_in_inputs_and_outputs(how):
    @component(framework="jax")
    def shortened(x: Named, y: Named) -> Differentiable[Array[("n",), Float64]]:
        return (x + y)[1:]

    def run(x):
        inputs = {"x": x, "y": x}
        return apply_component(shortened, inputs, inline=how != "inline=False")["result"]

    call = {"eager": run, "jit": jax.jit(run), "inline=False": lambda x: jax.vmap(run)(x[None])}
    with pytest.raises(ComponentError, match="'n' has size 3 in x but size 2 in result") as caught:
        call[how](X)
    assert caught.value.code == "bad_output"
