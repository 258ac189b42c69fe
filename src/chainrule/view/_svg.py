"""The few SVG elements that the pictures are made of, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["CHARACTER", "arrow", "circle", "document", "label", "rectangle"]

CHARACTER = 6.6
"""Width of a character of the pictures' text in pixels, on average and on the safe side."""

Point = tuple[float, float]

# Inside a page, the style of an inline SVG applies to the whole page: hence the class in front.
_STYLE = (
    ".chainrule-view text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:11px;fill:#1f2937;"
    "text-anchor:middle}.chainrule-view .strong{font-weight:600}.chainrule-view .faint{fill:#6b7280}"
    ".chainrule-view .start{text-anchor:start}"
    ".chainrule-view .halo{paint-order:stroke;stroke:#fff;stroke-width:4px}"
)


def document(body: Iterable[str], width: float, height: float, title: str) -> str:
    """A picture with a white ground, so that it can be read on a dark page as well."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="chainrule-view" role="img" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        '<rect width="100%" height="100%" fill="#fff"/>' + "".join(body) + "</svg>"
    )


def label(text: str, at: Point, kind: str = "") -> str:
    """Text centred at a point; `kind` names styles."""
    return f'<text x="{at[0]:.1f}" y="{at[1] + 4:.1f}" class="{kind}">{escape(text)}</text>'


def rectangle(centre: Point, size: Point, fill: str, stroke: str, radius: float = 6) -> str:
    """A box with round corners."""
    (x, y), (width, height) = centre, size
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>'
    )


def circle(centre: Point, radius: float, fill: str, stroke: str) -> str:
    """A circle."""
    x, y = centre
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" stroke="{stroke}"/>'


def arrow(points: Sequence[Point], colour: str, width: float = 1.2) -> str:
    """A smooth line through points from left to right, with a head at the last."""
    (x, y), *rest = points
    path = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        middle = (x + nx) / 2
        path.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {ny:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    head = f"M{x:.1f} {y:.1f}l-7 -3.5v7z"
    return (
        f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        f'<path d="{head}" fill="{colour}"/>'
    )
