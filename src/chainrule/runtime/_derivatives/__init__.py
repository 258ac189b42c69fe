"""Derivative endpoints: what they are, and how a missing one follows from another.

_kinds            the derivative endpoints as data
_derive           one endpoint from another
_differences      all of them from `apply` alone
"""

from chainrule.runtime._derivatives._batching import batched_product, value_and_vjp
from chainrule.runtime._derivatives._derive import (
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    product_from_jacobian,
    vjp_from_jacobian,
)
from chainrule.runtime._derivatives._differences import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)
from chainrule.runtime._derivatives._implicit import ImplicitFunction, Products
from chainrule.runtime._derivatives._kinds import (
    DERIVATIVES,
    FIRST_ORDER,
    HVP,
    JACOBIAN,
    JVP,
    VALUE_AND_VJP,
    VJP,
    DerivativeKind,
)
from chainrule.runtime._derivatives._residuals import set_jax_vjp_cache_size
from chainrule.runtime._derivatives._second_order import hvp_from_vjp

__all__ = [
    "DERIVATIVES",
    "FIRST_ORDER",
    "HVP",
    "JACOBIAN",
    "JVP",
    "VALUE_AND_VJP",
    "VJP",
    "DerivativeKind",
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
    "product_from_jacobian",
    "set_jax_vjp_cache_size",
    "value_and_vjp",
    "vjp_from_jacobian",
]
