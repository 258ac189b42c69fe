"""The graph while vertices are being eliminated: one source, interpreted by Python or compiled by numba.

The functions at the top are loops over sequences of integers. Python runs them on lists and dictionaries;
where numba is installed (`chainrule[native]`), a long search compiles the same functions for arrays. Both
give the same costs and take the same decisions. `PartialGraph` is how the rest of this package uses them.

Cells
    The graph is one sequence of integers, so that a change is undone by writing old cells back:

        edges           [source · size + target]  the structure of the edge, or `ABSENT`
        successors      [size² + vertex · size + k]  the k-th vertex that reads a vertex
        predecessors    [2 size² + vertex · size + k]  the k-th vertex that it reads
        counts          [3 size² + vertex]  of successors; after `size` of these, of predecessors
        flags           [3 size² + 2 size + vertex]  `KEPT` for outputs, `INNER` for eliminable vertices
        scratch         2 size cells for a list of neighbours

    An edge that is cut becomes `ABSENT` and stays in the lists; a walk through a list skips it. That is
    possible because an eliminated vertex never gets such an edge again: c[source, target] is made from edges
    source → vertex → target, and an eliminated source has no edge to a vertex any more (an eliminated target
    has none from one, or is an output, whose in-edges are never cut). Only after the elimination of a single
    edge can the same edge come back; that edge is removed from the lists.

Journal
    While `state[KEEPING]` is positive, every write to an edge or a count is preceded by a note of the cell
    and its old value; what is in a list behind its count has no meaning. `_take_back` writes the notes back,
    last first. So a trial costs as much as what it changes, not as the graph.

Questions
    Products and sums of structures are read from tables: the structure at 2 (first · wide + second), its cost
    in the next place. Interpreted, the table asks the algebra itself. Compiled code cannot call back: it
    takes back what it has done of the current vertex, leaves the question in `state`, and returns
    `STOPPED`; the caller answers and calls again.

Every function begins with the same five containers. They are not one object, because compiled code would
count references to each of them at every call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chainrule.elimination._search._problem import ZERO, OutOfBudgetError, Problem

UNKNOWN, ABSENT = -3, -2
STOPPED, EVERY = -1, -1
KEPT, INNER = 1, 2

SIZE, WIDE, IS_SCALAR, WRITTEN, KEEPING, ROOM, ASKED, FIRST, SECOND, WORK = range(10)
_NOTHING, _ROOM, _PRODUCT, _SUM = range(4)


def _take_back(cells: Any, journal: Any, state: Any, mark: int) -> None:
    """Undo all writes since the journal had `mark` notes."""
    written = state[WRITTEN]
    while written > mark:
        written -= 1
        cells[journal[2 * written]] = journal[2 * written + 1]
    state[WRITTEN] = mark


def _write(cells: Any, journal: Any, state: Any, index: int, value: int) -> None:
    if state[KEEPING] > 0:
        written = state[WRITTEN]
        journal[2 * written] = index
        journal[2 * written + 1] = cells[index]
        state[WRITTEN] = written + 1
    cells[index] = value


def _remove(cells: Any, journal: Any, state: Any, start: int, count_at: int, member: int) -> None:
    """Remove a member of a list; the last one takes its place."""
    last = cells[count_at] - 1
    for place in range(start, start + last):
        if cells[place] == member:
            _write(cells, journal, state, place, cells[start + last])
            _write(cells, journal, state, start + last, member)
            break
    _write(cells, journal, state, count_at, last)


def _ask(state: Any, kind: int, first: int, second: int) -> int:
    state[ASKED] = kind
    state[FIRST] = first
    state[SECOND] = second
    return STOPPED


def _cost_of(cells: Any, state: Any, products: Any, sums: Any, vertex: int) -> int:
    """What eliminating a vertex would cost now, or `STOPPED`."""
    size, wide = state[SIZE], state[WIDE]
    square = size * size
    after, before = square + vertex * size, 2 * square + vertex * size
    n_after, n_before = cells[3 * square + vertex], cells[3 * square + size + vertex]
    total = pairs = 0
    if state[IS_SCALAR]:  # every product costs one
        for k in range(after, after + n_after):
            total += cells[vertex * size + cells[k]] != ABSENT
        for i in range(before, before + n_before):
            pairs += cells[cells[i] * size + vertex] != ABSENT
        return total * pairs
    for k in range(after, after + n_after):
        target = cells[k]
        outer = cells[vertex * size + target]
        if outer == ABSENT:
            continue
        for i in range(before, before + n_before):
            source = cells[i]
            inner = cells[source * size + vertex]
            if inner == ABSENT:
                continue
            pairs += 1
            made = products[2 * (outer * wide + inner)]
            if made == UNKNOWN:
                return _ask(state, _PRODUCT, outer, inner)
            total += products[2 * (outer * wide + inner) + 1]
            present = cells[source * size + target]
            if made != ZERO and present != ABSENT:
                if sums[2 * (present * wide + made)] == UNKNOWN:
                    return _ask(state, _SUM, present, made)
                total += sums[2 * (present * wide + made) + 1]
    state[WORK] += pairs
    return total


def _eliminate(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any, vertex: int, neighbour: int
) -> int:
    """Eliminate a vertex, or only its edge to or from a neighbour; what it cost, or `STOPPED`.

    c[source, target] += c[vertex, target] · c[source, vertex] for every pair of an in-edge and an out-edge,
    then the edges are cut. An output (`KEPT`) keeps its in-edges: they are a row of the Jacobian.
    """
    size, wide = state[SIZE], state[WIDE]
    square = size * size
    counts = 3 * square
    after, before = square + vertex * size, 2 * square + vertex * size
    n_after, n_before = cells[counts + vertex], cells[counts + size + vertex]
    mark = written = state[WRITTEN]
    # A new edge takes three notes (the edge and two counts), one that is cut takes one.
    if mark + 3 * n_after * n_before + n_after + n_before > state[ROOM]:
        return _ask(state, _ROOM, 0, 0)
    keeps = state[KEEPING] > 0
    total = pairs = 0
    for k in range(after, after + n_after):
        target = cells[k]
        outer = cells[vertex * size + target]
        if outer == ABSENT:
            continue
        for i in range(before, before + n_before):
            source = cells[i]
            inner = cells[source * size + vertex]
            if inner == ABSENT or (neighbour != EVERY and neighbour not in (source, target)):
                continue
            pairs += 1
            made = products[2 * (outer * wide + inner)]
            if made == UNKNOWN:
                state[WRITTEN] = written
                _take_back(cells, journal, state, mark)
                return _ask(state, _PRODUCT, outer, inner)
            total += products[2 * (outer * wide + inner) + 1]
            if made == ZERO:
                continue
            edge = source * size + target
            present = cells[edge]
            if present != ABSENT:
                merged = sums[2 * (present * wide + made)]
                if merged == UNKNOWN:
                    state[WRITTEN] = written
                    _take_back(cells, journal, state, mark)
                    return _ask(state, _SUM, present, made)
                total += sums[2 * (present * wide + made) + 1]
                made = merged
            else:
                readers, operands = cells[counts + source], cells[counts + size + target]
                if keeps:
                    journal[2 * written] = counts + source
                    journal[2 * written + 1] = readers
                    journal[2 * written + 2] = counts + size + target
                    journal[2 * written + 3] = operands
                    written += 2
                cells[square + source * size + readers] = target
                cells[counts + source] = readers + 1
                cells[2 * square + target * size + operands] = source
                cells[counts + size + target] = operands + 1
            if present != made:
                if keeps:
                    journal[2 * written] = edge
                    journal[2 * written + 1] = present
                    written += 1
                cells[edge] = made
    state[WRITTEN] = written
    state[WORK] += 1 + pairs
    if neighbour == EVERY:
        _cut(cells, journal, state, vertex, n_after, n_before)
    elif cells[vertex * size + neighbour] != ABSENT:
        _cut_edge(cells, journal, state, vertex, neighbour)
    elif cells[neighbour * size + vertex] != ABSENT:
        _cut_edge(cells, journal, state, neighbour, vertex)
    return total


def _cut(cells: Any, journal: Any, state: Any, vertex: int, n_after: int, n_before: int) -> None:
    """Cut all edges of an eliminated vertex but those that are a row of the Jacobian."""
    size = state[SIZE]
    square = size * size
    keeps, written = state[KEEPING] > 0, state[WRITTEN]
    if cells[3 * square + 2 * size + vertex] & KEPT:
        n_before = 0
    for k in range(n_after + n_before):
        if k < n_after:
            edge = vertex * size + cells[square + vertex * size + k]
        else:
            edge = cells[2 * square + vertex * size + k - n_after] * size + vertex
        if cells[edge] != ABSENT:
            if keeps:
                journal[2 * written] = edge
                journal[2 * written + 1] = cells[edge]
                written += 1
            cells[edge] = ABSENT
    state[WRITTEN] = written


def _cut_edge(cells: Any, journal: Any, state: Any, source: int, target: int) -> None:
    """Cut one edge, which may come back."""
    size = state[SIZE]
    square = size * size
    _write(cells, journal, state, source * size + target, ABSENT)
    _remove(cells, journal, state, square + source * size, 3 * square + source, target)
    _remove(cells, journal, state, 2 * square + target * size, 3 * square + size + target, source)


def eliminate_steps(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any,
    vertices: Any, neighbours: Any, first: int, costs: Any,
) -> int:  # fmt: skip
    """Eliminate step by step from the first on; how many are done."""
    for k in range(first, len(vertices)):
        cost = _eliminate(cells, journal, state, products, sums, vertices[k], neighbours[k])
        if cost == STOPPED:
            return k
        costs[k] = cost
    return len(vertices)


def score_vertices(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any,
    vertices: Any, first: int, look_ahead: float, scores: Any,
) -> int:  # fmt: skip
    """The cost of each vertex plus `look_ahead` × the change of its neighbours' costs; how many are done."""
    for k in range(first, len(vertices)):
        cost = _cost_of(cells, state, products, sums, vertices[k])
        if cost == STOPPED:
            return k
        scores[k] = cost
        if look_ahead != 0.0:
            change = _change_nearby(cells, journal, state, products, sums, vertices[k])
            if state[ASKED] != _NOTHING:
                return k
            scores[k] = cost + look_ahead * change
    return len(vertices)


