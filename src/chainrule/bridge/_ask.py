"""The primitive, and binding it to a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive

from chainrule._jaxpr._meshes import vary_alike
from chainrule.bridge._calculus import make_call
from chainrule.bridge._host import Call

host_call_p = Primitive("host_call")
host_call_p.multiple_results = True


def bind_call(call: Call, operands: Sequence[Any]) -> list[Any]:
    """The results of a call, as an equation of whatever is being traced."""
    return host_call_p.bind(*vary_alike(operands), call=call)


def ask(*arguments: Any) -> list[Any]:
    """Bind the call that `make_call` makes of the same arguments."""
    return bind_call(*make_call(*arguments))
