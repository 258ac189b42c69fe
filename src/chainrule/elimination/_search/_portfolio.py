"""Two searches over the same moves: one for as long as the user says, one that is short and always the same.

`search`: constructions first, then annealing and exact windows until the time is up. In this order: forward
and reverse; greedy Markowitz, plain and with look-ahead; where there are few vertices, dynamic programming
over all sets or branch and bound; and, for the rest of the time, annealing from the best order or a greedy
one with random ties, each finished with exact windows. (A beam of partial orders, and Markowitz's rule
relative to the inputs and outputs of a vertex, were measured beside these: on the graphs of the literature
and on layered random ones they changed costs by less than 0.3 % on average, up as often as down.)

`quick_search` is what `order="auto"` takes: it counts its work instead of looking at the clock. A search that
stops by the time finds another order on a machine that is busy, and JAX then compiles another program. It is
always interpreted: compiling takes longer than the search.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chainrule.elimination._search._improve import (
    anneal,
    branch_and_bound,
    greedy,
    order_windows,
)
from chainrule.elimination._search._partial_graph import (
    PartialGraph,
    TooManyStructuresError,
    can_compile,
    load_compiled,
)
from chainrule.elimination._search._problem import OutOfBudgetError, Problem, lower_bound

_LOOK_AHEADS = (0.5, 0.0, 0.25, 1.0)
_NOISES = (0.0, 0.0, 0.1, 0.3)

_FEW = 24
"""Up to this many vertices, branch and bound has a chance to finish."""

_SHARE = 0.3
"""The part of the budget that branch and bound may take."""

_COMPILED_FROM_S = 1.0
"""Budgets from which the search is compiled, where numba is installed. Loading or compiling the code is not
charged to the budget, but a user who asks for less than a second does not want to wait for it."""

_EXACT_INTERPRETED, _EXACT_COMPILED = 8, 12
"""The widest window that is put into its best order in less than a second or so."""

_WINDOW = 24
"""How far annealing moves a vertex at most."""

_SWEEPS_PER_OFFER = 8
"""Annealing passes after which the best order is looked at."""

_BOUND_S = 0.3
"""How long the bound may take beside the budget: enough for half a thousand vertices."""


@dataclass(frozen=True)
class FoundOrder:
    """The best order of a search.

    Attributes:
        order: the vertices.
        cost: what it costs.
        bound: no order costs less than this; `None` when no bound is known.
        method: which part of the portfolio found it.
        seconds: when it was found.
        is_interrupted: whether the user ended the search.
    """

    order: tuple[int, ...]
    cost: int
    bound: int | None
    method: str
    seconds: float
    is_interrupted: bool = False

    @property
    def is_optimal(self) -> bool:
        """Whether the bound proves that no order is cheaper."""
        return self.bound is not None and self.cost <= self.bound


def search(
    problem: Problem,
    *,
    budget_s: float,
    seed: int = 0,
    reverse_first: bool = False,
    on_progress: Callable[[FoundOrder, float], None] | None = None,
) -> FoundOrder:
    """The cheapest order found within a budget of seconds.

    Stops early when the lower bound is met. With the same seed and enough budget the same order is found.
    A keyboard interrupt ends the search, not the program: the best order so far is returned.

    Args:
        problem: the graph.
        budget_s: seconds; forward or reverse runs in any case.
        seed: of all random choices.
        reverse_first: which of forward and reverse runs in any case.
        on_progress: called about ten times a second with the best so far and the time spent.
    """
    is_compiled = budget_s >= _COMPILED_FROM_S and can_compile()
    if is_compiled:
        load_compiled()
    try:
        graph = PartialGraph(problem, compiled=is_compiled)
        return _Run(graph, budget_s, seed, on_progress).found(reverse_first=reverse_first)
    except TooManyStructuresError:
        run = _Run(PartialGraph(problem), budget_s, seed, on_progress)
        return run.found(reverse_first=reverse_first)


class _Run:
    """The state of one search."""

    def __init__(
        self, graph: PartialGraph, budget_s: float, seed: int,
        on_progress: Callable[[FoundOrder, float], None] | None,
    ) -> None:  # fmt: skip
        self.problem, self.graph, self.budget_s = graph.problem, graph, budget_s
        self.bound: int | None = None
        self.best: FoundOrder | None = None
        self._seed = seed
        self._began = time.perf_counter()
        self._reported = 0.0
        self._on_progress = on_progress
        self._patience = 0.0
        """How long evaluating one order may take beyond the budget: as long as the first one took."""

    def found(self, *, reverse_first: bool) -> FoundOrder:
        """The best order when the time is up, or the user interrupts."""
        try:
            self.construct(reverse_first=reverse_first)
            self.improve()
        except OutOfBudgetError:
            pass
        except KeyboardInterrupt:
            if self.best is None:
                raise
            return replace(self.best, is_interrupted=True)
        assert self.best is not None
        return self.best

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        return self.elapsed > self.budget_s or (self.best is not None and self.best.is_optimal)

    def next_seed(self) -> int:
        self._seed += 1
        return self._seed

    def offer(self, order: Sequence[int], method: str) -> int:
        """Keep an order if it is the best so far; its cost."""
        cost = sum(self.graph.order_costs(order))
        if self.best is None or cost < self.best.cost:
            bound = self.bound if cost else 0  # nothing costs less than nothing
            self.best = FoundOrder(tuple(order), cost, bound, method, self.elapsed)
        if self._on_progress is not None and self.elapsed - self._reported > 0.1:
            self._reported = self.elapsed
            self._on_progress(self.best, self.elapsed)
        return cost

    def construct(self, *, reverse_first: bool) -> None:
        """Orders that need no search."""
        forward = list(self.problem.eliminable)
        pure = [(forward, "forward"), (forward[::-1], "reverse")]
        if reverse_first:
            pure.reverse()
        self.offer(*pure[0])
        self._patience = self.elapsed
        self._find_bound()
        # On large blocks the other direction, and every greedy pass, may take hours.
        self.graph.deadline = self._began + self.budget_s
        self.offer(*pure[1])
        for look_ahead in _LOOK_AHEADS:
            if self.is_over:
                return
            try:
                self.offer(greedy(self.graph, look_ahead, 0.0, self.next_seed()), "greedy")
            except OutOfBudgetError as stopped:
                self._complete(stopped.partial, pure[0][0])
                raise

    def _find_bound(self) -> None:
        """The bound, of as many vertices as there is time for; a moment of it is not charged."""
        assert self.best is not None
        if self.best.is_optimal:
            return
        start = time.perf_counter()
        self.bound = lower_bound(self.problem, until=start + max(_BOUND_S, self.budget_s / 10))
        if len(self.problem.eliminable) < 2:
            self.bound = self.best.cost  # there is no other order
        self.best = replace(self.best, bound=self.bound)
        self._began += min(_BOUND_S, time.perf_counter() - start)

    def _complete(self, partial: Sequence[int], order: Sequence[int]) -> None:
        """Offer a greedy order that was cut short, the rest in a given order, if that is soon evaluated."""
        chosen = set(partial)
        self.graph.deadline = time.perf_counter() + self._patience
        with contextlib.suppress(OutOfBudgetError):
            self.offer([*partial, *(v for v in order if v not in chosen)], "greedy")

    def improve(self) -> None:
        """Restarted annealing, each restart finished with exact windows."""
        length = len(self.problem.eliminable)
        if length < 2:
            return
        if length <= (_EXACT_COMPILED if self.graph.is_compiled else _EXACT_INTERPRETED):
            self._settle()
        elif length <= _FEW:
            self._branch()
        sweeps = 40
        while not self.is_over:
            order = self._start()
            order = self._anneal(order, sweeps)
            order = self._polish(order, width=min(6, length))
            # Short restarts first: they settle easy graphs. Longer ones reach deeper.
            sweeps = min(2 * sweeps, 4000)

    def _settle(self) -> None:
        """Few vertices: one window holds them all, and its best order is optimal."""
        assert self.best is not None
        order = order_windows(self.graph, self.best.order, len(self.best.order))
        self.bound = self.offer(order, "exact")
        self.best = replace(self.best, bound=self.bound)

    def _branch(self) -> None:
        """A few more: cut off what cannot be better than the best so far, which annealing makes good."""
        assert self.best is not None
        self._polish(self._anneal(list(self.best.order), 40), width=6)
        if self.is_over:
            return
        order, is_proven = branch_and_bound(
            self.graph, list(self.best.order), self.best.cost,
            until=time.perf_counter() + _SHARE * self.budget_s,
        )  # fmt: skip
        cost = self.offer(order, "branch and bound")
        if is_proven:
            self.bound = cost
            self.best = replace(self.best, bound=cost)

    def _start(self) -> list[int]:
        assert self.best is not None
        seed = self.next_seed()
        if seed % 3 == 0:
            return list(self.best.order)
        look_ahead = _LOOK_AHEADS[seed % len(_LOOK_AHEADS)]
        return greedy(self.graph, look_ahead, _NOISES[seed % len(_NOISES)], seed)

    def _anneal(self, order: list[int], sweeps: int) -> list[int]:
        cost = self.offer(order, "greedy")
        temperatures = _temperatures(cost / max(1, len(order)), sweeps)
        window = max(1, min(len(order) - 1, _WINDOW))
        for start in range(0, sweeps, _SWEEPS_PER_OFFER):
            if self.is_over:
                break
            part = temperatures[start : start + _SWEEPS_PER_OFFER]
            order, best = anneal(self.graph, order, part, window, 4, self.next_seed())
            self.offer(best, "annealing")
        return order

    def _polish(self, order: list[int], width: int) -> list[int]:
        cost = self.offer(order, "annealing")
        while not self.is_over:
            order = order_windows(self.graph, order, width)
            improved = self.offer(order, "exact windows")
            if improved >= cost:
                return order
            cost = improved
        return order


_MOST_WORK = 300_000
"""Pairs of edges that are looked at: about as many microseconds."""

_QUICK_SWEEPS, _TRIES = 10, 2
"""Of its annealing. On the graphs of the literature it ends within a few percent of a long search."""


def quick_search(problem: Problem, *, reverse_first: bool) -> list[int]:
    """An order that is no worse than forward or reverse, whichever comes first.

    Args:
        problem: the graph.
        reverse_first: which of the two is evaluated in any case.
    """
    graph = PartialGraph(problem)
    forward = list(problem.eliminable)
    pure = [forward[::-1], forward] if reverse_first else [forward, forward[::-1]]
    best, lowest = pure[0], sum(graph.order_costs(pure[0]))
    graph.most_work = graph.work + _MOST_WORK
    makers: list[Callable[[], Sequence[int]]] = [
        lambda: pure[1],
        lambda: greedy(graph, 0.0, 0.0, 0),
        lambda: _annealed(graph, best, lowest),
    ]
    with contextlib.suppress(OutOfBudgetError):
        for make in makers:
            order = list(make())
            cost = sum(graph.order_costs(order))
            if cost < lowest:
                best, lowest = order, cost
    return best


def _temperatures(mean_cost: float, sweeps: int) -> list[float]:
    """Those of the passes of an annealing, for vertices that cost so much on average.

    A move that makes the order dearer by Δ is taken with probability exp(-Δ / T). At the hottest T that is
    1/e for 8 % of the average cost; at the coldest, a twentieth of a quarter of that, hardly any is taken. In
    between T falls by the same factor in every pass.
    """
    hottest, coldest = max(1.0, 0.08 * mean_cost), 0.05 * max(1.0, 0.02 * mean_cost)
    cooling = (coldest / hottest) ** (1 / max(1, sweeps - 1))
    return [hottest * cooling**sweep for sweep in range(sweeps)]


def _annealed(graph: PartialGraph, order: list[int], cost: int) -> list[int]:
    """The best order after any pass; that of the last pass for which there was room."""
    best, lowest = order, cost
    sweeps = _QUICK_SWEEPS if len(order) > 1 else 0
    for sweep, temperature in enumerate(_temperatures(cost / max(1, len(order)), sweeps)):
        window = min(len(order) - 1, _WINDOW)
        try:
            order, _ = anneal(graph, order, [temperature], window, _TRIES, sweep)
        except OutOfBudgetError:
            break
        found = sum(graph.order_costs(order))
        if found < lowest:
            best, lowest = order, found
    graph.most_work = graph.work + _MOST_WORK  # room to evaluate what was found
    return best