def _change_nearby(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any, vertex: int
) -> int:
    """By how much eliminating a vertex changes the summed costs of its neighbours; tried and taken back."""
    size = state[SIZE]
    square = size * size
    flags, near = 3 * square + 2 * size, 3 * square + 3 * size
    n_after, n_before = cells[3 * square + vertex], cells[3 * square + size + vertex]
    count = 0
    for side in (1, 2):
        start = side * square + vertex * size
        for k in range(start, start + (n_after if side == 1 else n_before)):
            other = cells[k]
            edge = vertex * size + other if side == 1 else other * size + vertex
            if cells[edge] != ABSENT and cells[flags + other] & INNER:
                cells[near + count] = other
                count += 1
    change, mark = 0, state[WRITTEN]
    state[KEEPING] += 1
    for sign in (-1, 1):
        for k in range(near, near + count):
            cost = _cost_of(cells, state, products, sums, cells[k])
            if cost == STOPPED:
                break
            change += sign * cost
        if state[ASKED] != _NOTHING:
            break
        if sign < 0 and _eliminate(cells, journal, state, products, sums, vertex, EVERY) == STOPPED:
            break
    _take_back(cells, journal, state, mark)
    state[KEEPING] -= 1
    return change


_PRIME, _FACTOR = 2147483647, 48271
"""Lehmer's generator: its products stay below 2⁵³, so that Python and compiled code draw the same numbers."""

