"""Local partials: rules as data, one small file per family of primitives.

`local_jacobian` looks a rule up by the primitive's name. For a primitive without a rule, `_fallback` asks JAX
for the partials of that one equation. No edge is ever dropped.

    _site           an equation and what a rule gives for it; complex numbers as pairs of real ones
    _elementwise    diagonals: arithmetic and functions of one or two operands, selections
    _moving         blocks that only move entries: slices, reshapes, transposes, gathers
    _placing        what puts an array into another: scatters, updates
    _sums           sums, contractions and other reductions
    _convolution    convolutions
    _calls          functions with a derivative rule of their own
    _branches       `cond` and `switch`
    _inner          the Jacobian of a program inside an equation
    _linear         whether a derivative rule of the user's is linear, so that a matrix stands for it
    _batch          axes along which an equation treats all entries alike
    _fallback       partials from JAX
    _registered     partials that other packages give for their own primitives
"""

from __future__ import annotations

from chainrule.elimination._rules._branches import BRANCH_RULES
from chainrule.elimination._rules._calls import CALL_RULES
from chainrule.elimination._rules._convolution import CONVOLUTION_RULES
from chainrule.elimination._rules._elementwise import ELEMENTWISE_RULES
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._moving import MOVING_RULES
from chainrule.elimination._rules._placing import PLACING_RULES
from chainrule.elimination._rules._registered import REGISTERED_RULES, register_partials
from chainrule.elimination._rules._site import (
    LocalJacobian,
    Rule,
    Site,
    as_real,
    complex_dtype,
    is_complex,
    real_shape,
    term_structure,
)
from chainrule.elimination._rules._sums import SUMMING_RULES

__all__ = [
    "LocalJacobian",
    "Rule",
    "Site",
    "as_real",
    "complex_dtype",
    "has_rule",
    "is_complex",
    "local_jacobian",
    "real_shape",
    "register_partials",
    "term_structure",
]

_RULES: dict[str, Rule] = {
    **ELEMENTWISE_RULES,
    **MOVING_RULES,
    **PLACING_RULES,
    **SUMMING_RULES,
    **CONVOLUTION_RULES,
    **CALL_RULES,
    **BRANCH_RULES,
}


def has_rule(site: Site) -> bool:
    """Whether the equation has a rule of its own."""
    return _rule(site) is not None


def local_jacobian(site: Site) -> LocalJacobian:
    """The partials of an equation with respect to its wanted operands."""
    rule = _rule(site)
    return fallback(site) if rule is None else rule(site)


def _rule(site: Site) -> Rule | None:
    if _touches_complex(site):
        return None
    name = site.eqn.primitive.name
    return REGISTERED_RULES.get(name) or _RULES.get(name)


def _touches_complex(site: Site) -> bool:
    wanted = (site.eqn.invars[p] for p in site.wanted_operands)
    return any(is_complex(atom.aval) for atom in (*wanted, *site.eqn.outvars))
