"""Pictures: shapes as data, drawn as SVG, and what every picture can do.

A `Drawing` is a few shapes on a ground; SVG (here) and matplotlib (`_matplotlib`) draw the same. A `Picture`
makes a drawing, shows itself in a notebook and can be saved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule._errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """A smooth line through points, with a head at the last if it is to have one.

    Attributes:
        is_upright: it goes down or up between the points, rather than to the right or to the left.
    """

    points: tuple[Point, ...]
    colour: str
    width: float = 1.2
    is_dashed: bool = False
    has_head: bool = True
    is_upright: bool = False

    @property
    def bends(self) -> tuple[tuple[Point, Point, Point], ...]:
        """From each point to the next: two points that it is drawn to, and the next point."""
        return tuple(self._bend(start, end) for start, end in pairwise(self.points))

    def _bend(self, start: Point, end: Point) -> tuple[Point, Point, Point]:
        (x, y), (nx, ny) = start, end
        if self.is_upright:
            middle = (y + ny) / 2
            return (x, middle), (nx, middle), end
        middle = (x + nx) / 2
        return (middle, y), (middle, ny), end

    @property
    def head(self) -> tuple[Point, Point, Point]:
        """The corners of the head."""
        (bx, by), (x, y) = self.points[-2:]
        long, wide = 5 + 2 * self.width, 2.5 + self.width
        if self.is_upright:
            back = y - math.copysign(long, y - by)
            return (x, y), (x - wide, back), (x + wide, back)
        back = x - math.copysign(long, x - bx)
        return (x, y), (back, y - wide), (back, y + wide)


@dataclass(frozen=True)
class Cells:
    """Rectangles (left, top, width, height) of one colour without a border."""

    rectangles: tuple[tuple[float, float, float, float], ...]
    fill: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Group:
    """Shapes whose origin is at a point.

    Attributes:
        name: by which the script of a page finds them.
    """

    shapes: tuple[Shape, ...]
    at: Point
    name: str = ""


Shape = Label | Rectangle | Circle | Arrow | Cells | Group


@dataclass(frozen=True)
class Drawing:
    """Shapes in the order in which they are painted, on a ground of their own."""

    shapes: tuple[Shape, ...]
    width: float
    height: float
    title: str


GROUND, INK, FAINT, WRONG = "#ffffff", "#1f2937", "#5d6579", "#b91c1c"
_DARK = {
    GROUND: "#171a22", INK: "#e7eaf2", FAINT: "#9aa3b7", WRONG: "#f87171",
    "#6b7280": "#8b93a7", "#9ca3af": "#6b7280", "#d1d5db": "#3a4254", "#e5e7eb": "#2c3342",
    "#f9fafb": "#1f2430", "#e0e7ff": "#2a2d5e", "#4f46e5": "#8b8ff8", "#d1fae5": "#12392d",
    "#059669": "#34d399", "#fef3c7": "#3f3213", "#d97706": "#f5a524",
    "#c7d2fe": "#2f3170", "#a5b4fc": "#4347a8", "#818cf8": "#6469dd", "#6366f1": "#8f9bfb",
    "#3730a3": "#c7d2fe", "#a7f3d0": "#0f4537", "#6ee7b7": "#0f6b52", "#34d399": "#129a74",
    "#047857": "#5fe0b3", "#064e3b": "#b5f5dc",
}  # fmt: skip
"""What stands for each colour on a dark page. A colour that is not here is the same on both."""


def _on_both(name: str, colour: str) -> str:
    """A property of a style; programs that do not know `light-dark` take the first."""
    dark = _DARK.get(colour)
    return f"{name}:{colour};" + (f"{name}:light-dark({colour},{dark});" if dark else "")


_BOX_LINE = 15.0


@dataclass(frozen=True)
class Box:
    """Lines of text, the first of which is the title, on a ground."""

    lines: tuple[str, ...]
    fill: str
    stroke: str

    @property
    def size(self) -> tuple[float, float]:
        width = max(map(len, self.lines)) * CHARACTER + 20
        return width, len(self.lines) * _BOX_LINE + 14

    def draw(self, place: tuple[float, float]) -> Iterator[Shape]:
        yield Rectangle(place, self.size, self.fill, self.stroke)
        top = place[1] - (len(self.lines) - 1) * _BOX_LINE / 2
        for k, line in enumerate(self.lines):
            yield Label(line, (place[0], top + k * _BOX_LINE), is_strong=k == 0, is_faint=k > 0)


# Inside a page, the style of an inline SVG applies to the whole page: hence the class in front. A file of its
# own has the colours that the reader prefers; inside a page the page decides.
_STYLE = (
    ".chainrule-view:root{color-scheme:light dark}"
    ".chainrule-view text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:11px;"
    f"text-anchor:middle;{_on_both('fill', INK)}}}"
    f".chainrule-view .strong{{font-weight:600}}.chainrule-view .faint{{{_on_both('fill', FAINT)}}}"
    ".chainrule-view .start{text-anchor:start}"
    f".chainrule-view .halo{{paint-order:stroke;stroke-width:4px;{_on_both('stroke', GROUND)}}}"
)


def _colours_of(body: str) -> str:
    """The style of the colours that stand in a body as attributes."""
    return "".join(
        f'.chainrule-view [{name}="{colour}"]{{{name}:light-dark({colour},{dark})}}'
        for colour, dark in _DARK.items()
        for name in ("fill", "stroke")
        if f'{name}="{colour}"' in body
    )


_SMALLEST = 0.75
"""A picture shrinks with its page to this share of its size; its text is small then. A page scrolls it."""


def document(drawing: Drawing) -> str:
    """A drawing as a whole document."""
    size = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    body = ground + "".join(map(_element, drawing.shapes))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="chainrule-view" role="img" '
        f'width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'style="max-width:100%;min-width:{_SMALLEST * drawing.width:.0f}px;height:auto">'
        f"<title>{escape(drawing.title)}</title><style>{_STYLE}{_colours_of(body)}</style>{body}</svg>"
    )


@singledispatch
def _element(shape: Shape) -> str:
    raise TypeError(shape)


@_element.register
def _(shape: Label) -> str:
    flags = (
        ("start", shape.starts_here),
        ("strong", shape.is_strong),
        ("faint", shape.is_faint),
        ("halo", shape.has_halo),
    )
    kind = " ".join(name for name, is_set in flags if is_set)
    colour = "" if shape.colour is None else f' style="{_on_both("fill", shape.colour)}"'
    x, y = shape.at  # SVG places the baseline: 4 pixels below the middle of letters of 11 pixels
    return f'<text x="{x:.1f}" y="{y + 4:.1f}" class="{kind}"{colour}>{escape(shape.text)}</text>'


@_element.register
def _(shape: Rectangle) -> str:
    (x, y), (width, height) = shape.centre, shape.size
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{shape.radius:g}" fill="{shape.fill}" stroke="{shape.stroke}"/>'
    )


@_element.register
def _(shape: Circle) -> str:
    x, y = shape.centre
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.radius:.1f}" fill="{shape.fill}" '
        f'stroke="{shape.stroke}"/>'
    )


@_element.register
def _(shape: Arrow) -> str:
    x, y = shape.points[0]
    path = [f"M{x:.1f} {y:.1f}", *(f"C{_pairs(bend)}" for bend in shape.bends)]
    dashes = ' stroke-dasharray="4 4"' if shape.is_dashed else ""
    line = (
        f'<path d="{"".join(path)}" fill="none" stroke="{shape.colour}" '
        f'stroke-width="{shape.width:.3g}"{dashes}/>'
    )
    if not shape.has_head:
        return line
    return line + f'<path d="M{_pairs(shape.head)}z" fill="{shape.colour}"/>'


def _pairs(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f} {y:.1f}" for x, y in points)


@_element.register
def _(shape: Cells) -> str:
    path = "".join(f"M{x:.2f} {y:.2f}h{w:.2f}v{h:.2f}h-{w:.2f}z" for x, y, w, h in shape.rectangles)
    return f'<path d="{path}" fill="{shape.fill}" fill-opacity="{shape.opacity:.2f}"/>'


@_element.register
def _(shape: Group) -> str:
    inner = "".join(map(_element, shape.shapes))
    name = f' data-name="{escape(shape.name)}"' if shape.name else ""
    return f'<g{name} transform="translate({shape.at[0]:.1f} {shape.at[1]:.1f})">{inner}</g>'


_PLOTS = (".png", ".pdf")
_DOTS_PER_INCH = 192
_PAGE_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<style>:root{color-scheme:light dark}body{font:14px/1.5 system-ui,sans-serif;margin:1.5rem;"
    "overflow-wrap:anywhere;background:light-dark(#fff,#171a22);color:light-dark(#1f2937,#e7eaf2)}"
    "h1{font-size:1rem}</style>"
)


class Picture(ABC):
    """Something that can be drawn. Notebooks show it; `save` writes it to a file."""

    @abstractmethod
    def drawing(self) -> Drawing:
        """The shapes that the picture is made of."""

    def svg(self) -> str:
        """The picture as the text of an SVG document."""
        return document(self.drawing())

    def html(self) -> str:
        """The picture for a page: the SVG, or something to click on where that helps."""
        return self.svg()

    def page(self) -> str:
        """The picture as a whole page that needs nothing else."""
        title = escape(self.drawing().title)
        return f"{_PAGE_HEAD}<title>{title}</title><main><h1>{title}</h1>{self.html()}</main>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the picture with matplotlib; needs `chainrule[view]`.

        Args:
            ax: the axes to draw on; new ones, as large as the picture, when `None`.

        Returns:
            The axes.
        """
        from chainrule.view._matplotlib import draw

        return draw(self.drawing(), ax)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return self.html()

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file.

        Args:
            path: ends in `.svg`, in `.html` for a page that needs nothing else, or in `.png` or `.pdf`, for
                which matplotlib is needed.

        Returns:
            The path.

        Raises:
            InputError: another ending.
        """
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".html":
            path.write_text(self.page(), encoding="utf-8")
        elif path.suffix in _PLOTS:
            figure = self.plot().get_figure(root=True)
            assert figure is not None
            figure.savefig(path, dpi=_DOTS_PER_INCH)
        else:
            raise InputError(
                f"Pictures are saved as .svg, .html, .png or .pdf, but the file is called {path.name!r}.",
                code="picture_format",
            )
        return path