POSITION, ATTEMPT, SEED = range(3)
_CHUNK = 64
"""Positions after which an annealing pass returns, so that the caller can look at the clock."""


def anneal_pass(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any,
    order: Any, costs: Any, fresh: Any, temperature: float, window: int, tries: int, progress: Any,
) -> bool:  # fmt: skip
    """Walk on through an order, changing it in place; whether it goes on in the next call.

    At every position, `tries` times: move the vertex there at most `window` places later, or bring one from
    at most `window` places later here. What is left of the graph after a *set* of vertices does not depend
    on their order, so costs outside of the window do not change. `progress` says where the pass is; a trial
    that is stopped is begun again with the same random numbers.
    """
    length = len(order)
    while progress[POSITION] < length - 1:
        position = progress[POSITION]
        while progress[ATTEMPT] < tries:
            seed = progress[SEED] * _FACTOR % _PRIME
            count = 2 + seed % window
            if position + count > length:
                count = length - position
            seed = seed * _FACTOR % _PRIME
            shift = (
                1 if seed % 2 == 0 else count - 1
            )  # the first goes last, or the last comes first
            change, mark, is_stopped = 0, state[WRITTEN], False
            state[KEEPING] += 1
            for k in range(count):
                vertex = order[position + (k + shift) % count]
                cost = _eliminate(cells, journal, state, products, sums, vertex, EVERY)
                if cost == STOPPED:
                    is_stopped = True
                    break
                fresh[k] = cost
                change += cost - costs[position + k]
            _take_back(cells, journal, state, mark)
            state[KEEPING] -= 1
            if is_stopped:
                return True
            seed = seed * _FACTOR % _PRIME
            is_taken = change <= 0
            if not is_taken and temperature > 0.0:
                is_taken = seed / _PRIME < math.exp(-change / temperature)
            if is_taken:
                _rotate(order, position, count, shift)
                for k in range(count):
                    costs[position + k] = fresh[k]
            progress[SEED] = seed
            progress[ATTEMPT] += 1
        vertex = order[position]
        if _eliminate(cells, journal, state, products, sums, vertex, EVERY) == STOPPED:
            return True
        progress[POSITION] = position + 1
        progress[ATTEMPT] = 0
        if position % _CHUNK == _CHUNK - 1:
            return True
    return False


