"""Derivatives that an author wrote by hand beside a JAX function are used, wherever the component runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import Component, apply_component
from chainrule.errors import CapabilityError
from chainrule.runtime import load_component

X = np.array([0.3, -0.7, 1.1])
SLOPE = 1 - np.tanh(X) ** 2  # the surrogate's; JAX's derivative of the sign is zero

FILE = """
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64
from chainrule.runtime.jax_recipes import jax_apply, jax_jvp, jax_vjp
from chainrule._trees import filter_func, flatten_with_paths

class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    scale: Differentiable[Float64] = 1.0

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]

@jax.jit
def apply_jit(inputs):
    return {"y": inputs["scale"] * FUNCTION(inputs["x"])}

def apply(inputs):
    return OutputSchema(**jax_apply(apply_jit, inputs))

def slope(inputs):
    return inputs.scale * (1 - jnp.tanh(inputs.x) ** 2)
"""
VJP = """
def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    u = cotangent_vector["y"]
    found = {"x": u * slope(inputs), "scale": (u * jnp.sign(inputs.x)).sum()}
    return {path: found[path] for path in vjp_inputs}
"""
JVP = """
def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    moved = {"x": slope(inputs), "scale": jnp.sign(inputs.x)}
    return {"y": sum(moved[path] * tangent_vector[path] for path in jvp_inputs)}
"""
JACOBIAN = """
def jacobian(inputs, jac_inputs, jac_outputs):
    found = {"x": jnp.diag(slope(inputs)), "scale": jnp.sign(inputs.x)}
    return {"y": {path: found[path] for path in jac_inputs}}
