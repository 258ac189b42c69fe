"""Marking equations as a component's own: a scope of their name stack, which no compiled program pays for."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import jax
from jax.extend.core import JaxprEqn

from chainrule._jaxpr._names import name_stack_of

_PREFIX = "component:"
_FOUND = re.compile(rf"{_PREFIX}([^()/]*)")


def component_scope(name: str) -> AbstractContextManager[None]:
    """Equations traced inside belong to the component of this name."""
    return jax.named_scope(_PREFIX + re.sub(r"[()/]", "_", name))


def component_of(eqn: JaxprEqn) -> str | None:
    """The component that an equation belongs to, also after transformations; the outermost of several."""
    found = _FOUND.search(name_stack_of(eqn))
    return None if found is None else found[1]
