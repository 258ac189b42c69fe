"""Steps give the Jacobian, in every order that respects what they need: networks of random matrices.

The steps are carried out by a few lines of NumPy, independent of those that run in JAX.
"""

import itertools
import random

import numpy as np
import pytest
from tests.elimination.planning.test_search import random_network, random_prices

from chainrule.elimination._cuts import members
from chainrule.elimination._planning._prices import SitePrices
from chainrule.elimination._planning._schedule import find_shortest, needed_steps
from chainrule.elimination._planning._search import find_steps, own_jacobians, sweeps


class Numbers:
    """A network with a matrix for every edge and every pair of an operand and a result of a site."""

    def __init__(self, network, seed):
        self.network = network
        matrix = np.random.default_rng(seed).normal
        sizes = network.sizes
        self.known = {
            (b, a): matrix(size=(sizes[b], sizes[a]))
            for a, successors in enumerate(network.successors)
            for b in members(successors)
        }
        self.sites = [
            {(v, u): matrix(size=(sizes[v], sizes[u])) for u in site.operands for v in site.results}
            for site in network.sites
        ]

    def between(self, edges, start, end, cut):
        """The sum over all paths from one node to another, one of them in a cut, that meet it once."""
        if start != end and start in cut and end in cut:
            return np.zeros((self.network.sizes[end], self.network.sizes[start]))
        return self.paths(edges, start, end, cut)

    def paths(self, edges, start, end, avoid):
        """The sum over all paths from one node to another that meet none of some others in between."""
        if start == end:
            return np.eye(self.network.sizes[start])
        total = np.zeros((self.network.sizes[end], self.network.sizes[start]))
        for (b, a), matrix in edges.items():
            if b == end and (a == start or a not in avoid):
                total += matrix @ self.paths(edges, start, a, avoid)
        return total

    def jacobian(self, edges):
        return [
            self.paths(edges, x, y, ()) for y in self.network.outputs for x in self.network.inputs
        ]

    def true_jacobian(self):
        edges = dict(self.known)
        for site in self.sites:
            for place, matrix in site.items():
                edges[place] = edges.get(place, 0) + matrix
        return self.jacobian(edges)

    def after(self, steps):
        """The edges after some steps, and nothing but products with the Jacobians of sites."""
        edges = dict(self.known)
        for step in steps:
            site, own = self.network.sites[step.site], self.sites[step.site]
            found = {}
            if step.way not in ("columns", "rows"):
                found = own
            elif step.way == "columns":
                for z, v in itertools.product(step.cut, site.results):
                    parts = (own[v, u] @ self.between(edges, z, u, step.cut) for u in site.operands)
                    found[v, z] = sum(parts)
            else:
                for z, u in itertools.product(step.cut, site.operands):
                    parts = (self.between(edges, v, z, step.cut) @ own[v, u] for v in site.results)
                    found[z, u] = sum(parts)
            for place, matrix in found.items():
                edges[place] = edges.get(place, 0) + matrix
        return edges

    def check(self, steps):
        for found, expected in zip(
            self.jacobian(self.after(steps)), self.true_jacobian(), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * abs(expected).max())


def any_order(rng, steps, needed):
    """The steps in a random order in which each comes after those that it needs."""
    done, left = [], set(range(len(steps)))
    while left:
        ready = [k for k in left if needed[k] <= set(done)]
        done.append(rng.choice(sorted(ready)))
        left.remove(done[-1])
    return [steps[k] for k in done]


@pytest.mark.parametrize("seed", range(3))
def test_steps_give_the_jacobian(seed):
    rng = random.Random(seed)
    for number in range(25):
        prices = random_prices if number % 2 else lambda _: SitePrices()
        network = random_network(rng, rng.randint(1, 6), prices)
        numbers, known = Numbers(network, number), sweeps(network)
        steps = find_steps(network).steps
        local = own_jacobians(network)
        for each in (steps, *known.values(), find_shortest(network, [steps], 3, local)):
            numbers.check(each)
            needed = needed_steps(network, each)
            for _ in range(3):
                numbers.check(any_order(rng, each, needed))
