"""A pipeline as planning sees it: arrays with sizes, and sites between them.

A *node* is an array of the pipeline; its size is the number of its elements. An edge leads from one node to
another where JAX computes the second from the first: its local Jacobian costs (almost) nothing. A *site* is a
call of a component: from its operand nodes to its result nodes there are no edges, only products for a price.

The derivative of the pipeline is the sum over all paths from inputs to outputs. All that the sinks of a cut
(`chainrule.elimination._cuts`) learn from its sources passes through it, so the Jacobian of the sinks has as
many independent columns as the cut has elements, at most: that is how many products are needed, and the
reason to look for minimal cuts.

Nodes are numbered in the order in which they are computed. Sets of nodes are integers, one bit per node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from chainrule.elimination._cuts import as_set, reached
from chainrule.elimination._planning._prices import SitePrices


@dataclass(frozen=True)
class SiteNodes:
    """A site of a network.

    Attributes:
        name: for messages.
        operands: the nodes that it reads and is differentiated by.
        results: the nodes that it computes, as far as they are read.
        prices: what products with its Jacobian cost.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    prices: SitePrices


@dataclass(frozen=True)
class Network:
    """A pipeline without its values.

    Attributes:
        sizes: number of elements of every node.
        successors: for every node, those that JAX computes from it.
        sites: in the order in which they are called.
        inputs: what is differentiated by.
        outputs: what is differentiated.
    """

    sizes: tuple[int, ...]
    successors: tuple[int, ...]
    sites: tuple[SiteNodes, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @cached_property
    def through_sites(self) -> tuple[int, ...]:
        """The successors of every node if all local Jacobians were known."""
        full = list(self.successors)
        for site in self.sites:
            for operand in site.operands:
                full[operand] |= as_set(site.results)
        return tuple(full)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Which sites read what others compute, with nothing but JAX in between.

        Sites are numbered from 0; -1 stands for the inputs, and the number of sites for the outputs.
        """
        starts = [self.inputs, *(site.results for site in self.sites)]
        ends = [*(site.operands for site in self.sites), self.outputs]
        return tuple(
            (number, place)
            for number, start in enumerate(starts, start=-1)
            for place, end in enumerate(ends)
            if reached(self.successors, as_set(start)) & as_set(end)
        )

    def size_of(self, nodes: Iterable[int]) -> int:
        """Number of elements of some nodes."""
        return sum(self.sizes[node] for node in nodes)
