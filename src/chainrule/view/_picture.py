"""Pictures: shapes as data, drawn as SVG, and what every picture can do.

A `Drawing` is a few shapes on a ground; SVG (here) and matplotlib (`_matplotlib`) draw the same. A `Picture`
makes a drawing, shows itself in a notebook and can be saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from html import escape
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


# Inside a page, the style of an inline SVG applies to the whole page: hence the class in front.
_STYLE = (
    ".chainrule-view text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:11px;fill:#1f2937;"
    "text-anchor:middle}.chainrule-view .strong{font-weight:600}.chainrule-view .faint{fill:#6b7280}"
    ".chainrule-view .start{text-anchor:start}"
    ".chainrule-view .halo{paint-order:stroke;stroke:#fff;stroke-width:4px}"
)


_SMALLEST = 0.75
"""A picture shrinks with its page to this share of its size; its text is small then. A page scrolls it."""


def document(drawing: Drawing) -> str:
    """A drawing as a whole document."""
    size = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="chainrule-view" role="img" '
        f'width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'style="max-width:100%;min-width:{_SMALLEST * drawing.width:.0f}px;height:auto">'
        f"<title>{escape(drawing.title)}</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(map(_element, drawing.shapes))}</svg>'
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
    colour = "" if shape.colour is None else f' style="fill:{shape.colour}"'
    x, y = shape.at
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
    (x, y), *rest = shape.points
    path = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        middle = (x + nx) / 2
        path.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {ny:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    dashes = ' stroke-dasharray="4 4"' if shape.is_dashed else ""
    line = (
        f'<path d="{"".join(path)}" fill="none" stroke="{shape.colour}" '
        f'stroke-width="{shape.width}"{dashes}/>'
    )
    head = f'<path d="M{x:.1f} {y:.1f}l-7 -3.5v7z" fill="{shape.colour}"/>'
    return line + head if shape.has_head else line


@_element.register
def _(shape: Cells) -> str:
    path = "".join(f"M{x:.2f} {y:.2f}h{w:.2f}v{h:.2f}h-{w:.2f}z" for x, y, w, h in shape.rectangles)
    return f'<path d="{path}" fill="{shape.fill}" fill-opacity="{shape.opacity:.2f}"/>'


@_element.register
def _(shape: Group) -> str:
    inner = "".join(map(_element, shape.shapes))
    return f'<g transform="translate({shape.at[0]:.1f} {shape.at[1]:.1f})">{inner}</g>'


_PLOTS = (".png", ".pdf")
_DOTS_PER_INCH = 192
_PAGE_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Chainrule</title>'
    "<style>body{font:14px/1.5 system-ui,sans-serif;margin:1.5rem}</style>"
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
            path.write_text(_PAGE_HEAD + self.html(), encoding="utf-8")
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