def _rotate(order: Any, position: int, count: int, shift: int) -> None:
    last = position + count - 1
    if shift == 1:
        moved = order[position]
        for k in range(position, last):
            order[k] = order[k + 1]
        order[last] = moved
    else:
        moved = order[last]
        for k in range(last, position, -1):
            order[k] = order[k - 1]
        order[position] = moved


def subset_costs(
    cells: Any, journal: Any, state: Any, products: Any, sums: Any,
    segment: Any, costs: Any, path: Any, marks: Any,
) -> bool:  # fmt: skip
    """What every vertex of a segment costs after every subset of it; whether all are known.

    `costs[subset · width + k]` is filled where it is negative. Subsets grow by rising positions, so that
    each is reached once, depth first; going back is taking back.
    """
    width = len(segment)
    base = state[WRITTEN]
    depth, subset, following = 0, 0, 0
    while True:
        for k in range(width):
            if not subset >> k & 1 and costs[subset * width + k] < 0:
                cost = _cost_of(cells, state, products, sums, segment[k])
                if cost == STOPPED:
                    _take_back(cells, journal, state, base)
                    return False
                costs[subset * width + k] = cost
        while following == width and depth > 0:
            depth -= 1
            _take_back(cells, journal, state, marks[depth])
            subset ^= 1 << path[depth]
            following = path[depth] + 1
        if following == width:
            return True
        marks[depth] = state[WRITTEN]
        path[depth] = following
        vertex = segment[following]
        if _eliminate(cells, journal, state, products, sums, vertex, EVERY) == STOPPED:
            _take_back(cells, journal, state, base)
            return False
        subset |= 1 << following
        depth += 1
        following += 1


class _Kernels(NamedTuple):
    """The functions that `PartialGraph` calls."""

    take_back: Any
    eliminate_steps: Any
    score_vertices: Any
    anneal_pass: Any
    subset_costs: Any


