"""A plan in a notebook: a picture of the sites in the order of the calls, and the table of requests."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chainrule.elimination._planning._plan import Plan

_WIDTH, _HEIGHT, _GAP = 120, 44, 46
_FILLS = {"columns": "#e0e7ff", "rows": "#fef3c7", "jacobian": "#d1fae5"}
_ARROWS = {"columns": "→", "rows": "←", "jacobian": "■"}


def plan_html(plan: Plan) -> str:
    """The picture, the requests and the totals."""
    from chainrule.elimination._planning._plan import COLUMNS

    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in plan.rows
    )
    table = f"<table><tr>{head}</tr>{body}</table>"
    return f"<div>{_picture(plan)}{table}<p>{escape(plan.summary)}</p></div>"


def _picture(plan: Plan) -> str:
    """One box per site, from the first call to the last: which way vectors pass, how many, and when."""
    order = {request.number: place for place, request in enumerate(plan.requests, start=1)}
    boxes = []
    for place, request in enumerate(sorted(plan.requests, key=lambda each: each.number)):
        x = place * (_WIDTH + _GAP)
        boxes.append(
            f"<rect x='{x + 1}' y='1' width='{_WIDTH}' height='{_HEIGHT}' rx='6' "
            f"fill='{_FILLS[request.way]}' stroke='#6b7280'/>"
            f"{_text(x + _WIDTH / 2, 18, request.site[:18])}"
            f"{_text(x + _WIDTH / 2, 35, f'{_ARROWS[request.way]} {request.products}')}"
            f"{_text(x + _WIDTH - 10, 12, str(order[request.number]))}"
        )
    width = len(plan.requests) * (_WIDTH + _GAP)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{_HEIGHT + 2}' role='img' "
        f"viewBox='0 0 {width} {_HEIGHT + 2}'><title>the sites and their products</title>"
        f"{''.join(boxes)}</svg>"
    )


def _text(x: float, y: float, content: str) -> str:
    return (
        f"<text x='{x:.0f}' y='{y}' text-anchor='middle' font-size='11' "
        f"font-family='system-ui,sans-serif'>{escape(content)}</text>"
    )
