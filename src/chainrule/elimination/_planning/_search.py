"""The cheapest order in which to ask the sites of a network, and how to ask each.

A *state* is a network in which some sites are resolved: their Jacobian, times what comes before it or after
it, is known. Resolving one more site is a *step*. Let u be the operands and v the results of a site:

    columns     Z is the smallest cut between what is not known yet (inputs, results of unresolved sites) and
                u. JAX knows du = M dz, the site is asked for K = J·M, one JVP per element of Z, and from now
                on dv = K dz: edges from Z to v.
    rows        Z is the smallest cut between v and what is to be known (outputs, operands of unresolved
                sites). JAX knows dz = M dv, the site is asked for K = M·J, one VJP per element of Z, and from
                now on dz = K du: edges from u to Z.
    jacobian    the site is asked for J itself: edges from u to v. Coloured columns and rows, where J is known
                to be sparse, give the same for another price.

When all sites are resolved the rest is JAX. `jax.jacfwd` is the plan in which all sites, from the first to
the last, get the columns of the inputs; `jax.jacrev` the one in which all get the rows of the outputs.

The search is best-first (A*) with a bound. Edges of resolved sites only take short cuts along paths of the
network, so a cut in any state is a cut in the network with all local Jacobians known. The smallest of these
is a bound for each site, in every state; their sum bounds the plan. A site that can be resolved at its bound
is resolved at once, and no other step is tried in that state: it will never be cheaper, and the other sites
lose nothing. (Uncrossing: let Z be the site's cut and C another site's later one. |Z ∨ C| + |Z ∧ C| ≤ |Z| +
|C|, one of the two separates what Z separates and so is no smaller than Z; the other one is no larger than C
and does without the nodes that only lay between Z and the site.)
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add, itemgetter

from chainrule._errors import CapabilityError
from chainrule.elimination._cuts import Cut, as_set, members, minimal_cut, reached, reversed_edges
from chainrule.elimination._planning._network import Network, SiteNodes
from chainrule.elimination._planning._prices import SitePrices, Way

_MOST_STATES = 400
"""States that the exact search looks at before it gives up: beyond a dozen sites there may be millions."""

_BEAM = 4
"""How many states of one depth are kept where the exact search gave up."""


@dataclass(frozen=True)
class SiteStep:
    """What is asked of one site.

    Attributes:
        site: its position in the network.
        way: how it is asked.
        cut: the nodes whose columns or rows it gets; none where it gives its own Jacobian.
        products: vectors that are sent, or that a Jacobian takes the place of.
        price: of all of them.
        memory: bytes that the site keeps for it, from its evaluation on.
    """

    site: int
    way: Way
    cut: tuple[int, ...]
    products: int
    price: float
    memory: int = 0


@dataclass(frozen=True)
class FoundSteps:
    """An answer of the search.

    Attributes:
        steps: one per site, in order.
        bound: no plan costs less.
        method: what found it.
    """

    steps: tuple[SiteStep, ...]
    bound: float
    method: str

    @property
    def price(self) -> float:
        """Of all steps."""
        return sum(step.price for step in self.steps)

    @property
    def memory(self) -> int:
        """Bytes that all sites keep together."""
        return memory_of(self.steps)


def memory_of(steps: Iterable[SiteStep]) -> int:
    """Bytes that the sites keep together: all are evaluated before the first one is asked."""
    return sum(step.memory for step in steps)


def find_steps(network: Network) -> FoundSteps:
    """The cheapest steps: exactly for chains and small graphs, else the best that were found."""
    chain = _as_chain(network)
    if chain is not None:
        return _search_chain(network, chain)
    bounds = [_bound(network, site) for site in network.sites]
    found, method = _best_first(network, bounds, most=_MOST_STATES), "best-first search"
    if found is None:
        found, method = _beam_search(network, bounds), "beam search"
    steps = min([found, *sweeps(network).values()], key=_price)
    bound = _price(steps) if method == "best-first search" else sum(bounds)
    return FoundSteps(steps, bound, method)


def _price(steps: Sequence[SiteStep]) -> float:
    return sum(step.price for step in steps)


def edges_of(network: Network, step: SiteStep) -> tuple[int, int]:
    """The edges that a step adds: from all of the first nodes to all of the second."""
    site = network.sites[step.site]
    starts = step.cut if step.way == "columns" else site.operands
    ends = step.cut if step.way == "rows" else site.results
    return as_set(starts), as_set(ends)


def gives_the_jacobian(network: Network, steps: Sequence[SiteStep]) -> bool:
    """Whether steps resolve every site once, in a way that it has, with cuts that separate."""
    if len(steps) != len(network.sites) or {s.site for s in steps} != set(range(len(steps))):
        return False
    state = _State(network, network.successors)
    for step in steps:
        if not state.can_take(step):
            return False
        state = state.after(step)
    return True


# --- Plans that need no search.


def sweeps(network: Network) -> dict[str, tuple[SiteStep, ...]]:
    """JAX's sweeps, without vectors that do not reach a site, and asking every site for its Jacobian."""
    inputs, outputs = as_set(network.inputs), as_set(network.outputs)
    before = reversed_edges(network.through_sites)
    forward, backward = [], []
    for k, site in enumerate(network.sites):
        columns = tuple(members(reached(before, as_set(site.operands)) & inputs))
        rows = tuple(members(reached(network.through_sites, as_set(site.results)) & outputs))
        forward.append(_step(k, site, "columns", columns, network.size_of(columns)))
        backward.append(_step(k, site, "rows", rows, network.size_of(rows)))
    local = [
        min(_local_steps(network, k, site), key=lambda step: step.price)
        for k, site in enumerate(network.sites)
    ]
    return {
        "jacfwd": tuple(forward),
        "jacrev": tuple(reversed(backward)),
        "local Jacobians": tuple(local),
    }


