"""What a pipeline consists of, programs and the arrays on the links between them, and its picture as boxes.

Every link has two lines: the value and its cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chainrule._jaxpr import ClosedJaxpr
from chainrule.view._arrays import Array, norm
from chainrule.view._layout import lay_out_down
from chainrule.view._picture import (
    CHARACTER,
    FAINT,
    GROUND,
    WRONG,
    Arrow,
    Box,
    Drawing,
    Group,
    Label,
    Point,
    Rectangle,
    Shape,
)

_LONGEST = 38  # characters of a line in a box


@dataclass(frozen=True)
class Flow:
    """One array on a link.

    Attributes:
        name: under which it was sown, or by which a component knows it; empty where it has no name.
        type: its shape and dtype, such as `f32[3,4]`.
        value: the array; `None` where the function was not run.
        cotangent: the derivative of the result with respect to it, along this link; `None` where there is
            none, as for integers.
    """

    name: str
    type: str
    value: Array | None = field(default=None, repr=False, compare=False)
    cotangent: Array | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.type}".strip()

    @property
    def nonfinite(self) -> int:
        """How many entries of the value and of the cotangent are NaN or infinite."""
        arrays = (a for a in (self.value, self.cotangent) if a is not None)
        return sum(int(np.sum(~np.isfinite(array))) for array in arrays)


@dataclass(frozen=True)
class Link:
    """Arrays that go from one place to another.

    Attributes:
        source: the number of a part, or the name of an argument.
        target: the number of a part, or `"result"`.
        flows: the arrays.
    """

    source: int | str
    target: int | str
    flows: tuple[Flow, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.types[:2])
        return f"{shown} + {len(self.types) - 2}" if len(self.types) > 2 else shown

    @property
    def types(self) -> tuple[str, ...]:
        """Shape and dtype of each array."""
        return tuple(flow.type for flow in self.flows)

    @property
    def value_norm(self) -> float | None:
        """Euclidean norm of all values; `None` where the function was not run."""
        return norm_of(flow.value for flow in self.flows)

    @property
    def cotangent_norm(self) -> float | None:
        """Euclidean norm of all cotangents; `None` where there are none."""
        return norm_of(flow.cotangent for flow in self.flows)

    @property
    def nonfinite(self) -> int:
        """How many entries of values and cotangents are NaN or infinite."""
        return sum(flow.nonfinite for flow in self.flows)


def norm_of(arrays: Iterable[Array | None]) -> float | None:
    """Euclidean norm of those that are there; `None` if there are none."""
    there = [array for array in arrays if array is not None]
    return norm(there) if there else None


@dataclass(frozen=True)
class Part:
    """A call of a component, or the JAX operations between two of them.

    Attributes:
        kind: `"component"` or `"jax"`.
        name: the component's name; else the `jax.named_scope`, or the functions it was written in.
        detail: what is asked of a component (`apply`, `vjp`, …), or that it was inlined; else which pass
            it belongs to.
        framework: what a component is written in; `None` where that is not known.
        place: where it runs: `in this process`, an address, an image, …
        stage: the outermost `jax.named_scope` around it; parts of one stage collapse in the matrix.
        equations: number of JAX equations.
        operations: estimated scalar operations of a JAX part; `None` where only the component knows.
        bytes_in: size of the arrays that go in.
        bytes_out: size of the arrays that come out and are used.
        seconds: of one run, by what was run: `apply` and `vjp` of a component, `forward` and `backward` of
            a JAX part; empty when it was not measured.
        program: what it computes.
    """

    kind: Literal["component", "jax"]
    name: str
    detail: str
    framework: str | None
    place: str
    stage: str
    equations: int
    operations: float | None
    bytes_in: int
    bytes_out: int
    seconds: Mapping[str, float]
    program: ClosedJaxpr = field(repr=False)

    @property
    def cost(self) -> str:
        """What is known about its cost, in words."""
        if self.operations is None:
            known = f"{_short(self.bytes_in)}B in, {_short(self.bytes_out)}B out"
        else:
            unit = "operation" if self.operations == 1 else "operations"
            known = f"≈ {_short(self.operations).strip()} {unit}"
        return ", ".join([known, *filter(None, [self.duration])])

    @property
    def duration(self) -> str:
        """How long it took, in words; empty when it was not measured."""
        return ", ".join(f"{name} {_short(seconds)}s" for name, seconds in self.seconds.items())

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands in its box."""
        detail = " · ".join(filter(None, (self.detail, self.framework)))
        place = self.place if self.kind == "component" else ""
        cost = self.cost.removesuffix(self.duration).removesuffix(", ")
        lines = (self.name, detail, place, cost, self.duration)
        return tuple(shortened(line) for line in lines if line)


