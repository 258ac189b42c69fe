"""The function of `numpy_component.py` in JAX; the recipe's endpoints, and traceable."""

import jax
import jax.numpy as jnp
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64
from chainrule.runtime.jax_recipes import (
    jax_abstract_eval,
    jax_apply,
    jax_jacobian,
    jax_jvp,
    jax_vjp,
)


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    a: Differentiable[Array[(), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    s: Differentiable[Array[(), Float64]]


@jax.jit
def apply_jit(inputs):
    x, a = inputs["x"], inputs["a"]
    return {"y": a * jnp.sin(x) + x.sum() * x, "s": a * (x * x).sum()}


def apply(inputs):
    return OutputSchema(**jax_apply(apply_jit, inputs))


def abstract_eval(abstract_inputs):
    return jax_abstract_eval(apply_jit, abstract_inputs)


def jacobian(inputs, jac_inputs, jac_outputs):
    return jax_jacobian(apply_jit, inputs, jac_inputs, jac_outputs)


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jax_jvp(apply_jit, inputs, jvp_inputs, jvp_outputs, tangent_vector)


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)
