"""The Jacobian of a program inside an equation, by elimination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainrule._jaxpr import ClosedJaxpr
from chainrule.elimination._blocks import Block
from chainrule.elimination._rules._site import Edge


class InnerJacobian:
    """The blocks of a program's Jacobian, as structures now and with values later.

    Attributes:
        structures: (output, position in `inputs`) → structure, for the blocks that are not zero.
        not_linear: see `LocalJacobian`.
    """

    def __init__(self, program: ClosedJaxpr, inputs: Sequence[int]) -> None:
        # A cycle: the graph is built from rules, and these rules build the graph of a program inside.
        from chainrule.elimination._eliminate import accumulate, result_structures
        from chainrule.elimination._flatten import flatten
        from chainrule.elimination._graph import build_graph

        self._graph = build_graph(flatten(program), inputs)
        reasons = (local.not_linear for local in self._graph.partials.values())
        self.not_linear = next((reason for reason in reasons if reason is not None), None)
        self._order = tuple(reversed(self._graph.required))
        self._accumulate = accumulate
        found = result_structures(self._graph, self._order)
        self.structures = {place: s for place, s in found.items() if not s.is_zero}

    def evaluate(self, operands: Sequence[Any]) -> dict[Edge, Block]:
        """The blocks at a point."""
        _, blocks = self._accumulate(self._graph, self._order, operands)
        return {place: blocks[place] for place in self.structures}
