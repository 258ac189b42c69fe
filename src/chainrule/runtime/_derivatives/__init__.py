"""How a missing derivative endpoint follows from another or from `apply`.

What the endpoints are is described in `chainrule.runtime._endpoints`. Modules, in reading order
    _layout         paths as rows and columns: named arrays as long vectors, Jacobian blocks as a matrix
    _derive         one endpoint from another
    _stencils       finite-difference formulas and step sizes as data
    _sampler        evaluating a program around a point and taking differences
    _sparsity       where a Jacobian can be non-zero
    _differences    every endpoint from `apply` alone, by finite differences
    _implicit       endpoints of outputs that solve an equation, by the implicit function theorem
"""

from chainrule.runtime._derivatives._derive import (
    batched_product,
    hvp_from_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    product_from_jacobian,
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
    "product_from_jacobian",
    "value_and_vjp",
    "vjp_from_jacobian",
]
