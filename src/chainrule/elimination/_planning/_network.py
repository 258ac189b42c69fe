"""A pipeline as planning sees it: arrays with sizes, sites between them, and minimal cuts.

A *node* is an array of the pipeline; its size is the number of its elements. An edge leads from one node to
another where JAX computes the second from the first: its local Jacobian costs (almost) nothing. A *site* is a
call of a component: from its operand nodes to its result nodes there are no edges, only products for a price.

The derivative of the pipeline is the sum over all paths from inputs to outputs. A set of nodes is a *cut*
between some sources and some sinks when every path from the ones to the others meets it. All that the sinks
learn from the sources passes through the cut, so the Jacobian of the sinks has as many independent columns as
the cut has elements, at most: that is how many products are needed, and the reason to look for minimal cuts.

Nodes are numbered in the order in which they are computed. Sets of nodes are integers, one bit per node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from chainrule.elimination._planning._prices import SitePrices


@dataclass(frozen=True)
class SiteNodes:
    """A site of a network.

    Attributes:
        name: for people.
        operands: the nodes that it reads and is differentiated by.
        results: the nodes that it computes, as far as they are read.
        prices: what products with its Jacobian cost.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    prices: SitePrices


@dataclass(frozen=True)
class Network:
    """A pipeline without its values.

    Attributes:
        sizes: number of elements of every node.
        successors: for every node, those that JAX computes from it.
        sites: in the order in which they are called.
        inputs: what is differentiated by.
        outputs: what is differentiated.
    """

    sizes: tuple[int, ...]
    successors: tuple[int, ...]
    sites: tuple[SiteNodes, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def chain(cls, sizes: Sequence[int], prices: Sequence[SitePrices]) -> Network:
        """Sites one after the other, with arrays of these sizes before, between and after them."""
        sites = tuple(
            SiteNodes(f"site {k + 1}", (k,), (k + 1,), price) for k, price in enumerate(prices)
        )
        return cls(tuple(sizes), (0,) * len(sizes), sites, (0,), (len(sizes) - 1,))

    @cached_property
    def through_sites(self) -> tuple[int, ...]:
        """The successors of every node if all local Jacobians were known."""
        full = list(self.successors)
        for site in self.sites:
            for operand in site.operands:
                full[operand] |= as_set(site.results)
        return tuple(full)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Which sites read what others compute, with nothing but JAX in between.

        Sites are numbered from 0; -1 stands for the inputs, and the number of sites for the outputs.
        """
        starts = [self.inputs, *(site.results for site in self.sites)]
        ends = [*(site.operands for site in self.sites), self.outputs]
        return tuple(
            (number, place)
            for number, start in enumerate(starts, start=-1)
            for place, end in enumerate(ends)
            if reached(self.successors, as_set(start)) & as_set(end)
        )

    def size_of(self, nodes: Iterable[int]) -> int:
        """Number of elements of some nodes."""
        return sum(self.sizes[node] for node in nodes)


def as_set(nodes: Iterable[int]) -> int:
    """Nodes as bits of an integer."""
    found = 0
    for node in nodes:
        found |= 1 << node
    return found


def members(nodes: int) -> Iterator[int]:
    """The nodes of a set, in ascending order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def reached(successors: Sequence[int], start: int) -> int:
    """The nodes that can be reached from a set, itself included."""
    found, new = start, start
    while new:
        ahead = 0
        for node in members(new):
            ahead |= successors[node]
        new = ahead & ~found
        found |= new
    return found


def reversed_edges(successors: Sequence[int]) -> tuple[int, ...]:
    """The predecessors of every node."""
    before = [0] * len(successors)
    for node, ahead in enumerate(successors):
        for successor in members(ahead):
            before[successor] |= 1 << node
    return tuple(before)


@dataclass(frozen=True)
class Cut:
    """A minimal cut.

    Attributes:
        nodes: in ascending order.
        size: number of their elements.
        region: all nodes on paths from the sources to the sinks; another region has the same cut.
    """

    nodes: tuple[int, ...]
    size: int
    region: int


_SOURCE, _SINK = -1, -2


def minimal_cut(
    sizes: Sequence[int],
    successors: Sequence[int],
    sources: int,
    sinks: int,
    *,
    near_sinks: bool,
) -> Cut:
    """The nodes with the fewest elements that all paths from sources to sinks meet.

    Sources and sinks may be part of it. Of several minimal cuts it is the one nearest to the sinks, or to the
    sources: fewer nodes lie between it and the site for which it is made, which nothing can use afterwards.

    By the theorem of Ford and Fulkerson the smallest cut is as large as the largest flow. Every node is two
    here, 2·node and 2·node + 1, with an edge between them that carries no more than its size.
    """
    region = _between(successors, sources, sinks)
    room: dict[int, dict[int, float]] = {_SOURCE: {}, _SINK: {}}
    for node in members(region):
        room[2 * node], room[2 * node + 1] = {2 * node + 1: sizes[node]}, {2 * node: 0}
    endless = 1 + sum(sizes[node] for node in members(region))

    def connect(start: int, end: int) -> None:
        room[start][end] = endless
        room[end].setdefault(start, 0)

    for node in members(region):
        if sources >> node & 1:
            connect(_SOURCE, 2 * node)
        if sinks >> node & 1:
            connect(2 * node + 1, _SINK)
        for successor in members(successors[node] & region):
            connect(2 * node + 1, 2 * successor)
    while (found := _augment(room)) is None:
        pass
    if near_sinks:
        found = room.keys() - _reaching(room, _SINK)
    nodes = tuple(n for n in members(region) if 2 * n in found and 2 * n + 1 not in found)
    return Cut(nodes, sum(sizes[node] for node in nodes), region)


def _between(successors: Sequence[int], sources: int, sinks: int) -> int:
    """The nodes on paths from sources to sinks. Nodes are numbered in the order of the paths."""
    ahead = reached(successors, sources)
    found = sinks & ahead
    for node in reversed(list(members(ahead))):
        if successors[node] & found:
            found |= 1 << node
    return found


def _augment(room: dict[int, dict[int, float]]) -> set[int] | None:
    """Send what fits along one shortest path; where there is none, what the source still reaches."""
    came_from: dict[int, int] = {_SOURCE: _SOURCE}
    waiting = deque([_SOURCE])
    while waiting:
        place = waiting.popleft()
        for following, free in room[place].items():
            if free > 0 and following not in came_from:
                came_from[following] = place
                waiting.append(following)
    if _SINK not in came_from:
        return set(came_from)
    path = [_SINK]
    while path[-1] != _SOURCE:
        path.append(came_from[path[-1]])
    steps = [(start, end) for end, start in pairwise(path)]
    amount = min(room[start][end] for start, end in steps)
    for start, end in steps:
        room[start][end] -= amount
        room[end][start] = room[end].get(start, 0) + amount
    return None


def _reaching(room: dict[int, dict[int, float]], goal: int) -> set[int]:
    """The places from which something can still flow to the goal."""
    found, waiting = {goal}, deque([goal])
    while waiting:
        place = waiting.popleft()
        for before in room[place]:  # every edge is there in both directions
            if before not in found and room[before].get(place, 0) > 0:
                found.add(before)
                waiting.append(before)
    return found
