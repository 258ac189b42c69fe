"""The order search on bare graphs: interpreted and compiled, the bound, and optima known from elsewhere."""

import dataclasses
import itertools
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.elimination._search import (
    ZERO,
    PartialGraph,
    Problem,
    ScalarAlgebra,
    _partial_graph,
    _portfolio,
    lower_bound,
    search,
)
from chainrule.elimination._search._improve import (
    anneal,
    branch_and_bound,
    greedy,
    order_windows,
)
from chainrule.elimination._search._problem import OutOfBudgetError

MODES = [False, True] if _partial_graph.can_compile() else [False]
compiled_too = pytest.mark.parametrize(
    "compiled", MODES, ids=["interpreted", "compiled"][: len(MODES)]
)


def graphs(problem):
    return [PartialGraph(problem, compiled=compiled) for compiled in MODES]


@st.composite
def scalar_problems(draw, max_inner=6):
    """Random graphs: inputs, inner vertices with one or more in-edges, outputs; some are kept."""
    n_inputs = draw(st.integers(1, 3))
    n_inner = draw(st.integers(1, max_inner))
    n_outputs = draw(st.integers(1, 3))
    rng = random.Random(draw(st.integers(0, 10**6)))
    first_output = n_inputs + n_inner
    edges = set()
    for v in range(n_inputs, first_output + n_outputs):
        below = range(min(v, first_output))
        edges |= {(u, v) for u in rng.sample(below, min(len(below), rng.randint(1, 3)))}
    inner = range(n_inputs, first_output)
    feeding = {u for u, _ in edges}
    kept = [v for v in inner if v not in feeding or rng.random() < 0.2]
    return Problem.scalar(first_output + n_outputs, sorted(edges), inner, kept)


class MatrixChain(ScalarAlgebra):
    """Edges are matrices; structure numbers stand for (rows, columns)."""

    def __init__(self, dims):
        self.shapes = [(dims[i + 1], dims[i]) for i in range(len(dims) - 1)]

    def _number(self, shape):
        if shape not in self.shapes:
            self.shapes.append(shape)
        return self.shapes.index(shape)

    def product(self, out_edge, in_edge):
        (rows, inner), (same, columns) = self.shapes[out_edge], self.shapes[in_edge]
        assert inner == same
        return self._number((rows, columns)), rows * inner * columns

    def sum(self, first, second):
        raise AssertionError("a chain has no parallel edges")


def cheapest_chain(dims):
    """The classical dynamic programme for the order of matrix products."""
    count = len(dims) - 1
    best = {(i, i): 0 for i in range(count)}
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            best[i, j] = min(
                best[i, k] + best[k + 1, j] + dims[i] * dims[k + 1] * dims[j + 1]
                for k in range(i, j)
            )
    return best[0, count - 1]


@given(scalar_problems(), st.randoms(use_true_random=False))
def test_interpreted_and_compiled_costs_are_those_counted_by_hand(problem, rng):
    order = list(problem.eliminable)
    rng.shuffle(order)
    expected = count_by_hand(problem, order)
    for graph in graphs(problem):
        assert graph.order_costs(order) == expected


@given(scalar_problems(), st.integers(0, 1000))
def test_interpreted_and_compiled_searches_take_the_same_decisions(problem, seed):
    order = list(problem.eliminable)
    found = [
        (
            greedy(graph, 0.5, 0.3, seed),
            order_windows(graph, order, 4),
            anneal(graph, order, [2.0, 0.5], 3, 2, seed) if len(order) > 1 else None,
            graph.work > 0,
        )
        for graph in graphs(problem)
    ]
    assert all(each == found[0] for each in found)


@given(scalar_problems(), st.randoms(use_true_random=False))
def test_a_trial_is_taken_back(problem, rng):
    order = list(problem.eliminable)
    rng.shuffle(order)
    half = len(order) // 2
    expected = count_by_hand(problem, order)
    for graph in graphs(problem):
        graph.reset()
        assert graph.eliminate_all(order[:half]) == expected[:half]
        with graph.trial():
            graph.eliminate_all(order[half:][::-1])
        assert graph.eliminate_all(order[half:]) == expected[half:]


