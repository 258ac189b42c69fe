"""Prices of the calls of a component, and the memory of one: their names, and what they have to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

PRICED = ("apply", "jvp", "vjp", "jacobian", "message", "residual_bytes")
"""What has a price: one evaluation, one product with one vector, one Jacobian, one message; and the bytes
that one evaluation keeps for the VJPs that follow it."""


def problem_of_prices(prices: Any) -> str | None:
    """What is wrong with prices, for a message; `None` if nothing is."""
    if not isinstance(prices, Mapping):
        return f"expected a dictionary such as {{'apply': 1.0, 'vjp': 2.5}}; found {type(prices).__name__}"
    for name, price in prices.items():
        if name not in PRICED:
            return f"there is no price {name!r}; there are {', '.join(PRICED)}"
        is_number = isinstance(price, Real) and not isinstance(price, bool)
        is_free = name in ("message", "residual_bytes") and price == 0
        if not is_number or not (is_free or 0 < float(price) < math.inf):
            return f"the price {name!r} is a positive number; found {price!r}"
    return None