def alternatives(network: Network) -> dict[str, tuple[int, float]]:
    """Products and price of what a user would do without a plan. JAX's sweeps send all vectors everywhere."""
    columns, rows = network.size_of(network.inputs), network.size_of(network.outputs)
    sites, local = network.sites, sweeps(network)["local Jacobians"]
    calls = sum(site.prices.calls for site in sites)
    return {
        "jacfwd": (columns * calls, sum(s.prices.of("columns", columns) for s in sites)),
        "jacrev": (rows * calls, sum(s.prices.of("rows", rows) for s in sites)),
        "local Jacobians": (
            sum(step.products * sites[step.site].prices.calls for step in local),
            _price(local),
        ),
    }


def own_jacobians(network: Network) -> list[SiteStep]:
    """All ways in which sites can be asked for their own Jacobians."""
    steps = (_local_steps(network, k, site) for k, site in enumerate(network.sites))
    return [step for step in itertools.chain.from_iterable(steps) if step.price < math.inf]


def _local_steps(network: Network, k: int, site: SiteNodes) -> Iterator[SiteStep]:
    """The ways to a site's own Jacobian."""
    columns, rows = network.size_of(site.operands), network.size_of(site.results)
    yield from _whole_steps(network, k, site)
    yield _step(k, site, "columns", site.operands, columns)
    yield _step(k, site, "rows", site.results, rows)


def _whole_steps(network: Network, k: int, site: SiteNodes) -> Iterator[SiteStep]:
    """Those that need no cut."""
    columns, rows = network.size_of(site.operands), network.size_of(site.results)
    for way, products in site.prices.whole(columns, rows):
        yield _step(k, site, way, (), products)


def _step(number: int, site: SiteNodes, way: Way, cut: tuple[int, ...], products: int) -> SiteStep:
    prices = site.prices
    return SiteStep(number, way, cut, products, prices.of(way, products), prices.memory(way))


# --- Chains, exactly.
#
# Sites 1 … p, site k from n(k-1) to n(k) numbers. Let C(i, k) be the price of the Jacobian of sites i … k as
# a matrix. It comes about in one of these ways (Naumann, "Matrix-Free Jacobian Chaining", 2024):
#
#     C(i, i) = min( n(i-1) JVPs, n(i) VJPs, own Jacobian, coloured columns or rows ) of site i
#     C(i, k) = min( C(i, k-1) + n(i-1) JVPs of site k,               push the columns through one site more
#                    C(i+1, k) + n(k) VJPs of site i,                 pull the rows back through one more
#                    C(i, l) + C(l+1, k) for the best l,              multiply
#                    C(i, k-1) + C(k, k), C(i, i) + C(i+1, k) )       which are among the last
#
# Pushing through several sites is pushing through one after the other, so one step at a time is enough.
# Multiplications of matrices are not priced: they take microseconds where a product of a site takes at least
# a message.

Move = tuple[int, Way, int]
"""A site, the way it is asked, and the place in the chain (0 … p) whose columns or rows it gets."""


