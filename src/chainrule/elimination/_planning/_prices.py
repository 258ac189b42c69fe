"""What products with the Jacobian of a site cost.

One product is a JVP or a VJP with one vector. A request for several vectors costs

    messages · (price of a message) + vectors · (price of a product),

where a component that takes batches gets all vectors in one message, any other one message per vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Way = Literal["columns", "rows", "jacobian"]
"""How a site is asked: JVPs with the columns of a cut, VJPs with its rows, or its own Jacobian."""


@dataclass(frozen=True)
class SitePrices:
    """Prices of one site; infinite where it cannot be asked so.

    Attributes:
        jvp: of one product with the Jacobian.
        vjp: of one product with the transposed Jacobian.
        jacobian: of the site's own Jacobian.
        message: of one message, of any size.
        batches: the ways that take many vectors in one message.
        derived: the ways that are made of products in the other direction. Where one costs the same as
            another way, the other way is taken.
        source: where the prices come from, for people.
    """

    jvp: float = 1.0
    vjp: float = 1.0
    jacobian: float = math.inf
    message: float = 0.0
    batches: frozenset[str] = frozenset()
    derived: frozenset[str] = frozenset()
    source: str = "kind of endpoint"

    def messages(self, way: Way, vectors: int) -> int:
        """The number of messages of a request."""
        return 1 if way == "jacobian" or way in self.batches else vectors

    def of(self, way: Way, vectors: int) -> float:
        """The price of a request; of a Jacobian, however many vectors it takes the place of."""
        if vectors == 0:
            return 0.0
        sent = self.messages(way, vectors) * self.message
        if way == "jacobian":
            return sent + self.jacobian
        return sent + vectors * (self.jvp if way == "columns" else self.vjp)