def shortened(line: str) -> str:
    """A line that fits a box."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 k`, `45 µ`."""
    if number == 0:
        return "0 "
    exponent = max(-3, min(4, math.floor(math.log10(abs(number)) / 3)))
    prefix = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}[exponent]
    return f"{number / 1000.0**exponent:.3g} {prefix}"


def number_text(value: float | None) -> str:
    """Three digits; nothing for nothing."""
    return "" if value is None else f"{value:.3g}".replace("nan", "NaN")


_VALUES = ("#c7d2fe", "#a5b4fc", "#818cf8", "#6366f1", "#3730a3")
_COTANGENTS = ("#a7f3d0", "#6ee7b7", "#34d399", "#047857", "#064e3b")
_PLAIN = "#6b7280"
_LINE = 15.0
_BETWEEN = 22.0
_LEGEND_SIZE = (330.0, 40.0)
_APART = 34.0  # between the ends of lines at one box


class Scale:
    """Norms as one of five steps, by their logarithms."""

    @classmethod
    def of_values(cls, links: Sequence[Link]) -> Scale:
        """Violet, for the values on all links."""
        return cls([link.value_norm for link in links], _VALUES)

    @classmethod
    def of_cotangents(cls, links: Sequence[Link]) -> Scale:
        """Green, for their cotangents."""
        return cls([link.cotangent_norm for link in links], _COTANGENTS)

    def __init__(self, norms: Sequence[float | None], colours: Sequence[str]) -> None:
        self._colours = colours
        exponents = [math.log(norm) for norm in norms if norm and math.isfinite(norm)]
        self._low, self._high = min(exponents, default=0.0), max(exponents, default=0.0)

    def level(self, norm: float | None) -> int | str | None:
        """0 to 4; `"odd"` for NaN and infinity, `"zero"`, and `None` for nothing."""
        if norm is None:
            return None
        if not math.isfinite(norm):
            return "odd"
        if norm == 0:
            return "zero"
        # Norms of one network differ by orders of magnitude, so the steps are equal in their logarithms.
        # Where all norms are the same there is no scale, and all get the middle.
        span = self._high - self._low
        top = len(self._colours) - 1
        return top // 2 if span < 1e-6 else round(top * (math.log(norm) - self._low) / span)

    def colour(self, norm: float | None) -> str:
        """Of a line or a cell."""
        level = self.level(norm)
        if isinstance(level, int):
            return self._colours[level]
        return WRONG if level == "odd" else _PLAIN

    def style(self, norm: float | None) -> tuple[str, float, bool]:
        """Colour and width of a line, and whether it is dashed."""
        level = self.level(norm)
        width = 1.5 + level if isinstance(level, int) else 3.5 if level == "odd" else 1.2
        return self.colour(norm), width, level == "zero"


def graph(boxes: Mapping[int | str, Box], links: Sequence[Link]) -> Drawing:
    """Draw boxes and the links between them.

    Args:
        boxes: in an order in which all links go forward.
        links: between them. Shapes are called `link-0`, …, and `node-0`, … in the order of the boxes.
    """
    chips = {link: _Chip(link) for link in links}
    sizes: dict[Any, Point] = {}
    for node, box in boxes.items():
        sizes |= {link: chip.size for link, chip in chips.items() if link.target == node}
        sizes[node] = box.size
    edges = [e for link in chips for e in ((link.source, link), (link, link.target))]
    layout = lay_out_down(sizes, edges, between=_BETWEEN)
    routes = _spread(layout.routes, boxes)
    scales = Scale.of_values(links), Scale.of_cotangents(links)
    shapes: list[Shape] = []
    for link in chips:
        ends = routes[link.source, link], routes[link, link.target]
        shapes.extend(_lines(link, *ends, *scales))
    for number, (node, box) in enumerate(boxes.items()):
        drawn = tuple(box.draw(layout.places[node]))
        shapes.append(Group(drawn, (0.0, 0.0), f"node-{number}"))
    for number, (link, chip) in enumerate(chips.items()):
        drawn = tuple(chip.draw(layout.places[link]))
        shapes.append(Group(drawn, (0.0, 0.0), f"link-{number}"))
    width, height = layout.size
    if all(link.value_norm is None for link in links):
        return Drawing(tuple(shapes), width, height, "Pipeline")
    wide, high = _LEGEND_SIZE
    moved = Group(tuple(shapes), (max(0.0, (wide - width) / 2), high))
    title = "Pipeline with values and cotangents"
    return Drawing((*_legend(), moved), max(width, wide), height + high, title)