def plan_chain(sizes: Sequence[int], prices: Sequence[SitePrices]) -> tuple[float, list[Move]]:
    """The lowest price, and the moves in an order in which they can be made.

    Args:
        sizes: n(0) … n(p).
        prices: of the sites 1 … p, which are numbered from 0 in the moves.
    """
    count = len(prices)
    # total[i][k - i] is C(i, k), and ending[k][k - i] the same by its end; both grow with the length.
    total: list[list[float]] = []
    split: dict[tuple[int, int], int | Way] = {}
    for k in range(count):
        counts: dict[Way, int] = {"columns": sizes[k], "rows": sizes[k + 1]}
        counts.update(prices[k].whole(sizes[k], sizes[k + 1]))
        best, _, split[k, k] = min(
            (_choice(prices[k], way, n) for way, n in counts.items()), key=itemgetter(0, 1)
        )
        total.append([best])
    ending = [list(row) for row in total]
    for length in range(1, count):
        for i in range(count - length):
            k = i + length
            inner = ending[k][::-1]  # C(i+1, k), …, C(k, k)
            parts = list(map(add, total[i], inner))
            least = min(parts)
            best, _, split[i, k] = min(
                (least, False, i + parts.index(least)),
                _choice(prices[k], "columns", sizes[i], total[i][-1]),
                _choice(prices[i], "rows", sizes[k + 1], ending[k][-1]),
                key=itemgetter(0, 1),
            )
            total[i].append(best)
            ending[k].append(best)
    return total[0][-1], _moves(split, count)


def _choice(
    prices: SitePrices, way: Way, vectors: int, before: float = 0.0
) -> tuple[float, bool, Way]:
    """The price of a way, what comes before it included; whether it is a derived one; the way."""
    return before + prices.of(way, vectors), prices.is_derived(way), way


def _moves(split: dict[tuple[int, int], int | Way], count: int) -> list[Move]:
    """The moves of the best choices, from the innermost on; with a stack, since chains may be long."""
    moves: list[Move] = []
    waiting = [(0, count - 1)]
    while waiting:
        i, k = waiting.pop()
        choice = split[i, k]
        if isinstance(choice, int):
            waiting += [(i, choice), (choice + 1, k)]
        elif choice == "rows":
            moves.append((i, "rows", k + 1))
            waiting += [(i + 1, k)] if i < k else []
        else:
            moves.append((k, choice, i))
            waiting += [(i, k - 1)] if i < k else []
    # What was found last is inside of what was found before.
    return moves[::-1]


def _as_chain(network: Network) -> list[Cut] | None:
    """The smallest cuts before, between and after sites in series; `None` where there is no series.

    Sites are in series when every path meets all of them, in order.
    """
    ends = [network.inputs, *(site.results for site in network.sites)]
    starts = [*(site.operands for site in network.sites), network.outputs]
    for position, end in enumerate(ends):
        ahead = reached(network.successors, as_set(end))
        others = (as_set(start) for k, start in enumerate(starts) if k != position)
        if any(ahead & other for other in others):
            return None
    return [
        minimal_cut(network.sizes, network.successors, as_set(end), as_set(start), near_sinks=True)
        for end, start in zip(ends, starts, strict=True)
    ]


def _search_chain(network: Network, cuts: Sequence[Cut]) -> FoundSteps:
    sizes = [cut.size for cut in cuts]
    price, moves = plan_chain(sizes, [site.prices for site in network.sites])
    steps = []
    for number, way, place in moves:
        site = network.sites[number]
        if way in ("columns", "rows"):
            steps.append(_step(number, site, way, cuts[place].nodes, sizes[place]))
        else:
            steps += [s for s in _whole_steps(network, number, site) if s.way == way]
    return FoundSteps(tuple(steps), price, "chain recurrence")


# --- Graphs.


def _bound(network: Network, site: SiteNodes) -> float:
    """What a site costs at least, in every state."""
    inputs, outputs = as_set(network.inputs), as_set(network.outputs)
    known, sizes = network.through_sites, network.sizes
    before = minimal_cut(sizes, known, inputs, as_set(site.operands), near_sinks=True)
    after = minimal_cut(sizes, known, as_set(site.results), outputs, near_sinks=False)
    ways: list[tuple[Way, int]] = [("columns", before.size), ("rows", after.size)]
    ways += site.prices.whole(before.size, after.size)
    return min(site.prices.of(way, products) for way, products in ways)


