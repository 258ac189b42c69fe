"""Drawings as the text of SVG documents."""

from __future__ import annotations

from functools import singledispatch
from html import escape

from chainrule.view._drawing import Arrow, Cells, Circle, Drawing, Group, Label, Rectangle, Shape

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