@dataclass(frozen=True)
class _Chip:
    """What stands on a link."""

    link: Link

    @property
    def lines(self) -> tuple[str, ...]:
        flows = self.link.flows
        lines = [shortened(str(flow)) for flow in flows[:2]]
        if len(flows) > 2:
            lines.append(f"and {len(flows) - 2} more")
        norms = (("value", self.link.value_norm), ("cotangent", self.link.cotangent_norm))
        said = " · ".join(f"{word} {number_text(norm)}" for word, norm in norms if norm is not None)
        return tuple(filter(None, (*lines, said)))

    @property
    def size(self) -> Point:
        return max(map(len, self.lines)) * CHARACTER + 14, len(self.lines) * _LINE + 8

    def draw(self, place: Point) -> Iterator[Shape]:
        x, y = place
        if self.link.value_norm is not None:
            yield Rectangle(place, self.size, GROUND, WRONG if self.link.nonfinite else "#d1d5db")
        top = y - (len(self.lines) - 1) * _LINE / 2
        colour = WRONG if self.link.nonfinite else FAINT
        for k, line in enumerate(self.lines):
            yield Label(line, (x, top + k * _LINE), colour=colour)


Routes = Mapping[tuple[Any, Any], tuple[Point, ...]]


def _spread(routes: Routes, boxes: Mapping[Any, Box]) -> Routes:
    """The routes with ends that stand beside each other where several end at one box."""
    found = dict(routes)
    for node, box in boxes.items():
        for at, toward in ((0, 1), (-1, -2)):  # what leaves the box, and what comes to it
            here = [edge for edge in routes if edge[at] == node]
            here.sort(key=lambda edge: found[edge][toward][0])
            apart = min(_APART, (box.size[0] - 10) / max(1, len(here)))
            for k, edge in enumerate(here):
                points = list(found[edge])
                x, y = points[at]
                points[at] = x + apart * (k - (len(here) - 1) / 2), y
                found[edge] = tuple(points)
    return found


def _lines(
    link: Link,
    above: tuple[Point, ...],
    below: tuple[Point, ...],
    values: Scale,
    cotangents: Scale,
) -> Iterator[Arrow]:
    """The value from its source over its chip to its target; the cotangent, beside it, the other way."""
    value, cotangent = link.value_norm, link.cotangent_norm
    aside = 0.0 if cotangent is None else 5.0
    style = values.style(value)
    yield Arrow(_aside(above, -aside), *style, has_head=False, is_upright=True)
    yield Arrow(_aside(below, -aside), *style, is_upright=True)
    if cotangent is not None:
        style = cotangents.style(cotangent)
        yield Arrow(_aside(below, aside)[::-1], *style, has_head=False, is_upright=True)
        yield Arrow(_aside(above, aside)[::-1], *style, is_upright=True)


def _aside(points: tuple[Point, ...], distance: float) -> tuple[Point, ...]:
    return tuple((x + distance, y) for x, y in points)


def _legend() -> Iterator[Shape]:
    for x, text, colour in ((16.0, "values", _VALUES[3]), (96.0, "cotangents", _COTANGENTS[3])):
        yield Arrow(((x, 16.0), (x + 22, 16.0)), colour, 3.0)
        yield Label(text, (x + 30, 16.0), starts_here=True)
    yield Label("wide and dark: a large norm", (16, 32), starts_here=True, is_faint=True)
