"""Drawings on the axes of matplotlib, for papers and for PNG and PDF files."""

from __future__ import annotations

from functools import singledispatch

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle as CirclePatch
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path as LinePath
from matplotlib.patheffects import withStroke

from chainrule.view._picture import (
    FAINT,
    INK,
    Arrow,
    Cells,
    Circle,
    Drawing,
    Group,
    Label,
    Point,
    Rectangle,
    Shape,
)

_PIXELS_PER_INCH = 96.0
_FONT_SIZE = 11 * 72 / _PIXELS_PER_INCH


def draw(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Paint a drawing on axes of its own size, or on those that are given."""
    if ax is None:
        size = drawing.width / _PIXELS_PER_INCH, drawing.height / _PIXELS_PER_INCH
        ax = Figure(figsize=size).add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(0, drawing.width), ylim=(drawing.height, 0), aspect="equal")
    ax.set_axis_off()
    for order, shape in enumerate(drawing.shapes):
        _paint(shape, ax, (0.0, 0.0), order)
    return ax


@singledispatch
def _paint(shape: Shape, ax: Axes, origin: Point, order: int) -> None:
    raise TypeError(shape)


@_paint.register
def _(shape: Label, ax: Axes, origin: Point, order: int) -> None:
    x, y = _moved(shape.at, origin)
    ax.text(
        x, y, shape.text,
        ha="left" if shape.starts_here else "center", va="center", fontsize=_FONT_SIZE,
        color=shape.colour or (FAINT if shape.is_faint else INK),
        weight="bold" if shape.is_strong else "normal", parse_math=False, zorder=order,
        path_effects=[withStroke(linewidth=3, foreground="white")] if shape.has_halo else None,
    )  # fmt: skip


@_paint.register
def _(shape: Rectangle, ax: Axes, origin: Point, order: int) -> None:
    (x, y), (width, height) = _moved(shape.centre, origin), shape.size
    style = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
    corner = x - width / 2, y - height / 2
    ax.add_patch(
        FancyBboxPatch(
            corner, width, height, boxstyle=style, fc=shape.fill, ec=shape.stroke, zorder=order
        )
    )


@_paint.register
def _(shape: Circle, ax: Axes, origin: Point, order: int) -> None:
    centre = _moved(shape.centre, origin)
    ax.add_patch(CirclePatch(centre, shape.radius, fc=shape.fill, ec=shape.stroke, zorder=order))


@_paint.register
def _(shape: Arrow, ax: Axes, origin: Point, order: int) -> None:
    points, codes = [shape.points[0]], [LinePath.MOVETO]
    for bend in shape.bends:
        points += bend
        codes += [LinePath.CURVE4] * 3
    points = [_moved(point, origin) for point in points]
    line = PathPatch(
        LinePath(points, codes), fc="none", ec=shape.colour, lw=0.75 * shape.width,
        ls="--" if shape.is_dashed else "-", zorder=order,
    )  # fmt: skip
    ax.add_patch(line)
    if shape.has_head:
        corners = [_moved(point, origin) for point in shape.head]
        ax.add_patch(Polygon(corners, fc=shape.colour, ec="none", zorder=order))


@_paint.register
def _(shape: Cells, ax: Axes, origin: Point, order: int) -> None:
    dx, dy = origin
    corners = [
        [(x + dx, y + dy), (x + w + dx, y + dy), (x + w + dx, y + h + dy), (x + dx, y + h + dy)]
        for x, y, w, h in shape.rectangles
    ]
    ax.add_collection(
        PolyCollection(corners, fc=shape.fill, ec="none", alpha=shape.opacity, zorder=order)
    )


@_paint.register
def _(shape: Group, ax: Axes, origin: Point, order: int) -> None:
    for number, inner in enumerate(shape.shapes):
        _paint(inner, ax, _moved(shape.at, origin), order + number)


def _moved(point: Point, origin: Point) -> Point:
    return point[0] + origin[0], point[1] + origin[1]
