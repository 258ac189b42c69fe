"""Local partials: rules as data, one small file per family of primitives.

`local_jacobian` looks a rule up by the primitive's name. For a primitive without a rule, `_fallback` asks JAX
for the partials of that one equation. No edge is ever dropped.

    _equation       an equation and what a rule gives for it; complex numbers as pairs of real ones
    _elementwise    diagonals: arithmetic and functions of one or two operands, selections
    _moving         blocks that only move entries: slices, reshapes, transposes, gathers, scatters
    _sums           sums, contractions and other reductions
    _convolution    convolutions
    _inner          equations that contain programs: `custom_jvp`, `custom_vjp`, `cond` and `switch`
    _linear         whether a derivative rule of the user's is linear, so that a matrix stands for it
    _fallback       partials from JAX; axes along which an equation treats all entries alike
    _table          all rules by primitive, and those that other packages register for their own
"""

from __future__ import annotations

from chainrule.elimination._rules._equation import (
    Equation,
    LocalJacobian,
    Rule,
    as_real,
    complex_dtype,
    is_complex,
    real_shape,
    real_size,
    term_structure,
)
from chainrule.elimination._rules._linear import traced_rule
from chainrule.elimination._rules._table import has_rule, local_jacobian, register_partials

__all__ = [
    "Equation",
    "LocalJacobian",
    "Rule",
    "as_real",
    "complex_dtype",
    "has_rule",
    "is_complex",
    "local_jacobian",
    "real_shape",
    "real_size",
    "register_partials",
    "term_structure",
    "traced_rule",
]
