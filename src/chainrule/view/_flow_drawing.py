"""Norms of values and cotangents, line by line on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

from chainrule.view._drawing import CHARACTER, Arrow, Circle, Drawing, Label, Shape

_WIDTH, _LINE, _TOP = 320.0, 24.0, 58.0
_VALUE, _COTANGENT, _GRID, _WRONG = "#4f46e5", "#d97706", "#e5e7eb", "#b91c1c"

Row = tuple[str, float | None, float | None, int]
"""Name, norm of the value, norm of the cotangent, number of entries that are not finite."""


def draw_flow(rows: Sequence[Row]) -> Drawing:
    """Two chains of dots from the first value down to the last; numbers stand beside them."""
    left = 32 + CHARACTER * max((len(name) for name, *_ in rows), default=0)
    right = left + _WIDTH
    low, high = _decades([norm for _, value, cotangent, _ in rows for norm in (value, cotangent)])

    def across(norm: float) -> float:
        return left + _WIDTH * (math.log10(norm) - low) / (high - low)

    bottom = _TOP + _LINE * len(rows)
    shapes: list[Shape] = [*_legend(left), *_grid(low, high, across, bottom)]
    for norms, colour in (
        ([value for _, value, _, _ in rows], _VALUE),
        ([cotangent for _, _, cotangent, _ in rows], _COTANGENT),
    ):
        places = [(across(n), _height(k)) for k, n in enumerate(norms) if _is_drawn(n)]
        if len(places) > 1:
            shapes.append(Arrow(tuple(places), colour, has_head=False))
        shapes += [Circle(place, 4.0, colour, colour) for place in places]
    for number, row in enumerate(rows):
        shapes += _texts(row, _height(number), right)
    return Drawing(tuple(shapes), right + 190, bottom + 16, "Norms of values and cotangents")


def _height(row: int) -> float:
    return _TOP + _LINE * (row + 0.5)


def _is_drawn(norm: float | None) -> TypeGuard[float]:
    return norm is not None and norm > 0 and math.isfinite(norm)


def _decades(norms: Sequence[float | None]) -> tuple[int, int]:
    """Powers of ten around all norms that have a place on a logarithmic scale."""
    exponents = [math.log10(norm) for norm in norms if _is_drawn(norm)]
    low, high = math.floor(min(exponents, default=0.0)), math.ceil(max(exponents, default=1.0))
    return low, max(high, low + 1)


def _legend(left: float) -> list[Shape]:
    words = (("value", _VALUE), ("cotangent", _COTANGENT))
    shapes: list[Shape] = []
    for k, (word, colour) in enumerate(words):
        x = left + 90 * k
        shapes.append(Circle((x, 16), 4.0, colour, colour))
        shapes.append(Label(word, (x + 10, 16), starts_here=True))
    return shapes


def _grid(low: int, high: int, across: Callable[[float], float], bottom: float) -> list[Shape]:
    step = max(1, math.ceil((high - low) / 6))
    shapes: list[Shape] = []
    for exponent in range(low, high + 1, step):
        x = across(10.0**exponent)
        shapes.append(Arrow(((x, _TOP - 4), (x, bottom)), _GRID, 1.0, has_head=False))
        shapes.append(Label(f"1e{exponent}", (x, _TOP - 14), is_faint=True))
    return shapes


def _texts(row: Row, y: float, right: float) -> list[Shape]:
    name, value, cotangent, nonfinite = row
    colour = _WRONG if nonfinite else None
    norms = ", ".join("–" if norm is None else f"{norm:.3g}" for norm in (value, cotangent))
    note = f"{norms}  {nonfinite} not finite" if nonfinite else norms
    return [
        Label(name, (16, y), starts_here=True, is_strong=True, colour=colour),
        Label(note, (right + 20, y), starts_here=True, is_faint=not nonfinite, colour=colour),
    ]
