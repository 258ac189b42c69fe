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
        # Rules are the ground the machine stands on; this one needs the whole machine again.
        from chainrule.elimination import _accumulate
        from chainrule.elimination._graph import build_graph
        from chainrule.elimination._prepare import flatten

        self._graph = build_graph(flatten(program), inputs)
        reasons = (local.not_linear for local in self._graph.partials.values())
        self.not_linear = next((reason for reason in reasons if reason is not None), None)
        self._order = tuple(reversed(self._graph.required))
        self._accumulate = _accumulate.accumulate
        found = _accumulate.result_structures(self._graph, self._order)
        self.structures = {place: s for place, s in found.items() if not s.is_zero}

    def evaluate(self, operands: Sequence[Any]) -> dict[Edge, Block]:
        """The blocks at a point."""
        _, blocks = self._accumulate(self._graph, self._order, operands)
        return {place: blocks[place] for place in self.structures}
