"""One-line endpoint bodies around a jitted function.

An author who has `apply_jit`, a jitted function from nested dictionaries to nested dictionaries, writes

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

and the like. Everything is compiled once per structure, shapes, dtypes and selected paths; the order in
which paths come does not matter. Leaves that are not arrays are part of the compilation.

Conventions are JAX's, also for complex numbers: a JVP is J v, a VJP is Jᵀu without conjugation, and the
cotangent of a real result by z = a + ib is ∂/∂a − i ∂/∂b.

Modules, in reading order
    _programs     what is compiled: inputs as template and arrays, selected paths, the compiled program
    _recipes      outputs, their shapes, what a function sows; products with Jacobians and Hessians
    _jacobian     the Jacobian, dense and sparse
    _residuals    keeping the backward function of `jax_apply` for the VJP that follows
    _implicit     functions that are defined by an equation
"""

from chainrule.runtime._residuals import set_jax_vjp_cache_size
from chainrule.runtime.jax_recipes._implicit import jax_implicit
from chainrule.runtime.jax_recipes._jacobian import jax_jacobian, jax_sparse_jacobian
from chainrule.runtime.jax_recipes._recipes import (
    jax_abstract_eval,
    jax_apply,
    jax_hessian_vector_product,
    jax_jvp,
    jax_tagged_intermediates,
    jax_value_and_vjp,
    jax_vjp,
)

__all__ = [
    "jax_abstract_eval",
    "jax_apply",
    "jax_hessian_vector_product",
    "jax_implicit",
    "jax_jacobian",
    "jax_jvp",
    "jax_sparse_jacobian",
    "jax_tagged_intermediates",
    "jax_value_and_vjp",
    "jax_vjp",
    "set_jax_vjp_cache_size",
]