def count_by_hand(problem, order):
    edges = {(u, v) for u, v, _ in problem.edges}
    costs = []
    for vertex in order:
        before = {u for u, v in edges if v == vertex}
        after = {v for u, v in edges if u == vertex}
        costs.append(len(before) * len(after))
        edges = {(u, v) for u, v in edges if u != vertex}
        edges |= set(itertools.product(before, after))
        if vertex not in problem.kept:
            edges = {(u, v) for u, v in edges if v != vertex}
    return costs


@given(scalar_problems(max_inner=5))
def test_search_finds_the_optimum_and_the_bound_is_below_it(problem):
    optimum = min(
        sum(count_by_hand(problem, order)) for order in itertools.permutations(problem.eliminable)
    )
    found = search(problem, budget_s=5.0)
    assert sorted(found.order) == sorted(problem.eliminable)
    assert found.cost == sum(count_by_hand(problem, found.order)) == optimum
    # So few vertices are settled by trying everything, also where the bound by cuts is lower.
    assert lower_bound(problem) <= found.bound == optimum
    assert found.is_optimal


@given(scalar_problems(max_inner=7))
def test_branch_and_bound_is_as_good_as_trying_everything(problem):
    graph = PartialGraph(problem)
    forward = list(problem.eliminable)
    exact = order_windows(graph, forward, len(forward))
    found, is_proven = branch_and_bound(
        graph, forward, sum(graph.order_costs(forward)), until=time.perf_counter() + 60
    )
    assert is_proven
    assert sum(count_by_hand(problem, found)) == sum(count_by_hand(problem, exact))


def narrow(seed, inner=16):
    """A graph whose edges reach back a few vertices only, with three inputs and three outputs."""
    rng = random.Random(seed)
    edges = set()
    for v in range(3, inner + 6):
        end = min(v, inner + 3)
        below = range(max(0, end - 6), end)
        edges |= {(u, v) for u in rng.sample(below, min(len(below), rng.randint(1, 3)))}
    feeding = {u for u, _ in edges}
    kept = [v for v in range(3, inner + 3) if v not in feeding]
    return Problem.scalar(inner + 6, sorted(edges), range(3, inner + 3), kept)


def test_branch_and_bound_proves_what_cuts_cannot():
    problem = narrow(1, inner=14)
    found = search(problem, budget_s=20.0)
    assert lower_bound(problem) < found.cost == found.bound
    assert found.is_optimal


def test_search_stops_a_pass_that_takes_too_long():
    graph = PartialGraph(layered(2))
    graph.deadline = time.perf_counter() - 1
    with pytest.raises(OutOfBudgetError):
        greedy(graph, 0.5, 0.0, 1)


@given(st.lists(st.integers(1, 30), min_size=3, max_size=9))
def test_matrix_chain(dims):
    count = len(dims)
    algebra = MatrixChain(dims)
    edges = tuple(
        (i, i + 1, algebra.shapes.index((dims[i + 1], dims[i]))) for i in range(count - 1)
    )
    problem = Problem(count, edges, tuple(range(1, count - 1)), frozenset(), algebra)
    found = search(problem, budget_s=5.0)
    assert found.cost == cheapest_chain(dims)
    assert lower_bound(problem) is None
    assert found.is_optimal


@compiled_too
def test_a_greedy_pass_that_is_cut_short_is_completed(compiled, monkeypatch):
    """The clock counts the products that were asked for: enough for both sweeps and most of a greedy pass."""
    monkeypatch.setattr(_portfolio, "_COMPILED_FROM_S", 0.0 if compiled else math.inf)
    clock = {}
    problem, algebra = _hourglasses()
    sweeps = PartialGraph(problem, compiled=compiled)
    clock["algebra"] = algebra
    monkeypatch.setattr(time, "perf_counter", lambda: float(clock["algebra"].asked))
    forward = sum(sweeps.order_costs(problem.eliminable))
    first = algebra.asked
    reverse = sum(sweeps.order_costs(problem.eliminable[::-1]))
    both = algebra.asked
    cheapest = sum(sweeps.order_costs(greedy(sweeps, 0.5, 0.0, 1)))
    needed = algebra.asked - both
    problem, algebra = _hourglasses()
    clock["algebra"] = algebra
    found = search(problem, budget_s=both + 0.6 * needed, seed=0)
    assert algebra.asked <= both + needed + first
    assert found.method == "greedy"
    assert sorted(found.order) == sorted(problem.eliminable)
    assert cheapest < found.cost < min(forward, reverse)


