"""What a component can do, and where the ability comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "ABSENT",
    "DERIVATIVE_ENDPOINTS",
    "ENDPOINTS",
    "NATIVE",
    "Capability",
    "Implementation",
    "derived",
]

DERIVATIVE_ENDPOINTS = (
    "jacobian",
    "jacobian_vector_product",
    "vector_jacobian_product",
    "hessian_vector_product",
    "value_and_vjp",
)
ENDPOINTS = ("apply", *DERIVATIVE_ENDPOINTS, "abstract_eval", "tagged_intermediates")
"""Every endpoint that an author can define, in the order in which they are listed."""


@dataclass(frozen=True)
class Capability:
    """How an endpoint is available.

    Attributes:
        status: `native` when the author wrote it, `derived` when Chainrule makes it from something else,
            `absent` when the component does not have it.
        via: what a derived endpoint is made from, for example `jax` or `jacobian`.
        batches: whether a batch of vectors is answered in one call, rather than one by one.
    """

    status: Literal["native", "derived", "absent"]
    via: str | None = None
    batches: bool = False

    def __str__(self) -> str:
        return self.status if self.via is None else f"{self.status} ({self.via})"


NATIVE = Capability("native")
ABSENT = Capability("absent")


@dataclass(frozen=True)
class Implementation:
    """A function behind an endpoint, and where it comes from.

    `function` is called with a validated model: positionally for `apply` and `abstract_eval`, with the
    argument names of its `DerivativeKind` otherwise.
    """

    function: Callable[..., Any]
    capability: Capability = NATIVE


def derived(function: Callable[..., Any], via: str) -> Implementation:
    """An implementation that Chainrule made."""
    return Implementation(function, Capability("derived", via))
