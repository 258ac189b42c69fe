"""A graph as a matrix: nodes are rows and columns, and a cell is the edge from its row to its column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chainrule.view._picture import CHARACTER, GROUND, Cells, Drawing, Label, Rectangle, Shape

_SIDE = 16.0
_WIDEST = 960.0  # of the cells together
_READABLE = 11.0  # a smaller cell has no room for a line of text
_MARGIN = 16.0
_LONGEST = 28
_NODE = "#d1d5db"  # what is white in a graph


def matrix(
    labels: Sequence[str], fills: Sequence[str], cells: Mapping[tuple[int, int], str], title: str
) -> Drawing:
    """Draw a graph as a matrix.

    Args:
        labels: of the nodes, which are on the diagonal.
        fills: their colours.
        cells: (row, column) → colour.
        title: of the drawing.
    """
    side = min(_SIDE, _WIDEST / max(1, len(labels)))
    longest = min(_LONGEST, max(map(len, labels), default=0))
    left = _MARGIN + (longest * CHARACTER + 8 if side >= _READABLE else 0.0)
    size = len(labels) * side
    shapes: list[Shape] = [
        Rectangle(
            (left + size / 2, _MARGIN + size / 2), (size, size), "#f9fafb", "#9ca3af", radius=0
        )
    ]
    if side >= _READABLE:
        shapes += _labels(labels, side)
    by_colour: dict[str, list[tuple[int, int]]] = {}
    diagonal = (((k, k), _NODE if fill == GROUND else fill) for k, fill in enumerate(fills))
    for place, colour in [*diagonal, *cells.items()]:
        by_colour.setdefault(colour, []).append(place)
    for colour, places in by_colour.items():
        squares = [(left + c * side, _MARGIN + r * side, side, side) for r, c in places]
        shapes.append(Cells(tuple(squares), colour))
    return Drawing(tuple(shapes), left + size + _MARGIN, size + 2 * _MARGIN, title)


def _labels(labels: Sequence[str], side: float) -> Iterator[Label]:
    for row, label in enumerate(labels):
        text = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
        yield Label(text, (_MARGIN, _MARGIN + (row + 0.5) * side), starts_here=True)