def _hourglasses():
    """A chain of layers 4 → 1 → 4 → 1 → …, which neither sweep goes through cheaply; slow to multiply."""

    class Slow(ScalarAlgebra):
        def __init__(self):
            self.asked, self.numbers = 0, {}

        def product(self, out_edge, in_edge):
            self.asked += 1
            return self.numbers.setdefault((out_edge, in_edge), 1000 + len(self.numbers)), 1

        def sum(self, first, second):
            return max(first, second), 0

    layers, edges, size = [], [], 0
    for width in (4, 1, 4, 1, 4, 1, 4, 1, 4):
        layer = list(range(size, size + width))
        edges += [(s, t) for s in (layers[-1] if layers else ()) for t in layer]
        layers.append(layer)
        size += width
    algebra = Slow()
    numbered = tuple((source, target, number) for number, (source, target) in enumerate(edges))
    eliminable = tuple(v for layer in layers[1:-1] for v in layer)
    return Problem(size, numbered, eliminable, frozenset(), algebra), algebra


class Growing(ScalarAlgebra):
    """Every product is a structure of its own, whose number tells where it came from."""

    def product(self, out_edge, in_edge):
        return 5000 + out_edge + 3 * in_edge, 1

    def sum(self, first, second):
        return first, 0


def chain(length, algebra):
    """One path; every inner vertex costs one product."""
    edges = tuple((v, v + 1, v % 2) for v in range(length + 1))
    return Problem(length + 2, edges, tuple(range(1, length + 1)), frozenset(), algebra)


@compiled_too
def test_more_structures_than_compiled_tables_hold(compiled, monkeypatch):
    monkeypatch.setattr(_portfolio, "_COMPILED_FROM_S", 0.0 if compiled else math.inf)
    problem = chain(20, Growing())
    assert PartialGraph(problem).order_costs(problem.eliminable) == [1] * 20
    assert search(problem, budget_s=0.05).cost == 20


@compiled_too
def test_products_are_learnt_on_the_way(compiled):
    """Nothing is chosen anew after a product that is not known: the first time finds what the second does."""
    dims = [2 + k % 7 for k in range(60)]
    edges = tuple((v, v + 1, v) for v in range(59))
    problem = dataclasses.replace(chain(58, MatrixChain(dims)), edges=edges)
    order = list(problem.eliminable)
    for work in (
        lambda graph: graph.order_costs(order),
        lambda graph: greedy(graph, 0.5, 0.1, 3),
        lambda graph: anneal(graph, order, [9.0, 1.0], 5, 2, 7),
        lambda graph: order_windows(graph, order, 4),
    ):
        graph = PartialGraph(problem, compiled=compiled)
        assert work(graph) == work(graph)


@compiled_too
def test_a_journal_that_is_full_grows(compiled):
    """Every vertex of a layer reads the whole layer before it, so that one elimination makes many edges."""
    width, depth = 40, 6
    edges = [
        (layer * width + u, (layer + 1) * width + v)
        for layer in range(depth - 1)
        for u in range(width)
        for v in range(width)
    ]
    inner = range(width, (depth - 1) * width)
    graph = PartialGraph(Problem.scalar(width * depth, edges, inner), compiled=compiled)
    assert sum(graph.order_costs(inner)) == width**3 * (depth - 2)


@compiled_too
def test_graphs_keep_their_time(compiled):
    """Also where every product is known: on thousands of vertices a greedy pass takes seconds."""
    order = list(range(1, 31))
    problem = Problem.scalar(32, [(v, v + 1) for v in range(31)], order)
    graph = PartialGraph(problem, compiled=compiled)
    for improve in (
        lambda: greedy(graph, 0.5, 0.0, 0),
        lambda: order_windows(graph, order, 3),
    ):
        graph.deadline = math.inf
        improve()
        graph.deadline = 0.0
        with pytest.raises(OutOfBudgetError):
            improve()


@compiled_too
def test_an_interrupt_leaves_a_graph_that_can_be_reset(compiled):
    class Interrupted(MatrixChain):
        is_armed = True

        def product(self, out_edge, in_edge):
            if self.is_armed:
                raise KeyboardInterrupt
            return super().product(out_edge, in_edge)

    dims = [3, 4, 5, 6, 7]
    algebra = Interrupted(dims)
    edges = tuple((v, v + 1, v) for v in range(4))
    problem = Problem(5, edges, (1, 2, 3), frozenset(), algebra)
    graph = PartialGraph(problem, compiled=compiled)
    with pytest.raises(KeyboardInterrupt):
        greedy(graph, 0.5, 0.0, 0)
    algebra.is_armed = False
    assert graph.order_costs([1, 2, 3]) == [3 * 4 * 5, 3 * 5 * 6, 3 * 6 * 7]


