"""How many evaluations a gradient check may spend, and on what.

An endpoint that Chainrule derives may run the author's code once per element, so calls have prices: the
component says how often each of its endpoints runs the author's code. What the author wrote himself is paid
for first; what is derived from it gets what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from chainrule.runtime._component._definition import NATIVE, Capability

K = TypeVar("K")


def share(wishes: Mapping[K, int], available: int) -> dict[K, int]:
    """Divide a number fairly: small wishes are granted, large ones get equal parts of the rest."""
    granted = {}
    by_size = sorted(wishes, key=lambda key: wishes[key])
    for position, key in enumerate(by_size):
        granted[key] = min(wishes[key], max(available, 0) // (len(by_size) - position))
        available -= granted[key]
    return granted


class Prices:
    """What a call of each endpoint costs, in evaluations of the author's code.

    Args:
        component: says so of its endpoints, if it is one of ours; of others every call counts as one.
        size: the numbers of input and output elements looked at.
    """

    def __init__(self, component: Any, size: tuple[int, int]) -> None:
        self._capabilities: Mapping[str, Capability] = getattr(component, "capabilities", {})
        self._size = size

    def of(self, endpoint: str) -> int:
        """The price of one call."""
        return max(1, self._capabilities.get(endpoint, NATIVE).cost.at(*self._size))

    def is_native(self, endpoint: str) -> bool:
        """Whether the author wrote this endpoint."""
        return self._capabilities.get(endpoint, NATIVE).status == "native"
