"""The order search on bare graphs: both engines, the bound, and optima known from elsewhere."""

import dataclasses
import itertools
import math
import random
import signal
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.elimination._search import Problem, _native_engine, lower_bound, search
from chainrule.elimination._search._branch import branch_and_bound
from chainrule.elimination._search._construct import beam, relative_markowitz
from chainrule.elimination._search._native_engine import NativeEngine, load_engine
from chainrule.elimination._search._problem import ZERO, OutOfBudgetError
from chainrule.elimination._search._python_engine import PythonEngine


def engines(problem):
    found = [PythonEngine(problem)]
    if load_engine() is not None:
        found.append(NativeEngine(problem, load_engine()))
    return found


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


class MatrixChain:
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
def test_engines_agree_with_each_other_and_with_counting(problem, rng):
    order = list(problem.eliminable)
    rng.shuffle(order)
    expected = count_by_hand(problem, order)
    for engine in engines(problem):
        assert engine.costs(order) == expected


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
    engine = PythonEngine(problem)
    forward = list(problem.eliminable)
    exact = engine.windows(forward, len(forward))
    found, is_proven = branch_and_bound(
        engine, forward, sum(engine.costs(forward)), until=time.perf_counter() + 60
    )
    assert is_proven
    assert sum(count_by_hand(problem, found)) == sum(count_by_hand(problem, exact))


@given(scalar_problems())
def test_beam_and_relative_markowitz_give_orders(problem):
    engine = PythonEngine(problem)
    for order in (beam(engine, 3), relative_markowitz(engine)):
        assert sorted(order) == list(problem.eliminable)
    # A beam that keeps everything is dynamic programming over all sets.
    if len(problem.eliminable) <= 4:
        widest = sum(engine.costs(beam(engine, 16)))
        assert widest == sum(engine.costs(engine.windows(problem.eliminable, 4)))


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


def test_search_stops_a_beam_that_takes_too_long():
    engine = PythonEngine(layered(2))
    engine.deadline = time.perf_counter() - 1
    with pytest.raises(OutOfBudgetError):
        beam(engine, 4)


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


@pytest.mark.parametrize("native", [False, True])
def test_a_greedy_pass_that_is_cut_short_is_completed(native, monkeypatch):
    """The clock counts the products that were asked for: enough for both sweeps and most of a greedy pass."""
    if native and load_engine() is None:
        pytest.skip("no C compiler")
    portfolio = "chainrule.elimination._search._portfolio"

    def engine(problem):
        return NativeEngine(problem, load_engine()) if native else PythonEngine(problem)

    clock = {}
    monkeypatch.setattr(f"{portfolio}.make_engine", engine)
    monkeypatch.setattr(time, "perf_counter", lambda: float(clock["algebra"].asked))
    problem, algebra = _hourglasses()
    sweeps = engine(problem)
    clock["algebra"] = algebra
    forward = sum(sweeps.costs(problem.eliminable))
    first = algebra.asked
    reverse = sum(sweeps.costs(problem.eliminable[::-1]))
    both = algebra.asked
    greedy = sum(sweeps.costs(sweeps.greedy(0.5, 0.0, 1)))
    needed = algebra.asked - both
    problem, algebra = _hourglasses()
    clock["algebra"] = algebra
    found = search(problem, budget_s=both + 0.6 * needed, seed=0)
    assert algebra.asked <= both + needed + first
    assert found.method == "greedy"
    assert sorted(found.order) == sorted(problem.eliminable)
    assert greedy < found.cost < min(forward, reverse)


def _hourglasses():
    """A chain of layers 4 → 1 → 4 → 1 → …, which neither sweep goes through cheaply; slow to multiply."""

    class Slow:
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


class Growing:
    """Every product is a structure of its own, whose number tells where it came from."""

    def product(self, out_edge, in_edge):
        return 5000 + out_edge + 3 * in_edge, 1

    def sum(self, first, second):
        return first, 0


def chain(length, algebra):
    """One path; every inner vertex costs one product."""
    edges = tuple((v, v + 1, v % 2) for v in range(length + 1))
    return Problem(length + 2, edges, tuple(range(1, length + 1)), frozenset(), algebra)


def test_more_structures_than_tables_hold_are_evaluated_in_python():
    problem = chain(20, Growing())
    for engine in engines(problem):
        assert engine.costs(problem.eliminable) == [1] * 20
    assert search(problem, budget_s=0.05).cost == 20


