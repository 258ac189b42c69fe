"""What pictures are made of, as data: a few shapes on a ground. SVG and matplotlib draw the same."""

from __future__ import annotations

from dataclasses import dataclass

CHARACTER = 6.6
"""Width of a character of the pictures' text in pixels, on average and on the safe side."""

Point = tuple[float, float]
"""Pixels from the left and from the top."""


@dataclass(frozen=True)
class Label:
    """A line of text: centred at a point, or starting there.

    Attributes:
        is_strong: in bold.
        is_faint: in grey.
        has_halo: with a white rim, for text on lines.
        colour: instead of black or grey.
    """

    text: str
    at: Point
    starts_here: bool = False
    is_strong: bool = False
    is_faint: bool = False
    has_halo: bool = False
    colour: str | None = None


@dataclass(frozen=True)
class Rectangle:
    """A box, by default with round corners."""

    centre: Point
    size: Point
    fill: str
    stroke: str
    radius: float = 6.0


@dataclass(frozen=True)
class Circle:
    """A circle."""

    centre: Point
    radius: float
    fill: str
    stroke: str


@dataclass(frozen=True)
class Arrow:
    """A smooth line through points from left to right, with a head at the last if it is to have one."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.2
    is_dashed: bool = False
    has_head: bool = True


@dataclass(frozen=True)
class Cells:
    """Rectangles (left, top, width, height) of one colour without a border."""

    rectangles: tuple[tuple[float, float, float, float], ...]
    fill: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Group:
    """Shapes whose origin is at a point."""

    shapes: tuple[Shape, ...]
    at: Point


Shape = Label | Rectangle | Circle | Arrow | Cells | Group


@dataclass(frozen=True)
class Drawing:
    """Shapes in the order in which they are painted; on white, so that they are seen on dark pages too."""

    shapes: tuple[Shape, ...]
    width: float
    height: float
    title: str
