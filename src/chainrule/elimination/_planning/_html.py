"""A plan in a notebook: a picture of the sites in the order of the calls, and the table of requests."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from chainrule.elimination._display import table_html
from chainrule.elimination._planning._prices import Way

if TYPE_CHECKING:
    from chainrule.elimination._planning._plan import Plan

_WIDTH, _HEIGHT, _GAP = 120, 44, 46
_FORWARD, _BACKWARD, _WHOLE = "#e0e7ff", "#fef3c7", "#d1fae5"


def plan_html(plan: Plan) -> str:
    """The picture, the requests and the totals."""
    from chainrule.elimination._planning._plan import COLUMNS

    notes = "".join(f"<p>{escape(line)}</p>" for line in plan.summary)
    return f"<div>{_picture(plan)}{table_html(COLUMNS, plan.rows)}{notes}</div>"


def _picture(plan: Plan) -> str:
    """One box per site, from the first call to the last: which way vectors pass, how many, and when."""
    order = {request.number: place for place, request in enumerate(plan.requests, start=1)}
    boxes = []
    for place, request in enumerate(sorted(plan.requests, key=lambda each: each.number)):
        x = place * (_WIDTH + _GAP)
        boxes.append(
            f"<rect x='{x + 1}' y='1' width='{_WIDTH}' height='{_HEIGHT}' rx='6' "
            f"fill='{_fill(request.way)}' stroke='#6b7280'/>"
            f"{_text(x + _WIDTH / 2, 18, request.site[:18])}"
            f"{_text(x + _WIDTH / 2, 35, request.asked)}"
            f"{_text(x + _WIDTH - 10, 12, str(order[request.number]))}"
        )
    width = len(plan.requests) * (_WIDTH + _GAP)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{_HEIGHT + 2}' role='img' "
        f"viewBox='0 0 {width} {_HEIGHT + 2}'><title>the sites and their products</title>"
        f"{''.join(boxes)}</svg>"
    )


def _fill(way: Way) -> str:
    if way in ("columns", "rows"):
        return _FORWARD if way == "columns" else _BACKWARD
    return _WHOLE


def _text(x: float, y: float, content: str) -> str:
    return (
        f"<text x='{x:.0f}' y='{y}' text-anchor='middle' font-size='11' "
        f"font-family='system-ui,sans-serif'>{escape(content)}</text>"
    )
