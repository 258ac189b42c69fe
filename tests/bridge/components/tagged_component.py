"""A JAX component that tags what it computes on its way."""

import equinox as eqx
import jax.numpy as jnp
from pydantic import BaseModel

from chainrule.harvest import sow
from chainrule.runtime import Array, Differentiable, Float64
from chainrule.runtime.jax_recipes import jax_apply


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    scale: Differentiable[Array[(), Float64]]
    times: int = 2


class OutputSchema(BaseModel):
    total: Differentiable[Array[(), Float64]]
    wave: Differentiable[Array[(None,), Float64]]


@eqx.filter_jit
def compute(inputs):
    wave = sow(jnp.sin(inputs["x"]) * inputs["scale"], "wave")
    sow({"count": jnp.arange(3), "norm": jnp.sum(wave**2)}, "facts")
    sow(wave.max(), "peak", tag="other")
    power = sow(wave ** inputs["times"], "power")
    return {"total": jnp.sum(power), "wave": wave}


def apply(inputs):
    return jax_apply(compute, inputs)