_INTERPRETED = _Kernels(_take_back, eliminate_steps, score_vertices, anneal_pass, subset_costs)
_HELPERS = (
    _take_back, _write, _remove, _ask, _cost_of, _eliminate, _cut, _cut_edge, _change_nearby, _rotate,
)  # fmt: skip


def can_compile() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _compiled() -> _Kernels:
    """The same functions, compiled: some seconds the first time, then numba keeps the code on disk."""
    import numba
    from numba.extending import register_jitable

    for helper in _HELPERS:
        register_jitable(helper)
    try:
        return _Kernels(*(numba.njit(function, cache=True) for function in _INTERPRETED))
    except RuntimeError:  # there is no folder that numba may write to
        return _Kernels(*(numba.njit(function) for function in _INTERPRETED))


_WIDE = 1 << 20
"""Interpreted tables are dictionaries: structure numbers stay below this."""

_MOST_STRUCTURES = 4096
"""Compiled tables are squares: 270 MB each at this size."""

_MOST_VERTICES = 2048
"""Compiled cells are three squares: 50 MB at this size."""

_MOST_LISTED = 512
"""Interpreted cells of more vertices are a dictionary: most edges of a large graph are absent."""

_QUESTION = 40
"""A product of two terms that is not known yet takes as long as this many products that are."""


class TooManyStructuresError(Exception):
    """There are more structures than compiled tables have room for; never leaves this package."""


class _Sparse(dict):
    """Cells as a dictionary."""

    def copy(self) -> _Sparse:
        return _Sparse(self)

    def __missing__(self, index: int) -> int:
        return ABSENT


