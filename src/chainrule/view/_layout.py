"""Places for the nodes of an acyclic graph: in layers, from left to right or from the top down.

A node's layer is the longest way to it. An edge that passes layers gets a place in each, like a small node,
so that it runs around other nodes and not under them. Within the layers everything is then sorted by the mean
place of its neighbours, back and forth a few times, which removes most crossings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Edge = tuple[Any, Any]
Point = tuple[float, float]

# Passes of sorting, forward and backward in turn.
_SWEEPS = 8
_APART = 18.0  # free space between the nodes of a layer
_MARGIN = 16.0
_WAYPOINT: Point = (0.0, 16.0)


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        places: centre of every node.
        routes: points of every edge, from the right side of one node to the left side of the other.
        size: width and height of it all.
        sizes: width and height of every node.
    """

    places: Mapping[Any, Point]
    routes: Mapping[Edge, tuple[Point, ...]]
    size: Point
    sizes: Mapping[Any, Point]

    def route(self, edge: Edge) -> tuple[Point, ...]:
        """Points of an edge; of one that was not laid out, as straight as the nodes between allow."""
        if edge in self.routes:
            return self.routes[edge]
        a, b = edge
        start = _side(self.places[a], self.sizes[a], +1)
        end = _side(self.places[b], self.sizes[b], -1)
        columns: dict[float, list[Any]] = defaultdict(list)
        for node, (x, _) in self.places.items():
            if start[0] < x < end[0]:
                columns[x].append(node)
        points = []
        for x in sorted(columns):
            straight = start[1] + (end[1] - start[1]) * (x - start[0]) / (end[0] - start[0])
            points.append((x, self._free(columns[x], straight)))
        return (start, *points, end)

    def _free(self, column: Collection[Any], y: float) -> float:
        """The height nearest to `y` at which no node of the column is."""
        spans = [
            (
                self.places[n][1] - self.sizes[n][1] / 2 - 4,
                self.places[n][1] + self.sizes[n][1] / 2 + 4,
            )
            for n in column
        ]
        tried = [y, *(end for span in spans for end in span)]
        free = [t for t in tried if not any(low < t < high for low, high in spans)]
        return min(free, key=lambda t: abs(t - y))

    def middle(self, edge: Edge) -> Point:
        """Where an edge can be labelled.

        A long edge is flat and alone where it passes a layer; a short one has only its middle.
        """
        route = self.route(edge)
        if len(route) > 2:
            return route[len(route) // 2]
        (ax, ay), (bx, by) = route
        return (ax + bx) / 2, (ay + by) / 2


@dataclass(frozen=True)
class _Waypoint:
    """The place of an edge in a layer that it passes."""

    edge: Edge
    layer: int


def lay_out_down(sizes: Mapping[Any, Point], edges: Collection[Edge], *, between: float) -> Layout:
    """Place nodes in layers from the top down; see `lay_out`."""
    layout = lay_out({node: _turned(size) for node, size in sizes.items()}, edges, between=between)
    return Layout(
        {node: _turned(place) for node, place in layout.places.items()},
        {edge: tuple(map(_turned, route)) for edge, route in layout.routes.items()},
        _turned(layout.size),
        sizes,
    )


def _turned(point: Point) -> Point:
    return point[1], point[0]


def lay_out(sizes: Mapping[Any, Point], edges: Collection[Edge], *, between: float) -> Layout:
    """Place nodes in layers.

    Args:
        sizes: width and height of every node, in an order in which all edges go forward.
        edges: pairs of nodes.
        between: free space between layers.
    """
    depth = _depths(sizes, edges)
    chains = {(a, b): _chain((a, b), depth) for a, b in edges}
    layers = _sorted_layers(depth, chains)
    places, size = _coordinates(layers, sizes, between)
    routes = {
        (a, b): (_side(places[a], sizes[a], +1), *(places[w] for w in chain[1:-1]),
                 _side(places[b], sizes[b], -1))
        for (a, b), chain in chains.items()
    }  # fmt: skip
    return Layout({node: places[node] for node in sizes}, routes, size, sizes)


def _depths(sizes: Mapping[Any, Point], edges: Collection[Edge]) -> dict[Any, int]:
    before = defaultdict(list)
    for a, b in edges:
        before[b].append(a)
    depth: dict[Any, int] = {}
    for node in sizes:
        depth[node] = max((depth[a] + 1 for a in before[node]), default=0)
    return depth


def _chain(edge: Edge, depth: Mapping[Any, int]) -> list[Any]:
    """The edge's ends and its waypoints between them."""
    a, b = edge
    passed = range(depth[a] + 1, depth[b])
    return [a, *(_Waypoint(edge, layer) for layer in passed), b]


def _sorted_layers(depth: Mapping[Any, int], chains: Mapping[Edge, list[Any]]) -> list[list[Any]]:
    layers: list[list[Any]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node, number in depth.items():
        layers[number].append(node)
    before, after = defaultdict(list), defaultdict(list)
    for chain in chains.values():
        for waypoint in chain[1:-1]:
            layers[waypoint.layer].append(waypoint)
        for a, b in pairwise(chain):
            before[b].append(a)
            after[a].append(b)
    for sweep in range(_SWEEPS):
        is_forward = sweep % 2 == 0
        for layer in layers if is_forward else reversed(layers):
            _sort_by_neighbours(layer, before if is_forward else after, layers)
    return layers


def _sort_by_neighbours(
    layer: list[Any], neighbours: Mapping[Any, list[Any]], layers: list[list[Any]]
) -> None:
    # Places are relative to the middle, so that layers of different lengths compare.
    place = {node: k - len(each) / 2 for each in layers for k, node in enumerate(each)}

    def mean(node: Any) -> float:
        near = neighbours.get(node, [])
        return sum(place[n] for n in near) / len(near) if near else place[node]

    layer.sort(key=mean)


def _coordinates(
    layers: list[list[Any]], sizes: Mapping[Any, Point], between: float
) -> tuple[dict[Any, Point], Point]:
    def size(node: Any) -> Point:
        return _WAYPOINT if isinstance(node, _Waypoint) else sizes[node]

    heights = [sum(size(n)[1] for n in layer) + _APART * (len(layer) - 1) for layer in layers]
    tallest = max(heights, default=0.0)
    places: dict[Any, Point] = {}
    x = _MARGIN
    for layer, height in zip(layers, heights, strict=True):
        width = max(size(node)[0] for node in layer)
        y = _MARGIN + (tallest - height) / 2
        for node in layer:
            places[node] = (x + width / 2, y + size(node)[1] / 2)
            y += size(node)[1] + _APART
        x += width + between
    return places, (x - between + _MARGIN, tallest + 2 * _MARGIN)


def _side(centre: Point, size: Point, sign: int) -> Point:
    return centre[0] + sign * size[0] / 2, centre[1]
