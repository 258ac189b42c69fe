"""What a component can do, and where the ability comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

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
class Cost:
    """How often one call of an endpoint runs the author's code, for n input and m output elements.

    Attributes:
        constant: that many times in any case.
        inputs: that many times per input element.
        outputs: that many times per output element.
        fewer: that many times per element of the side that has fewer.
    """

    constant: int = 1
    inputs: int = 0
    outputs: int = 0
    fewer: int = 0

    def at(self, n: int, m: int) -> int:
        """The number for n input and m output elements."""
        return self.constant + self.inputs * n + self.outputs * m + self.fewer * min(n, m)

    def times(self, count: int, *, plus: int = 0) -> Cost:
        """The cost of several such calls, and of some evaluations besides."""
        each = {field.name: count * getattr(self, field.name) for field in fields(self)}
        return Cost(**(each | {"constant": each["constant"] + plus}))


@dataclass(frozen=True)
class Capability:
    """How an endpoint is available.

    Attributes:
        status: `native` when the author wrote it, `derived` when Chainrule makes it from something else,
            `absent` when the component does not have it.
        via: what a derived endpoint is made from, for example `jax` or `jacobian`.
        batches: whether a batch of vectors is answered in one call, rather than one by one.
        cost: how often one call runs the author's code.
    """

    status: Literal["native", "derived", "absent"]
    via: str | None = None
    batches: bool = False
    cost: Cost = Cost()

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


def derived(function: Callable[..., Any], via: str, cost: Cost | None = None) -> Implementation:
    """An implementation that Chainrule made; it runs the author's code once unless a cost is given."""
    return Implementation(function, Capability("derived", via, cost=cost or Cost()))