class _Answers(dict):
    """A table that asks the algebra for what it does not know."""

    def __init__(self, graph: PartialGraph, question: Any) -> None:
        super().__init__()
        self._graph, self._question = graph, question

    def __missing__(self, key: int) -> int:
        self._graph.check_budget()
        first, second = divmod(key // 2, _WIDE)
        self._graph.count_question(first, second)
        self[key], self[key + 1] = self._question(first, second)
        return self[key]


class PartialGraph:
    """A problem's graph while vertices are eliminated.

    Attributes:
        problem: what it is the graph of.
        is_compiled: whether compiled functions work on it.
        deadline: when to raise `OutOfBudgetError` rather than ask for another product, which may be slow.
        most_work: the same, in pairs of edges that are looked at; see `work`.
    """

    def __init__(self, problem: Problem, *, compiled: bool = False) -> None:
        self.problem = problem
        self.deadline = math.inf
        self.most_work = math.inf
        self.is_compiled = compiled and _has_room(problem)
        self._kernels = _compiled() if self.is_compiled else _INTERPRETED
        self._initial = _initial_cells(problem, self.is_compiled)
        self._cells = self._initial.copy()
        self._journal: Any = {}
        self._products: Any = _Answers(self, problem.algebra.product)
        self._sums: Any = _Answers(self, problem.algebra.sum)
        facts = [problem.size, _WIDE, int(problem.is_scalar), 0, 0, 1 << 62, _NOTHING, 0, 0, 0]
        self.state = self.vector(facts)
        if self.is_compiled:
            self._prepare_arrays()

    def _prepare_arrays(self) -> None:
        # Compiled code takes back what it has done when it stops with a question: it always keeps a journal.
        self.state[KEEPING] = 1
        self._journal = np.zeros(0, np.int64)
        self._make_room(1 << 14)
        most = max((structure for *_, structure in self.problem.edges), default=0)
        wide = self.state[WIDE] = 2 ** (most + 1).bit_length()
        self._products = np.full(2 * wide * wide, UNKNOWN, np.int64)
        self._sums = self._products.copy()

    @property
    def _graph(self) -> tuple[Any, ...]:
        """What every kernel begins with."""
        return self._cells, self._journal, self.state, self._products, self._sums

    def vector(self, values: Sequence[int]) -> Any:
        """Integers in the container that the kernels take."""
        return np.array(values, np.int64) if self.is_compiled else list(values)

    @property
    def work(self) -> int:
        """Pairs of edges looked at so far; pairs of terms in a new product or sum count `_QUESTION` times."""
        return int(self.state[WORK])

    def count_question(self, first: int, second: int) -> None:
        """Count the work of a product or a sum that is not known yet."""
        terms = self.problem.algebra.terms
        self.state[WORK] += _QUESTION * terms(first) * terms(second)

    def check_budget(self) -> None:
        """Raise `OutOfBudgetError` when the time is up, or too much was done."""
        if self.state[WORK] > self.most_work or time.perf_counter() > self.deadline:
            raise OutOfBudgetError

    def reset(self) -> None:
        """Back to the whole graph, also after something was interrupted half-way."""
        if self.is_compiled:
            self._cells[:] = self._initial
        else:
            self._cells = self._initial.copy()
        self.state[WRITTEN], self.state[KEEPING] = 0, self.is_compiled
        self.state[ASKED] = _NOTHING

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Take back, at the end, what is eliminated inside."""
        mark = self.state[WRITTEN]
        self.state[KEEPING] += 1
        try:
            yield
        finally:
            self._kernels.take_back(self._cells, self._journal, self.state, mark)
            self.state[KEEPING] -= 1

    def neighbours(self, vertex: int) -> tuple[list[int], list[int]]:
        """The vertices that a vertex reads, and those that read it."""
        cells, size = self._cells, self.problem.size
        square = size * size
        after, before = square + vertex * size, 2 * square + vertex * size
        operands = [int(cells[before + k]) for k in range(cells[3 * square + size + vertex])]
        readers = [int(cells[after + k]) for k in range(cells[3 * square + vertex])]
        return (
            [v for v in operands if cells[v * size + vertex] != ABSENT],
            [v for v in readers if cells[vertex * size + v] != ABSENT],
        )

    def eliminate(self, vertex: int, neighbour: int = EVERY) -> int:
        """Eliminate a vertex, or only its edge to or from a neighbour; what it cost."""
        return self.eliminate_all([vertex], [neighbour])[0]

    def eliminate_all(
        self, vertices: Sequence[int], neighbours: Sequence[int] | None = None
    ) -> list[int]:
        """Eliminate some vertices one after the other; what each cost."""
        steps = self.vector(vertices)
        ends = self.vector([EVERY] * len(steps) if neighbours is None else neighbours)
        costs = self.vector([0] * len(steps))
        kernel = self._kernels.eliminate_steps
        self._finish(lambda done: kernel(*self._graph, steps, ends, done, costs), len(steps))
        return list(map(int, costs))

    def costs(self, vertices: Sequence[int]) -> list[int]:
        """What each of some vertices would cost now."""
        return list(map(int, self.scores(vertices, 0.0)))

    def order_costs(self, order: Sequence[int]) -> list[int]:
        """What every step of an order costs, on the whole graph."""
        self.reset()
        return self.eliminate_all(order)

    def scores(self, vertices: Sequence[int], look_ahead: float) -> list[float]:
        """The cost of each vertex plus `look_ahead` × the change of its neighbours' costs."""
        found: list[float] = []
        for start in range(0, len(vertices), _CHUNK):
            self.check_budget()
            asked = self.vector(vertices[start : start + _CHUNK])
            scores = np.zeros(len(asked)) if self.is_compiled else [0.0] * len(asked)
            self._finish(partial(self._score, asked, float(look_ahead), scores), len(asked))
            found += map(float, scores)
        return found

    def _score(self, vertices: Any, look_ahead: float, scores: Any, done: int) -> int:
        return self._kernels.score_vertices(*self._graph, vertices, done, look_ahead, scores)

    def anneal(
        self, order: Any, costs: Any, temperature: float, window: int, tries: int, seed: int
    ) -> None:
        """One annealing pass through an order, which it changes together with its costs."""
        self.reset()
        fresh = self.vector([0] * (window + 1))
        progress = self.vector([0, 0, 1 + seed * _FACTOR % (_PRIME - 1)])
        while self._kernels.anneal_pass(
            *self._graph, order, costs, fresh, float(temperature), window, tries, progress
        ):
            self.check_budget()
            self._answer()

    def subset_costs(self, segment: Sequence[int]) -> list[int]:
        """What every vertex of a segment costs after every subset of it, at [subset · width + k]."""
        width = len(segment)
        asked, costs = self.vector(segment), self.vector([-1] * (width << width))
        path, marks = self.vector([0] * width), self.vector([0] * width)
        with self.trial():
            while not self._kernels.subset_costs(*self._graph, asked, costs, path, marks):
                self._answer()
        return list(map(int, costs))

    def _finish(self, go_on: Any, count: int) -> None:
        """Call a kernel again and again, answering its questions, until it has done all."""
        done = go_on(0)
        while done < count:
            self._answer()
            done = go_on(done)

    def _answer(self) -> None:
        """Answer the question of a compiled function, if it stopped with one."""
        state = self.state
        kind, state[ASKED] = int(state[ASKED]), _NOTHING
        if kind == _NOTHING:
            return
        self.check_budget()
        if kind == _ROOM:
            self._make_room(2 * int(state[ROOM]))
            return
        first, second = int(state[FIRST]), int(state[SECOND])
        self.count_question(first, second)
        algebra = self.problem.algebra
        structure, cost = (algebra.product if kind == _PRODUCT else algebra.sum)(first, second)
        if structure >= state[WIDE]:
            self._widen(structure)
        table = self._products if kind == _PRODUCT else self._sums
        key = 2 * (first * int(state[WIDE]) + second)
        table[key], table[key + 1] = structure, cost

    def _make_room(self, notes: int) -> None:
        journal = np.zeros(2 * notes, np.int64)
        journal[: len(self._journal)] = self._journal
        self._journal = journal
        self.state[ROOM] = notes

    def _widen(self, structure: int) -> None:
        if structure >= _MOST_STRUCTURES:
            raise TooManyStructuresError
        old, wide = int(self.state[WIDE]), 2 ** (structure + 1).bit_length()

        def widened(table: Any) -> Any:
            new = np.full((wide, wide, 2), UNKNOWN, np.int64)
            new[:old, :old] = table.reshape(old, old, 2)
            return new.reshape(-1)

        self._products, self._sums = widened(self._products), widened(self._sums)
        self.state[WIDE] = wide


@functools.cache
def load_compiled() -> None:
    """Compile every function, or load it from where numba keeps it, before the clock of a search runs."""
    chain = Problem.scalar(5, [(v, v + 1) for v in range(4)], (1, 2, 3))
    graph = PartialGraph(chain, compiled=True)
    costs = graph.vector(graph.order_costs(chain.eliminable))
    graph.anneal(graph.vector(chain.eliminable), costs, 1.0, 2, 1, 0)
    graph.reset()
    graph.subset_costs([1, 2])
    graph.scores([1, 2], 0.5)


def _has_room(problem: Problem) -> bool:
    most = max((structure for *_, structure in problem.edges), default=0)
    return can_compile() and problem.size <= _MOST_VERTICES and most < _MOST_STRUCTURES


def _initial_cells(problem: Problem, compiled: bool) -> Any:
    """The whole graph; see the module's docstring."""
    size = problem.size
    square = size * size
    length = 3 * square + 5 * size
    cells: Any
    if compiled:
        cells = np.full(length, ABSENT, np.int32)
    else:
        cells = _Sparse() if size > _MOST_LISTED else [ABSENT] * length
    for vertex in range(size):
        cells[3 * square + vertex] = cells[3 * square + size + vertex] = 0
        kept, inner = KEPT * (vertex in problem.kept), INNER * (vertex in problem.inner)
        cells[3 * square + 2 * size + vertex] = kept | inner
    for source, target, structure in problem.edges:
        cells[source * size + target] = structure
        for start, count_at, member in (
            (square + source * size, 3 * square + source, target),
            (2 * square + target * size, 3 * square + size + target, source),
        ):
            cells[start + cells[count_at]] = member
            cells[count_at] += 1
    return cells
