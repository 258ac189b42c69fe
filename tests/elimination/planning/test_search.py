"""The search for steps, against exhaustive enumeration and the figures of the literature."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from chainrule._errors import CapabilityError
from chainrule.elimination._cuts import as_set, members, minimal_cut, reached
from chainrule.elimination._planning._network import Network, SiteNodes
from chainrule.elimination._planning._prices import SitePrices
from chainrule.elimination._planning._search import (
    _beam_search,
    _best_first,
    _bound,
    alternatives,
    find_steps,
    find_steps_within,
    plan_chain,
    sweeps,
)

UNIT = SitePrices()


def chain(sizes, prices=None):
    """Sites one after the other, with arrays of these sizes before, between and after them."""
    prices = [UNIT] * (len(sizes) - 1) if prices is None else prices
    sites = [SiteNodes(f"site {k + 1}", (k,), (k + 1,), price) for k, price in enumerate(prices)]
    return Network(tuple(sizes), (0,) * len(sizes), tuple(sites), (0,), (len(sizes) - 1,))


def price(steps):
    return sum(step.price for step in steps)


@pytest.mark.parametrize(
    ("sizes", "optimum", "jacfwd", "jacrev", "local"),
    [
        ((3, 5, 5), 6, 6, 10, 8),
        ((8, 2, 8), 4, 16, 16, 4),
        ((6, 6, 1, 6, 6), 4, 24, 24, 14),
        ((2, 9, 9, 3), 6, 6, 9, 14),
        ((9, 3, 9, 2, 9), 8, 36, 36, 10),
        ((9, 1, 5, 8, 2, 8), 5, 45, 40, 11),
    ],
)
def test_the_table_of_the_specification(sizes, optimum, jacfwd, jacrev, local):
    network = chain(sizes)
    found = find_steps(network)
    assert found.price == found.bound == optimum
    assert found.method == "chain recurrence"
    known = {"jacfwd": jacfwd, "jacrev": jacrev, "local Jacobians": local}
    assert {name: price(steps) for name, steps in sweeps(network).items()} == known
    assert alternatives(network) == {name: (n, float(n)) for name, n in known.items()}


def random_prices(rng):
    return SitePrices(
        jvp=rng.choice([1, 1, 2, 5, math.inf]),
        vjp=rng.choice([1, 1, 3, 4]),
        jacobian=rng.choice([math.inf, math.inf, 3, 8]),
        message=rng.choice([0, 0, 2]),
        batches=frozenset(rng.choice([(), ("jvp",), ("jvp", "vjp")])),
        column_colours=rng.choice([None, None, None, 2]),
        row_colours=rng.choice([None, None, None, 1]),
        residuals=frozenset(rng.choice([(), ("vjp",), ("jvp", "vjp")])),
        residual_bytes=rng.randint(1, 9),
    )


def exhaustive_chain(sizes, prices):
    """The price of all ways to come to the Jacobian of a chain, by plain recursion over the definition."""

    def best(i, k):  # sites i … k
        pushed = [prices[i].of("columns", sizes[i]) + push(i, i + 1, k)]
        pulled = [prices[k].of("rows", sizes[k + 1]) + pull(k, i, k - 1)]
        ways = pushed + pulled
        if i == k:
            ways += [prices[i].of(way, n) for way, n in prices[i].whole(1, 1)]
        for middle in range(i, k):
            left, right = best(i, middle), best(middle + 1, k)
            ways += [left + right, left + push(i, middle + 1, k), right + pull(k, i, middle)]
        return min(ways)

    def push(i, first, last):
        return sum(prices[s].of("columns", sizes[i]) for s in range(first, last + 1))

    def pull(k, first, last):
        return sum(prices[s].of("rows", sizes[k + 1]) for s in range(first, last + 1))

    return best(0, len(prices) - 1)


def test_chains_are_exact():
    rng = random.Random(1)
    for _ in range(150):
        count = rng.randint(1, 6)
        sizes = [rng.randint(1, 9) for _ in range(count + 1)]
        prices = [random_prices(rng) for _ in range(count)]
        found = find_steps(chain(sizes, prices))
        assert found.price == exhaustive_chain(sizes, prices) == plan_chain(sizes, prices)[0]
        check_steps(chain(sizes, prices), found.steps)


def random_network(rng, site_count, prices=random_prices):
    """Sites and JAX between them: forks, joins, skips, several inputs and outputs."""
    sizes = [rng.randint(1, 9) for _ in range(rng.randint(1, 2))]
    inputs = tuple(range(len(sizes)))
    successors = [0] * len(sizes)
    sites, kinds = [], ["site"] * site_count + ["jax"] * rng.randint(0, 3)
    rng.shuffle(kinds)
    for kind in kinds:
        # Mostly the newest arrays, so that something is in series.
        pool = list(range(len(sizes)))[-3:] if rng.random() < 0.7 else list(range(len(sizes)))
        read = tuple(sorted(rng.sample(pool, min(len(pool), rng.choice([1, 1, 2])))))
        node = len(sizes)
        sizes.append(rng.randint(1, 9))
        successors.append(0)
        if kind == "jax":
            for each in read:
                successors[each] |= 1 << node
        else:
            sites.append(SiteNodes(f"site {len(sites)}", read, (node,), prices(rng)))
    network = Network(tuple(sizes), tuple(successors), tuple(sites), inputs, ())
    ends = [k for k, ahead in enumerate(network.through_sites) if not ahead]
    outputs = tuple(sorted({*ends, *rng.sample(range(len(sizes)), 1)} - set(inputs)))
    return Network(network.sizes, network.successors, network.sites, inputs, outputs)


def after(network, successors, step):
    """The edges after a step, and that its cut is one."""
    site = network.sites[step.site]
    edges = list(successors)
    starts = step.cut if step.way == "columns" else site.operands
    ends = step.cut if step.way == "rows" else site.results
    for start in starts:
        edges[start] |= as_set(ends)
    return tuple(edges)


def separates(successors, cut, sources, sinks):
    without = [0 if cut >> k & 1 else ahead for k, ahead in enumerate(successors)]
    return not reached(without, sources & ~cut) & sinks & ~cut


def ends_of(network, unresolved):
    sources, sinks = as_set(network.inputs), as_set(network.outputs)
    for k in unresolved:
        sources |= as_set(network.sites[k].results)
        sinks |= as_set(network.sites[k].operands)
    return sources, sinks


def check_steps(network, steps):
    """Every site once, and every cut separates what it has to."""
    successors, unresolved = network.successors, set(range(len(network.sites)))
    for step in steps:
        site, (sources, sinks) = network.sites[step.site], ends_of(network, unresolved)
        if step.way == "columns":
            assert separates(successors, as_set(step.cut), sources, as_set(site.operands))
        if step.way == "rows":
            assert separates(successors, as_set(step.cut), as_set(site.results), sinks)
        if step.way in ("columns", "rows"):
            assert step.products == network.size_of(step.cut)
        successors = after(network, successors, step)
        unresolved.remove(step.site)
    assert not unresolved


def exhaustive(network, *, all_cuts):
    """The lowest price over all orders and ways; over all cuts, or over the smallest ones."""
    nodes = range(len(network.sizes))
    subsets = [as_set(s) for n in range(4) for s in itertools.combinations(nodes, n)]

    def cuts(successors, sources, sinks, near_sinks):
        if all_cuts:
            return [s for s in subsets if separates(successors, s, sources, sinks)]
        found = minimal_cut(network.sizes, successors, sources, sinks, near_sinks=near_sinks)
        return [as_set(found.nodes)]

    known = {}

    def best(successors, unresolved):
        key = successors, unresolved
        if key not in known:
            known[key] = min(costs(successors, unresolved), default=0.0)
        return known[key]

    def costs(successors, unresolved):
        sources, sinks = ends_of(network, unresolved)
        for k in unresolved:
            site, rest = network.sites[k], unresolved - {k}
            operands, results = as_set(site.operands), as_set(site.results)
            ways = [(way, 0) for way, _ in site.prices.whole(1, 1)]
            counts = dict(site.prices.whole(1, 1))
            ways += [("columns", cut) for cut in cuts(successors, sources, operands, True)]
            ways += [("rows", cut) for cut in cuts(successors, results, sinks, False)]
            for way, cut in ways:
                chosen = tuple(members(cut))
                size = counts.get(way) or network.size_of(chosen)
                here = site.prices.of(way, size)
                if here < math.inf:
                    step = type("Step", (), {"site": k, "way": way, "cut": chosen})
                    yield here + best(after(network, successors, step), rest)

    return best(network.successors, frozenset(range(len(network.sites))))


def test_graphs_are_exact_over_all_cuts():
    rng = random.Random(2)
    for _ in range(25):
        network = random_network(rng, rng.randint(1, 2))
        found = find_steps(network)
        check_steps(network, found.steps)
        assert found.price == exhaustive(network, all_cuts=True)


@pytest.mark.parametrize("site_count", [4, 5, 6])
def test_graphs_are_exact(site_count):
    rng = random.Random(site_count)
    for _ in range({4: 40, 5: 15, 6: 5}[site_count]):
        network = random_network(rng, site_count)
        found = find_steps(network)
        check_steps(network, found.steps)
        assert found.price == found.bound == exhaustive(network, all_cuts=False)


def test_large_graphs_are_never_worse_than_jax():
    rng = random.Random(3)
    for site_count in (12, 20):
        network = random_network(rng, site_count)
        found = find_steps(network)
        check_steps(network, found.steps)
        known = sweeps(network)
        assert found.bound <= found.price <= min(map(price, known.values()))


def test_the_beam_is_near_the_optimum():
    rng = random.Random(4)
    for _ in range(20):
        network = random_network(rng, 5)
        bounds = [_bound(network, site) for site in network.sites]
        steps = _beam_search(network, bounds)
        check_steps(network, steps)
        assert price(steps) <= 1.5 * price(_best_first(network, bounds, most=10_000))


def cheapest_within(network, memory_bytes):
    """The lowest price over all sets of sites that keep something, by enumeration."""
    sites, prices = network.sites, []
    for kept in itertools.product([True, False], repeat=len(sites)):
        used = [
            site if keeps else replace(site, prices=site.prices.keeping_nothing())
            for site, keeps in zip(sites, kept, strict=True)
        ]
        if all(
            keeps or site.prices.can_keep_nothing for site, keeps in zip(sites, kept, strict=True)
        ):
            found = find_steps(replace(network, sites=tuple(used)))
            if sum(step.memory for step in found.steps) <= memory_bytes:
                prices.append(found.price)
    return min(prices, default=None)


@pytest.mark.parametrize("kind", ["chain", "graph"])
def test_a_limit_on_memory_is_kept_at_the_lowest_price(kind):
    rng = random.Random(5)
    refused = 0
    for _ in range(25):
        count = rng.randint(1, 4)
        if kind == "chain":
            sizes = [rng.randint(1, 9) for _ in range(count + 1)]
            network = chain(sizes, [random_prices(rng) for _ in range(count)])
        else:
            network = random_network(rng, count)
        memory_bytes = rng.randint(0, 15)
        expected = cheapest_within(network, memory_bytes)
        if expected is None:
            refused += 1
            with pytest.raises(CapabilityError, match="too_little_memory"):
                find_steps_within(network, memory_bytes)
            continue
        found = find_steps_within(network, memory_bytes)
        check_steps(network, found.steps)
        assert found.memory <= memory_bytes
        assert found.price == found.bound == expected
    assert refused


def test_a_limit_on_memory_of_a_long_chain():
    """Both halves of 9-9-…-1-…-9-9: 30 sites keep what they are asked for rows; 5 may."""
    keeping = SitePrices(residuals=frozenset({"vjp"}), residual_bytes=10)
    sizes = [9] * 30 + [1] + [9] * 30
    network = chain(sizes, [keeping] * 60)
    assert find_steps(network).price == 60
    found = find_steps_within(network, 50)
    assert found.memory <= 50
    check_steps(network, found.steps)
    # 25 sites of the first half get the nine columns of the input instead, and 5 are asked for one row.
    assert found.price == 25 * 9 + 5 + 30
    assert found.bound <= found.price
