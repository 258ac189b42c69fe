"""Derivative endpoints: what they are, and how a missing one follows from another.

_kinds            Jacobian, JVP and VJP as data
_derive           one endpoint from another
_differences      all of them from `apply` alone
"""

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
from chainrule.runtime._derivatives._kinds import DERIVATIVES, JACOBIAN, JVP, VJP, DerivativeKind

__all__ = [
    "DERIVATIVES",
    "JACOBIAN",
    "JVP",
    "VJP",
    "DerivativeKind",
    "finite_difference_jacobian",
    "finite_difference_jvp",
    "finite_difference_vjp",
    "jacobian_from_jvp",
    "jacobian_from_vjp",
    "jvp_from_jacobian",
    "product_from_jacobian",
    "vjp_from_jacobian",
]
