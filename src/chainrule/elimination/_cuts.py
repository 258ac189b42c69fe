"""Minimal cuts of a graph without cycles, and the sets of nodes that they are made of.

A set of nodes is a *cut* between some sources and some sinks when every path from the ones to the others
meets it. Nodes have sizes; a minimal cut is one whose nodes have the least size together. Plans of pipelines
look for such cuts. What a vertex costs at least, in any order of elimination, is the product of two of them.

Nodes are numbers from 0. Sets of nodes are integers, one bit per node, and edges are one set per node: its
successors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


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


def between(successors: Sequence[int], sources: int, sinks: int) -> int:
    """The nodes on paths from sources to sinks, the ends included."""
    return reached(successors, sources) & reached(reversed_edges(successors), sinks)


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
    near_sinks: bool = False,
    region: int | None = None,
) -> Cut:
    """The nodes with the fewest elements that all paths from sources to sinks meet.

    Sources and sinks may be part of it. Of several minimal cuts it is the one nearest to the sinks, or to the
    sources: fewer nodes lie between it and the site for which it is made, which nothing can use afterwards.

    `region` are the nodes on paths from sources to sinks, where the caller knows them.

    By the theorem of Ford and Fulkerson the smallest cut is as large as the largest flow. Every node is two
    here, 2·node and 2·node + 1, with an edge between them that carries no more than its size.
    """
    if region is None:
        region = between(successors, sources, sinks)
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