"""
HVP = """
def hessian_vector_product(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
    return {"x": 100 * cotangent_vector["y"] * tangent_vector["x"]}
"""
RECIPES = """
def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jax_jvp(apply_jit, inputs, jvp_inputs, jvp_outputs, tangent_vector)
"""
TEMPLATE = """
def vector_jacobian_product(inputs, vjp_inputs: set[str], vjp_outputs: set[str], cotangent_vector):
    return vjp_jit(inputs.model_dump(), tuple(vjp_inputs), tuple(vjp_outputs), cotangent_vector)

def vjp_jit(inputs: dict, vjp_inputs: tuple[str], vjp_outputs: tuple[str], cotangent_vector: dict):
    filtered_apply = filter_func(apply_jit, inputs, vjp_outputs)
    _, vjp_func = jax.vjp(filtered_apply, flatten_with_paths(inputs, include_paths=vjp_inputs))
    return vjp_func(cotangent_vector)[0]
"""


def source(folder, *endpoints, function="jnp.sign"):
    path = folder / "surrogate.py"
    path.write_text(FILE.replace("FUNCTION", function) + "".join(endpoints))
    return path


def calls(component, **options):
    def f(x, scale=1.0):
        return apply_component(component, {"x": x, "scale": scale}, **options)["y"]

    return f


def answers(f):
    """What several transformations make of a component, and what they should."""
    two = jnp.stack([X, 2 * X])
    return {
        "grad": (lambda x: jax.grad(lambda x: (x * f(x)).sum())(x), np.sign(X) + X * SLOPE),
        "jvp": (lambda x: jax.jvp(f, (x,), (x,))[1], X * SLOPE),
        "jacrev": (lambda x: jax.jacrev(f)(x), np.diag(SLOPE)),
        "jacfwd": (lambda x: jax.jacfwd(f)(x), np.diag(SLOPE)),
        "scale": (lambda x: jax.jacfwd(f, argnums=1)(x, 1.0), np.sign(X)),
        "vmap": (
            lambda x: jax.vmap(jax.grad(lambda x, s: f(x, s).sum()), in_axes=(0, None))(two, 3.0),
            3 * (1 - np.tanh(two) ** 2),
        ),
    }


@pytest.mark.parametrize("endpoints", [VJP, JVP, JACOBIAN], ids=["vjp", "jvp", "jacobian"])
def test_every_first_derivative_follows_from_the_authors(endpoints, tmp_path):
    f = calls(load_component(source(tmp_path, endpoints)))
    checks = answers(f)
    found = {name: call(X) for name, (call, _) in checks.items()}
    compiled = jax.jit(lambda x: {name: call(x) for name, (call, _) in checks.items()})(X)
    for name, (_, wanted) in checks.items():
        np.testing.assert_allclose(found[name], wanted, err_msg=name)
        np.testing.assert_allclose(compiled[name], wanted, err_msg=f"jit of {name}")


def test_it_is_the_same_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    with Component.from_source(source(tmp_path, VJP)) as remote:
        for name, (call, wanted) in answers(calls(remote)).items():
            np.testing.assert_allclose(call(X), wanted, err_msg=name)


SMOOTH = """
@jax.jit
def smooth(inputs):
    return {"y": inputs["scale"] * jnp.tanh(inputs["x"])}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(smooth, inputs, vjp_inputs, vjp_outputs, cotangent_vector)
"""
SCALED = RECIPES.replace(
    "return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)",
    "u = {path: 2 * value for path, value in cotangent_vector.items()}\n"
    "    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, u)",
)


@pytest.mark.parametrize(
    ("endpoints", "function", "wanted"),
    [(SMOOTH, "jnp.sign", SLOPE), (SCALED, "jnp.sin", 2 * np.cos(X))],
    ids=["of another function", "scaled"],
)
def test_recipes_with_something_else_in_them_count(endpoints, function, wanted, tmp_path):
    f = calls(load_component(source(tmp_path, endpoints, function=function)))
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(X), wanted)


def test_jax_differentiates_the_function_if_told_to(tmp_path):
    f = calls(load_component(source(tmp_path, VJP)), inline=True)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: f(x).sum()))(X), 0 * X)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_real_input_of_a_complex_output_has_a_real_cotangent(compiled, tmp_path):
    """y = exp(ix) has J = i exp(ix); the loss is Re(c·y), and its gradient Re(cJ), as in JAX."""
    jacobian = """
def jacobian(inputs, jac_inputs, jac_outputs):
    return {"y": {"x": jnp.diag(1j * jnp.exp(1j * inputs.x))}}
"""
    path = source(tmp_path, jacobian, function="(lambda x: jnp.exp(1j * x))")
    path.write_text(path.read_text().replace("y: Differentiable[Array[(\"n\",), Float64]]",
        "y: Differentiable[Array[(\"n\",), 'complex128']]"))  # fmt: skip
    f = calls(load_component(path))
    found = jax.grad(lambda x: jnp.real((1 + 2j) * f(x)).sum())
    wanted = jax.grad(lambda x: jnp.real((1 + 2j) * jnp.exp(1j * x)).sum())(X)
    np.testing.assert_allclose((jax.jit(found) if compiled else found)(X), wanted)


def test_the_compiled_program_has_no_call_of_the_host_and_can_be_exported(tmp_path):
    f = calls(load_component(source(tmp_path, VJP)))
    gradient = jax.jit(jax.grad(lambda x: f(x).sum()))
    assert "custom_call" not in gradient.lower(X).as_text()
    np.testing.assert_allclose(jax.export.export(gradient)(X).call(X), SLOPE)


def test_second_derivatives_are_the_authors_or_an_error(tmp_path):
    own = calls(load_component(source(tmp_path, VJP, HVP)))
    wanted = np.zeros((3, 3, 3))
    wanted[range(3), range(3), range(3)] = 100
    for transform in (jax.jacfwd, jax.jacrev):
        for jit in (lambda f: f, jax.jit):
            np.testing.assert_allclose(jit(jax.jacfwd(transform(own)))(X), wanted)
    (tmp_path / "without").mkdir()
    without = calls(load_component(source(tmp_path / "without", VJP)))
    with pytest.raises(CapabilityError, match="hessian_vector_product"):
        jax.hessian(lambda x: without(x).sum())(X)


def test_a_second_derivative_alone_leaves_the_first_to_jax(tmp_path):
    f = calls(load_component(source(tmp_path, HVP, function="jnp.sin")))
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(X), np.cos(X))
    np.testing.assert_allclose(jax.hessian(lambda x: f(x).sum())(X), 100 * np.eye(3))


@pytest.mark.parametrize("endpoints", [RECIPES, TEMPLATE], ids=["recipes", "template"])
def test_endpoints_that_only_ask_jax_do_not_count(endpoints, tmp_path):
    f = calls(load_component(source(tmp_path, endpoints, function="jnp.sin")))
    assert "host_call" not in str(jax.make_jaxpr(f)(X))
    third = jax.grad(jax.grad(jax.grad(lambda x: f(x[None])[0])))
    np.testing.assert_allclose(third(0.3), -np.cos(0.3))


def test_a_derivative_that_needs_the_numbers_is_asked_outside_of_jit(tmp_path):
    numpy = VJP.replace("* slope(inputs)", "* np.asarray(slope(inputs))")
    f = calls(load_component(source(tmp_path, numpy)))
    gradient = jax.grad(lambda x: f(x).sum())
    np.testing.assert_allclose(gradient(X), SLOPE)
    with pytest.raises(CapabilityError, match="trace") as caught:
        jax.jit(gradient)(X)
    assert caught.value.code == "jax_in_host_call"


def test_results_of_the_wrong_shape_are_told_while_compiling(tmp_path):
    wrong = VJP.replace("* slope(inputs)", "* slope(inputs)[:1, None]")
    f = calls(load_component(source(tmp_path, wrong)))
    with pytest.raises(Exception, match=r"f64\[1,3\] at `x` where f64\[3\] was promised"):
        jax.jit(jax.grad(lambda x: f(x).sum()))(X)
