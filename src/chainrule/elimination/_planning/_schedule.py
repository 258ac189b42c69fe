"""When which product is asked for, where several workers answer: independent steps at the same time.

A step needs another one when its cut reaches the site along an edge that the other one adds. All messages of
a step can be sent at the same time. A worker takes the first message that can be sent, in the order of the
steps (list scheduling); the time at which the last answer comes is the *makespan*. It is at most twice that
of the best schedule of these steps: a worker is idle only while a message of the longest chain of needed
messages is being answered, so makespan ≤ work / workers + longest chain, and no schedule is shorter than
either.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from chainrule.elimination._cuts import as_set, between, members
from chainrule.elimination._planning._network import Network
from chainrule.elimination._planning._search import SiteStep, edges_of, memory_of


def needed_steps(network: Network, steps: Sequence[SiteStep]) -> list[frozenset[int]]:
    """For every step, the positions of those that have to be done before."""
    successors = list(network.successors)
    needed = []
    added: list[tuple[int, int]] = []
    for step in steps:
        # An edge that an earlier step adds carries this one's message if a path from the cut to the site goes
        # over it: then both its ends lie on the way. (`added` has sets of starts and ends, one edge for each
        # pair of them.)
        inside = _on_the_way(network, tuple(successors), step)
        needed.append(
            frozenset(
                position
                for position, (starts, ends) in enumerate(added)
                if starts & inside and ends & inside
            )
        )
        starts, ends = edges_of(network, step)
        added.append((starts, ends))
        for start in members(starts):
            successors[start] |= ends
    return needed


def _on_the_way(network: Network, successors: tuple[int, ...], step: SiteStep) -> int:
    """The nodes on paths from a cut to its site, or from a site to its cut; none without a cut."""
    site, cut = network.sites[step.site], as_set(step.cut)
    if step.way not in ("columns", "rows"):
        return 0
    first, last = (
        (cut, as_set(site.operands)) if step.way == "columns" else (as_set(site.results), cut)
    )
    return between(successors, first, last)


def makespan(network: Network, steps: Sequence[SiteStep], workers: int) -> float:
    """The time after which this many workers have answered everything, at the prices of the sites."""
    needed = needed_steps(network, steps)
    messages = [network.sites[s.site].prices.messages(s.way, s.products) for s in steps]
    unsent, unanswered = list(messages), list(messages)
    now = 0.0
    running: list[tuple[float, int]] = []
    while True:
        for position, step in enumerate(steps):
            is_ready = not any(unanswered[before] for before in needed[position])
            while is_ready and unsent[position] and len(running) < workers:
                heapq.heappush(running, (now + step.price / messages[position], position))
                unsent[position] -= 1
        if not running:  # what is not sent waits for an answer, and none is under way: all are here
            return now
        # Of answers at the same time that of the earlier step: the result does not depend on chance.
        now, position = heapq.heappop(running)
        unanswered[position] -= 1


def find_shortest(
    network: Network,
    candidates: Sequence[Sequence[SiteStep]],
    workers: int,
    local: Sequence[SiteStep],
    memory_bytes: float | None = None,
) -> tuple[SiteStep, ...]:
    """The steps with the shortest makespan that are found: those of a candidate, changed where that helps.

    A site that gives its own Jacobian waits for no other one, and none of the others has to wait longer: what
    they used, they get from the Jacobian.

    Args:
        network: the pipeline.
        candidates: steps to begin with.
        workers: how many there are.
        local: steps that give the own Jacobian of a site; of every site one or more.
        memory_bytes: the most that the sites may keep; the first candidate fits.
    """

    def fits(steps: Sequence[SiteStep]) -> bool:
        return memory_bytes is None or memory_of(steps) <= memory_bytes

    def cost(steps: Sequence[SiteStep]) -> tuple[float, float]:
        return makespan(network, steps, workers), sum(step.price for step in steps)

    best: Sequence[SiteStep] = min(filter(fits, candidates), key=cost)
    for step in local:
        trial = (step, *(each for each in best if each.site != step.site))
        best = trial if fits(trial) and cost(trial) < cost(best) else best
    return tuple(best)
