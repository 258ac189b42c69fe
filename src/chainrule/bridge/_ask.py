"""The primitive, and binding it to a request."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive

from chainrule.bridge._calculus import make_call

__all__ = ["ask", "host_call_p"]

host_call_p = Primitive("host_call")
host_call_p.multiple_results = True


def ask(*arguments: Any) -> list[Any]:
    """Bind the call that `make_call` makes of the same arguments."""
    call, operands = make_call(*arguments)
    return host_call_p.bind(*operands, call=call)