@dataclass(frozen=True)
class _State:
    """A network in which some sites are resolved.

    Attributes:
        successors: the edges that are known.
        steps: taken so far, by site.
        cuts: of unresolved sites, as far as they are known from an earlier state.
    """

    network: Network
    successors: tuple[int, ...]
    steps: Mapping[int, SiteStep] = field(default_factory=dict)
    cuts: Mapping[tuple[int, Way], Cut] = field(default_factory=dict)

    @property
    def price(self) -> float:
        return sum(step.price for step in self.steps.values())

    @property
    def unresolved(self) -> list[int]:
        return [k for k in range(len(self.network.sites)) if k not in self.steps]

    @property
    def key(self) -> frozenset[SiteStep]:
        """The same steps in another order lead to the same edges."""
        return frozenset(self.steps.values())

    @property
    def ends(self) -> tuple[int, int]:
        """The arrays that are not known as functions of others yet, and those that are to be known."""
        sources, sinks = as_set(self.network.inputs), as_set(self.network.outputs)
        for k in self.unresolved:
            sources |= as_set(self.network.sites[k].results)
            sinks |= as_set(self.network.sites[k].operands)
        return sources, sinks

    def can_take(self, step: SiteStep) -> bool:
        """Whether a site has the way of a step, and the cut separates it from what is not resolved."""
        site = self.network.sites[step.site]
        sizes = self.network.size_of(site.operands), self.network.size_of(site.results)
        if step.way not in ("columns", "rows"):
            return step.way in dict(site.prices.whole(*sizes))
        if not set(step.cut) <= set(range(len(self.successors))):
            return False
        sources, sinks = self.ends
        start = sources if step.way == "columns" else as_set(site.results)
        end = sinks if step.way == "rows" else as_set(site.operands)
        cut = as_set(step.cut)
        without = [0 if cut >> k & 1 else ahead for k, ahead in enumerate(self.successors)]
        return not reached(without, start & ~cut) & end & ~cut

    def options(self) -> tuple[_State, list[SiteStep]]:
        """All steps that can be taken now; and the state with the cuts that were found for them."""
        sites = self.network.sites
        sources, sinks = self.ends
        cuts = dict(self.cuts)
        steps = []
        for k in self.unresolved:
            operands, results = as_set(sites[k].operands), as_set(sites[k].results)
            columns = self._cut(cuts, (k, "columns"), sources, operands)
            rows = self._cut(cuts, (k, "rows"), results, sinks)
            steps += [
                *_whole_steps(self.network, k, sites[k]),
                _step(k, sites[k], "columns", columns.nodes, columns.size),
                _step(k, sites[k], "rows", rows.nodes, rows.size),
            ]
        steps.sort(key=lambda step: sites[step.site].prices.is_derived(step.way))
        return replace(self, cuts=cuts), [step for step in steps if step.price < math.inf]

    def _cut(
        self, cuts: dict[tuple[int, Way], Cut], key: tuple[int, Way], sources: int, sinks: int
    ) -> Cut:
        if key not in cuts:
            near = key[1] == "columns"
            cuts[key] = minimal_cut(
                self.network.sizes, self.successors, sources, sinks, near_sinks=near
            )
        return cuts[key]

    def after(self, step: SiteStep) -> _State:
        """The state in which one more site is resolved."""
        site = self.network.sites[step.site]
        starts, ends = edges_of(self.network, step)
        successors = list(self.successors)
        for start in members(starts):
            successors[start] |= ends
        # The columns of another site change when results of this one were sources of its region, its rows
        # when operands of this one were sinks.
        touched = {"columns": as_set(site.results), "rows": as_set(site.operands)}
        cuts = {
            (k, way): cut
            for (k, way), cut in self.cuts.items()
            if k != step.site and not cut.region & touched[way]
        }
        return _State(self.network, tuple(successors), {**self.steps, step.site: step}, cuts)


def _promising(options: Sequence[SiteStep], bounds: Sequence[float]) -> Sequence[SiteStep]:
    """The steps to try: one that is at its bound is better than all others."""
    at_bound = [step for step in options if step.price <= bounds[step.site]]
    return at_bound[:1] or options


