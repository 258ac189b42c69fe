"""A plan of a Jacobian: the sites of a pipeline, what each is asked for, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.elimination import Plan, PlannedRequest
from chainrule.view._layout import lay_out
from chainrule.view._picture import Arrow, Box, Drawing, Picture, Shape

_END = ("#ffffff", "#6b7280")
_COLOURS = {"columns": ("#e0e7ff", "#4f46e5"), "rows": ("#fef3c7", "#d97706")}
_WHOLE = ("#d1fae5", "#059669")
_BETWEEN = 50.0


@dataclass(frozen=True, repr=False)
class PlanPicture(Picture):
    """A plan as a graph: columns are pushed on in blue, rows pulled back in yellow, own Jacobians are green.

    Attributes:
        plan: the plan.
    """

    plan: Plan

    def drawing(self) -> Drawing:
        """Boxes from left to right: the inputs, the sites, the outputs."""
        boxes = self._boxes()
        sizes = {node: box.size for node, box in boxes.items()}
        layout = lay_out(sizes, self.plan.links, between=_BETWEEN)
        shapes: list[Shape] = [Arrow(layout.routes[link], "#6b7280") for link in self.plan.links]
        for node, box in boxes.items():
            shapes.extend(box.draw(layout.places[node]))
        return Drawing(tuple(shapes), *layout.size, "Plan of a Jacobian")

    def _boxes(self) -> dict[int, Box]:
        boxes = {-1: Box(("inputs", *self.plan.inputs), *_END)}
        placed = sorted(enumerate(self.plan.requests, start=1), key=lambda each: each[1].number)
        for order, request in placed:
            boxes[request.number] = _box(order, request)
        boxes[len(self.plan.requests)] = Box(("outputs",), *_END)
        return boxes


def _box(order: int, request: PlannedRequest) -> Box:
    lines = (request.site, f"{order}. {request.asked}", f"price {request.price:g}")
    return Box(lines, *_COLOURS.get(request.way, _WHOLE))


def plan(plan: Plan) -> PlanPicture:
    """Draw a plan of a Jacobian: what each component is asked for, and in which order.

    Args:
        plan: of `chainrule.plan_jacobian`.

    Example:
        >>> import numpy as np, chainrule
        >>> from chainrule import view
        >>> double = chainrule.from_callable(
        ...     lambda x: 2 * x, jvp=lambda x, v: 2 * v[0], abstract=lambda x: x, name="double"
        ... )
        >>> picture = view.plan(chainrule.plan_jacobian(double)(np.ones(2)))
        >>> "1. 2 JVPs" in picture.svg()
        True
    """
    return PlanPicture(plan)
