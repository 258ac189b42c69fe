"""Derivatives for any program: from each other, by finite differences, by the implicit function theorem.

Each function has the shape of an endpoint, so that an author's endpoint is one line. `jax_recipes` and
`torch_recipes` do the same for programs that a framework can differentiate.
"""

from chainrule.runtime._derivatives._derive import (
    batched_product,
    hvp_from_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    value_and_vjp,
    vjp_from_jacobian,
)
from chainrule.runtime._derivatives._differences import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)
from chainrule.runtime._derivatives._implicit import ImplicitFunction, Products

__all__ = [
    "ImplicitFunction",
    "Products",
    "batched_product",
    "finite_difference_jacobian",
    "finite_difference_jvp",
    "finite_difference_vjp",
    "hvp_from_vjp",
    "jacobian_from_jvp",
    "jacobian_from_vjp",
    "jvp_from_jacobian",
    "value_and_vjp",
    "vjp_from_jacobian",
]
