"""An elimination order as a value: immutable, hashable, JSON, and bound to the program it was found for."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chainrule._errors import InputError
from chainrule._jaxpr import plain_text
from chainrule.elimination._eliminate import Step
from chainrule.elimination._graph import Graph
from chainrule.elimination._html import order_html

COST_MODEL = 3
"""Raised whenever structures or costs change, so that stored orders are not taken for current ones."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(graph: Graph) -> str:
    """A hash of what decides an order's cost: equations, parameters, shapes, what is differentiated.

    Names of variables, values of constants and memory addresses do not enter.
    """
    jaxpr = graph.program.jaxpr
    places = {var: k for k, var in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    wanted = [places[var] for var in graph.inputs]
    text = _ADDRESS.sub("", plain_text(jaxpr))
    content = json.dumps([COST_MODEL, text, wanted, len(graph.targets)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Order:
    """An elimination order and what is known about it.

    Attributes:
        vertices: equation numbers, from 1, in the order of elimination. A pair of numbers is a single
            edge, eliminated before the rest of the first vertex; inputs are 0, -1, -2, …
        fingerprint: of the program it was found for; it is refused for another.
        objective: what the cost counts.
        cost: of this order.
        bound: no order of vertices costs less, by minimal cuts or, for few vertices, because all were
            tried; `None` when no bound is known.
        method: what found it.
        seconds: how long that took.
    """

    vertices: tuple[Step, ...]
    fingerprint: str
    objective: str = "multiplications"
    cost: int | None = None
    bound: int | None = None
    method: str = field(default="given", compare=False)
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vertices", tuple(map(as_step, self.vertices)))

    @property
    def optimal(self) -> bool:
        """Whether the lower bound proves that no vertex elimination order is cheaper."""
        return self.bound is not None and self.cost is not None and self.cost <= self.bound

    @property
    def gap(self) -> float | None:
        """How far, relatively, the cost is above the bound; `None` without a bound."""
        if self.bound is None or self.cost is None:
            return None
        return 0.0 if self.optimal else self.cost / max(1, self.bound) - 1.0

    def __len__(self) -> int:
        return len(self.vertices)

    def _repr_html_(self) -> str:
        return order_html(self)

    def to_json(self) -> str:
        """The order as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        """The inverse of `to_json`.

        Raises:
            InputError: the text is not an order.
        """
        try:
            fields = json.loads(text)
            for name, value in fields.items():
                if not isinstance(value, _KINDS.get(name, object)):
                    raise TypeError(f"{name} is {value!r:.40}")
            return cls(**fields)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"Expected the JSON that `Order.to_json` writes, found something else: {error}.",
                code="bad_order",
            ) from None


_KINDS: dict[str, Any] = {
    "vertices": list, "fingerprint": str, "objective": str, "cost": int | None, "bound": int | None,
    "method": str, "seconds": float | int,
}  # fmt: skip


def as_step(step: Any) -> Step:
    """A vertex number, or the two of an edge, as plain integers.

    Raises:
        TypeError: it is neither.
        ValueError: it is a sequence of another length.
    """
    if isinstance(step, Sequence):
        vertex, neighbour = step
        return operator.index(vertex), operator.index(neighbour)
    return operator.index(step)