@pytest.mark.skipif(load_engine() is None, reason="no compiler")
def test_products_are_learnt_on_the_way():
    """Nothing begins anew after a product that is not known: the first time is as much work as the second."""
    dims = [2 + k % 7 for k in range(60)]
    edges = tuple((v, v + 1, v) for v in range(59))
    problem = dataclasses.replace(chain(58, MatrixChain(dims)), edges=edges)
    order = list(problem.eliminable)
    for work in (
        lambda engine: engine.costs(order),
        lambda engine: engine.greedy(0.5, 0.1, 3),
        lambda engine: engine.anneal(order, [9.0, 1.0], 5, 2, 7),
        lambda engine: engine.windows(order, 4),
    ):
        engine = NativeEngine(problem, load_engine())
        found = work(engine)
        eliminations = engine.evaluations
        assert work(engine) == found
        assert engine.evaluations == 2 * eliminations


def test_engines_keep_their_time():
    """Also where every product is known: on thousands of vertices a greedy pass takes seconds."""
    order = list(range(1, 31))
    for engine in engines(Problem.scalar(32, [(v, v + 1) for v in range(31)], order)):
        for improve in (
            lambda engine: engine.greedy(0.5, 0.0, 0),
            lambda engine: engine.anneal(order, [1.0], 5, 2, 0),
            lambda engine: engine.windows(order, 3),
        ):
            engine.deadline = math.inf
            improve(engine)
            engine.deadline = 0.0
            with pytest.raises(OutOfBudgetError):
                improve(engine)


@pytest.mark.skipif(load_engine() is None, reason="no compiler")
def test_an_interrupt_reaches_the_engine_in_c(monkeypatch):
    """It is raised where Python code begins to run: when a product is asked for, or whether to go on."""

    class Interrupted(Growing):
        def product(self, out_edge, in_edge):
            raise KeyboardInterrupt

    engine = NativeEngine(chain(5, Interrupted()), load_engine())
    with pytest.raises(KeyboardInterrupt):
        engine.greedy(0.5, 0.0, 0)
    order = list(range(1, 31))
    engine = NativeEngine(Problem.scalar(32, [(v, v + 1) for v in range(31)], order), load_engine())
    questions = iter(range(3))

    def interrupted_at_the_fourth():
        if next(questions, None) is None:
            signal.default_int_handler(signal.SIGINT, None)  # what Ctrl-C runs
        return 0.0

    clock = types.SimpleNamespace(perf_counter=interrupted_at_the_fourth)
    monkeypatch.setattr(_native_engine, "time", clock)
    with pytest.raises(KeyboardInterrupt):
        engine.anneal(order, [1.0] * 1000, 5, 2, 0)


def test_a_bound_that_takes_too_long_is_that_of_fewer_vertices():
    problem = Problem.scalar(5, [(0, 2), (1, 2), (2, 3), (3, 4)], [2, 3])
    assert lower_bound(problem) == 3
    assert lower_bound(problem, until=0.0) == 0


def test_product_without_entries_makes_no_edge():
    class Orthogonal:
        def product(self, out_edge, in_edge):
            return (ZERO, 0) if out_edge != in_edge else (out_edge, 1)

        def sum(self, first, second):
            return first, 0

    # 0 → 1 → 2 → 3 with a middle edge of another kind: nothing gets through.
    problem = Problem(4, ((0, 1, 0), (1, 2, 1), (2, 3, 0)), (1, 2), frozenset(), Orthogonal())
    for engine in engines(problem):
        assert engine.costs([1, 2]) == [0, 0]


@given(scalar_problems())
def test_windows_and_annealing_never_lose_vertices_or_make_it_worse(problem):
    order = list(problem.eliminable)
    for engine in engines(problem):
        start = sum(engine.costs(order))
        improved = engine.windows(order, 4)
        assert sorted(improved) == order
        assert sum(engine.costs(improved)) <= start
        if len(order) > 1:
            last, best = engine.anneal(order, [1.0, 0.1], 3, 2, seed=1)
            assert sorted(last) == sorted(best) == order
            assert sum(engine.costs(best)) <= start


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
    for engine in engines(problem):
        assert engine.greedy(0.5, 0.3, 7) == engine.greedy(0.5, 0.3, 7)
        order = engine.greedy(0.5, 0.0, 1)
        assert engine.anneal(order, [2.0, 1.0], 8, 2, 3) == engine.anneal(
            order, [2.0, 1.0], 8, 2, 3
        )


def test_interrupt_returns_the_best_so_far():
    def interrupt(found, seconds):
        raise KeyboardInterrupt

    found = search(layered(1), budget_s=60, on_progress=interrupt)
    assert found.seconds < 60
    assert found.cost >= found.bound


def test_an_interrupt_while_the_bound_is_computed_keeps_the_first_order(monkeypatch):
    def interrupt(problem, until):
        raise KeyboardInterrupt

    monkeypatch.setattr("chainrule.elimination._search._portfolio.lower_bound", interrupt)
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
