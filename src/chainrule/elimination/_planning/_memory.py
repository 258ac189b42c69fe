"""A limit on what the sites of a pipeline keep of their evaluation for their VJPs.

All sites are evaluated before the first one is asked, so what they keep is there at the same time, and its
sum counts. Let the cheapest steps exceed the limit. Then at least one of the sites that keep something must
not, and there is a *branch* for each: the same network, in which that site may not be asked in a way for
which it keeps anything. A branch offers less, so it can only be more expensive; taking branches by their
price, the first one that fits is the cheapest of all (branch and bound).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from dataclasses import replace

from chainrule._errors import CapabilityError
from chainrule.elimination._planning._network import Network
from chainrule.elimination._planning._search import Found, find_steps

_MOST_BRANCHES = 1000
"""Branches, times sites, that are tried before the shortest way to one that fits is taken."""


def find_steps_within(network: Network, memory_bytes: float) -> Found:
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
