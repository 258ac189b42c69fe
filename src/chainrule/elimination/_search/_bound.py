"""A lower bound for scalar vertex elimination.

When vertex v is eliminated, its in-neighbours separate it from the inputs and its out-neighbours separate
it from the outputs, whatever went before. So it costs at least mincut(inputs → v) · mincut(v → outputs),
where a cut is a set of vertices; the sum over all vertices bounds every order from below.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

from chainrule.elimination._search._problem import Problem


def lower_bound(problem: Problem, *, until: float = math.inf) -> int | None:
    """The bound, or `None` when the problem is not scalar and it does not hold.

    Args:
        problem: the graph.
        until: when to stop, on the clock of `time.perf_counter`; a bound of fewer vertices holds too.
    """
    return sum(vertex_bounds(problem, until=until).values()) if problem.is_scalar else None


def vertex_bounds(problem: Problem, *, until: float = math.inf) -> dict[int, int]:
    """The least that every vertex can cost, whenever it goes; 0 where that is not known."""
    if not problem.is_scalar:
        return dict.fromkeys(problem.eliminable, 0)
    forward: list[list[int]] = [[] for _ in range(problem.size)]
    backward: list[list[int]] = [[] for _ in range(problem.size)]
    for source, target, _ in problem.edges:
        forward[source].append(target)
        backward[target].append(source)
    bounds = dict.fromkeys(problem.eliminable, 0)
    for v in bounds:
        if time.perf_counter() > until:
            break
        before = _disjoint_paths(backward, v, problem.inputs)
        bounds[v] = before * _disjoint_paths(forward, v, problem.outputs)
    return bounds


def _disjoint_paths(neighbours: list[list[int]], start: int, goals: Iterable[int]) -> int:
    """How many paths from a vertex to any of the goals share no vertex but the start.

    Augmenting paths on the graph with every vertex split in two, (v, 0) where paths enter and (v, 1)
    where they leave; by Menger's theorem the number is the smallest cut.
    """
    ends = set(goals) - {start}
    flow: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    count = 0
    while _augment(neighbours, start, ends, flow):
        count += 1
    return count


def _augment(
    neighbours: list[list[int]], start: int, ends: set[int],
    flow: set[tuple[tuple[int, int], tuple[int, int]]],
) -> bool:  # fmt: skip
    source, sink = (start, 1), (-1, 0)
    came_from: dict[tuple[int, int], tuple[int, int]] = {source: source}
    reverse: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for tail, head in flow:
        reverse.setdefault(head, []).append(tail)
    queue = deque([source])
    while queue:
        node = queue.popleft()
        if node == sink:
            _flip(came_from, source, sink, flow)
            return True
        vertex, side = node
        if side == 1:
            onward = [(other, 0) for other in neighbours[vertex]]
            if vertex in ends:
                onward.append(sink)
        else:
            onward = [(vertex, 1)]
        for other in onward:
            if other not in came_from and (node, other) not in flow:
                came_from[other] = node
                queue.append(other)
        for other in reverse.get(node, ()):
            if other not in came_from:
                came_from[other] = node
                queue.append(other)
    return False


def _flip(came_from: dict, source: tuple[int, int], sink: tuple[int, int], flow: set) -> None:
    node = sink
    while node != source:
        previous = came_from[node]
        if (node, previous) in flow:
            flow.remove((node, previous))
        else:
            flow.add((previous, node))
        node = previous