def _best_first(
    network: Network, bounds: Sequence[float], *, most: int
) -> tuple[SiteStep, ...] | None:
    """The cheapest steps; `None` if more states than `most` would have to be looked at."""
    ticket = itertools.count()
    start = _State(network, network.successors)
    # At the same bound the state with more steps comes first: it is nearer to the end.
    queue = [(sum(bounds), 0, next(ticket), start)]
    seen: set[frozenset[SiteStep]] = set()
    while queue and len(seen) < most:
        *_, state = heapq.heappop(queue)
        if state.key in seen:
            continue
        seen.add(state.key)
        if not state.unresolved:
            return tuple(state.steps.values())
        for following in _followers(state, bounds):
            entry = (_outlook(following, bounds), -len(following.steps), next(ticket), following)
            heapq.heappush(queue, entry)
    return None


def _followers(state: _State, bounds: Sequence[float]) -> Iterator[_State]:
    state, options = state.options()
    return (state.after(step) for step in _promising(options, bounds))


def _outlook(state: _State, bounds: Sequence[float]) -> float:
    """What a plan costs at least that goes on from here."""
    return state.price + sum(bounds[k] for k in state.unresolved)


def _beam_search(network: Network, bounds: Sequence[float]) -> tuple[SiteStep, ...]:
    """Good steps: at each depth only the best few states are kept."""
    beam = [_State(network, network.successors)]
    for _ in network.sites:
        following = (each for state in beam for each in _followers(state, bounds))
        distinct = {state.key: state for state in following}
        beam = heapq.nsmallest(_BEAM, distinct.values(), key=lambda each: _outlook(each, bounds))
    return tuple(beam[0].steps.values())


# --- Within a limit on what sites keep of their evaluation for their VJPs.
#
# All sites are evaluated before the first one is asked, so what they keep is there at the same time, and its
# sum counts. Let the cheapest steps exceed the limit. Then at least one of the sites that keep something must
# not, and there is a *branch* for each: the same network, in which that site may not be asked in a way for
# which it keeps anything. A branch offers less, so it can only be more expensive; taking branches by their
# price, the first one that fits is the cheapest of all (branch and bound).

_MOST_BRANCHES = 1000
"""Branches, times sites, that are tried before the shortest way to one that fits is taken."""


def find_steps_within(network: Network, memory_bytes: float) -> FoundSteps:
    """The cheapest steps whose sites keep no more than this many bytes together.

    Raises:
        CapabilityError: the sites that can be asked in no other way keep too much (`too_little_memory`).
    """
    cheapest = find_steps(network)
    if cheapest.memory <= memory_bytes:
        return cheapest
    free = frozenset(k for k, site in enumerate(network.sites) if site.prices.can_keep_nothing)
    _check_enough(network, free, memory_bytes)
    ticket = itertools.count()
    queue = [(cheapest.bound, next(ticket), frozenset[int](), cheapest)]
    seen = {frozenset[int]()}
    while True:
        bound, _, without, found = heapq.heappop(queue)
        if found.memory <= memory_bytes:
            return replace(found, bound=bound, method=f"{found.method} within memory")
        keeping = [step.site for step in found.steps if step.memory and step.site in free]
        if len(seen) * len(network.sites) > _MOST_BRANCHES:
            # Too many to try: only the branch of the site that keeps most, until one fits.
            keeping.sort(key=lambda k: network.sites[k].prices.residual_bytes)
            del keeping[:-1]
            queue.clear()
        for site in keeping:
            fewer = without | {site}
            if queue and fewer in seen:
                continue
            seen.add(fewer)
            following = find_steps(_keeping_nothing(network, fewer))
            is_tried = len(seen) * len(network.sites) <= _MOST_BRANCHES
            outlook = max(bound, following.bound) if is_tried else bound
            heapq.heappush(queue, (outlook, next(ticket), fewer, following))


def _keeping_nothing(network: Network, sites: Collection[int]) -> Network:
    """The network in which some sites are only asked in ways for which they keep nothing."""
    changed = (
        replace(site, prices=site.prices.keeping_nothing()) if k in sites else site
        for k, site in enumerate(network.sites)
    )
    return replace(network, sites=tuple(changed))


def _check_enough(network: Network, free: Collection[int], memory_bytes: float) -> None:
    bound = [site for k, site in enumerate(network.sites) if k not in free]
    least = sum(site.prices.residual_bytes for site in bound)
    if least > memory_bytes:
        named = ", ".join(f"{site.name} {site.prices.residual_bytes:,}" for site in bound)
        raise CapabilityError(
            f"No plan keeps at most {memory_bytes:,.0f} bytes for VJPs: these components have no other "
            f"derivative, and keep {least:,} bytes from their evaluation on ({named}). Allow more with "
            "`memory_bytes`, or give one of them a `jacobian_vector_product`.",
            code="too_little_memory",
        )