def test_a_graph_of_many_vertices_is_not_stored_as_a_square():
    order = list(range(1, 900))
    problem = Problem.scalar(901, [(v, v + 1) for v in range(900)], order)
    graph = PartialGraph(problem)
    assert graph.order_costs(order) == [1] * 899
    with graph.trial():
        graph.eliminate_all(order[:5])
    assert graph.order_costs(order[::-1]) == [1] * 899


def test_a_bound_that_takes_too_long_is_that_of_fewer_vertices():
    problem = Problem.scalar(5, [(0, 2), (1, 2), (2, 3), (3, 4)], [2, 3])
    assert lower_bound(problem) == 3
    assert lower_bound(problem, until=0.0) == 0


def test_product_without_entries_makes_no_edge():
    class Orthogonal(ScalarAlgebra):
        def product(self, out_edge, in_edge):
            return (ZERO, 0) if out_edge != in_edge else (out_edge, 1)

        def sum(self, first, second):
            return first, 0

    # 0 → 1 → 2 → 3 with a middle edge of another kind: nothing gets through.
    problem = Problem(4, ((0, 1, 0), (1, 2, 1), (2, 3, 0)), (1, 2), frozenset(), Orthogonal())
    for graph in graphs(problem):
        assert graph.order_costs([1, 2]) == [0, 0]


@given(scalar_problems())
def test_windows_and_annealing_never_lose_vertices_or_make_it_worse(problem):
    order = list(problem.eliminable)
    for graph in graphs(problem):
        start = sum(graph.order_costs(order))
        improved = order_windows(graph, order, 4)
        assert sorted(improved) == order
        assert sum(graph.order_costs(improved)) <= start
        if len(order) > 1:
            last, best = anneal(graph, order, [1.0, 0.1], 3, 2, seed=1)
            assert sorted(last) == sorted(best) == order
            assert sum(graph.order_costs(best)) <= start


def layered(seed, width=8, depth=6):
    rng = random.Random(seed)
    edges = set()
    for layer in range(1, depth):
        for v in range(width):
            for u in rng.sample(range(width), 2):
                edges.add(((layer - 1) * width + u, layer * width + v))
    inner = range(width, (depth - 1) * width)
    kept = [v for v in inner if not any(u == v for u, _ in edges)]
    return Problem.scalar(width * depth, sorted(edges), inner, kept)


def test_same_seed_same_order():
    problem = layered(0)
    for graph in graphs(problem):
        assert greedy(graph, 0.5, 0.3, 7) == greedy(graph, 0.5, 0.3, 7)
        order = greedy(graph, 0.5, 0.0, 1)
        again = [anneal(graph, order, [2.0, 1.0], 8, 2, 3) for _ in range(2)]
        assert again[0] == again[1]


def test_interrupt_returns_the_best_so_far():
    def interrupt(found, seconds):
        raise KeyboardInterrupt

    found = search(layered(1), budget_s=60, on_progress=interrupt)
    assert found.seconds < 60
    assert found.cost >= found.bound


def test_an_interrupt_while_the_bound_is_computed_keeps_the_first_order(monkeypatch):
    def interrupt(problem, until):
        raise KeyboardInterrupt

    monkeypatch.setattr(_portfolio, "lower_bound", interrupt)
    found = search(layered(1), budget_s=60)
    assert (found.method, found.bound, found.is_interrupted) == ("forward", None, True)


@pytest.mark.parametrize("size", [1, 2])
def test_tiny_graphs(size):
    problem = Problem.scalar(size + 2, [(i, i + 1) for i in range(size + 1)], range(1, size + 1))
    assert search(problem, budget_s=1).is_optimal


def test_the_only_order_and_one_that_costs_nothing_are_optimal():
    class Free(Growing):
        def product(self, out_edge, in_edge):
            return 0, 0

    for length in (0, 1):
        found = search(chain(length, Growing()), budget_s=0)
        assert found.is_optimal
        assert found.cost == length
    assert search(chain(40, Free()), budget_s=math.inf).is_optimal
