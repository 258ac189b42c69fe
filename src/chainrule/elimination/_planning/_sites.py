"""The sites of a traced function, and the network that they form.

A site is an equation that calls a component (one that is not inlined), or an equation that holds such calls
inside: a loop, a branch, a function with a derivative rule of its own. The first kind is asked for products
directly. The second kind is *opaque*: JAX pushes tangents through it or pulls cotangents back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from chainrule._jaxpr import (
    JaxprEqn,
    OutsideCall,
    Products,
    Var,
    as_function,
    locate,
    outside_call_of,
)
from chainrule.elimination._graph import Edges, Graph, component_calls
from chainrule.elimination._planning._colouring import Compression, compress
from chainrule.elimination._planning._network import Network, SiteNodes
from chainrule.elimination._planning._prices import (
    GivenPrices,
    SitePrices,
    check_prices,
    site_prices,
)
from chainrule.elimination._rules import is_complex, real_size
from chainrule.elimination._structure import Term


@dataclass(frozen=True, eq=False)
class Site:
    """An equation that calls components.

    Attributes:
        vertex: its number in the graph.
        name: of the component; of an opaque site, the primitive and the components inside.
        equation: the equation.
        operands: positions of the operands that it is differentiated by.
        results: positions of the results that are differentiated and read.
        products: how to ask for products; `None` for an opaque site.
        calls: the calls of components, the equation itself or those inside.
    """

    vertex: int
    name: str
    equation: JaxprEqn
    operands: tuple[int, ...]
    results: tuple[int, ...]
    products: Products | None
    calls: tuple[OutsideCall, ...]

    @property
    def operand_variables(self) -> tuple[Var, ...]:
        """The variables of its operands; the same one may be several operands."""
        return tuple(self.equation.invars[k] for k in self.operands)  # type: ignore[misc]

    @property
    def result_variables(self) -> tuple[Var, ...]:
        """The variables of its results."""
        return tuple(self.equation.outvars[k] for k in self.results)

    @cached_property
    def compression(self) -> Compression | None:
        """How to get its Jacobian from few products, where it is known to be sparse."""
        call = outside_call_of(self.equation)
        if call is None:
            return None
        results = {k: self.equation.outvars[k].aval for k in self.results}
        operands = {k: self.equation.invars[k].aval for k in self.operands}
        return compress(results, operands, call.dependence)

    @property
    def nbytes(self) -> int:
        """Of its operands and results, which stand for what an evaluation keeps."""
        avals: list[Any] = [v.aval for v in (*self.equation.invars, *self.equation.outvars)]
        return sum(aval.size * aval.dtype.itemsize for aval in avals)

    def of_operands(self, operands: Sequence[Any]) -> Callable[..., tuple[list[Any], list[Any]]]:
        """The site as a function of the operands that it is differentiated by, at a point.

        It returns the results that are differentiated, and all results.
        """

        def function(*moving: Any) -> tuple[list[Any], list[Any]]:
            full = list(operands)
            for position, value in zip(self.operands, moving, strict=True):
                full[position] = value
            results = as_function(self.equation)(*full)
            return [results[k] for k in self.results], results

        return function

    def __str__(self) -> str:
        where = locate(self.equation)
        return f"{self.name} at {where}" if where else self.name


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A traced function whose Jacobian can be planned over its sites.

    Attributes:
        graph: of the function.
        sites: in the order in which they are called.
        network: the same without values.
        variables: of the nodes of the network.
        live: of nodes in which only some elements carry derivatives, which ones.
    """

    graph: Graph
    sites: tuple[Site, ...]
    network: Network
    variables: tuple[Var, ...]
    live: Mapping[Var, np.ndarray]

    @cached_property
    def jax_graph(self) -> Graph:
        """The graph without the sites: what JAX knows by itself."""
        return _without_sites(self.graph, self.sites)

    def elements(self, var: Var) -> np.ndarray:
        """The elements of a node that carry derivatives, in its flat form."""
        return self.live.get(var, np.arange(size_of(var)))


def _without_sites(graph: Graph, sites: Sequence[Site]) -> Graph:
    vertices = {site.vertex for site in sites}
    kept = {v: local for v, local in graph.partials.items() if v not in vertices}
    return replace(graph, partials=kept)


def has_complex_site(graph: Graph) -> bool:
    """Whether a site that JAX differentiates, a loop for example, reads or computes complex numbers."""
    return any(
        is_complex(var.aval)
        for site in _find_sites(graph)
        for var in (*site.operand_variables, *site.result_variables)
    )


def find_pipeline(
    graph: Graph, given: GivenPrices = MappingProxyType({}), *, with_memory: bool = False
) -> Pipeline:
    """The pipeline of a function that has sites.

    Args:
        graph: of the function.
        given: prices by the names of components, which win over all others.
        with_memory: whether to find out what JAX keeps of opaque sites, which takes a trace of each.

    Raises:
        ChainruleError: a site cannot be differentiated, which is named.
        InputError: a price is given that cannot be used (`bad_prices`).
    """
    sites = tuple(_find_sites(graph))
    check_prices(given, sites)
    prices = [site_prices(site, given) for site in sites]
    if with_memory:
        prices = [
            replace(price, residual_bytes=residual_bytes(site)) if site.products is None else price
            for price, site in zip(prices, sites, strict=True)
        ]
    return Pipeline(graph, sites, *_network(graph, sites, prices))


def residual_bytes(site: Site) -> int:
    """What JAX keeps of an opaque site for its VJPs."""

    def pull(*operands: Any) -> Any:
        moving = [operands[k] for k in site.operands]
        return jax.vjp(site.of_operands(operands), *moving, has_aux=True)[1]

    kept = jax.eval_shape(pull, *(atom.aval for atom in site.equation.invars))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def _find_sites(graph: Graph) -> Iterator[Site]:
    for vertex in graph.sites:
        local, eqn = graph.partials[vertex], graph.equation(vertex)
        calls = component_calls(eqn)
        call = outside_call_of(eqn)
        products = None if call is None else call.products
        operands = {operand for _, operand in local.structures}
        results = {result for result, _ in local.structures}
        if products is not None:
            results = {result for result in results if products.results[result]}
        names = ", ".join(dict.fromkeys(str(each.name) for each in calls))
        name = names if call is not None else f"{eqn.primitive.name} of {names}"
        yield Site(
            vertex,
            name,
            eqn,
            tuple(sorted(operands)),
            tuple(sorted(results)),
            products,
            tuple(calls),
        )


# --- The network.


def _network(
    graph: Graph, sites: Sequence[Site], prices: Sequence[SitePrices]
) -> tuple[Network, tuple[Var, ...], dict[Var, np.ndarray]]:
    vertices = {site.vertex for site in sites}
    before: dict[Var, set[Var]] = {var: set() for var in graph.inputs}
    for vertex, local in graph.partials.items():
        eqn = graph.equation(vertex)
        for result, position in local.structures:
            read = before.setdefault(eqn.outvars[result], set())
            if vertex not in vertices:
                read.add(eqn.invars[position])  # type: ignore[arg-type]
    ends = {*graph.inputs, *graph.outputs}
    for site in sites:
        ends.update(site.operand_variables, site.result_variables)
    live = _live_elements(graph, sites, tuple(before))
    sizes = {var: len(live[var]) if var in live else size_of(var) for var in before}
    _leave_out_detours(before, ends, sizes)
    variables = tuple(before)
    number = {var: k for k, var in enumerate(variables)}
    successors = [0] * len(variables)
    for var, read in before.items():
        for operand in read:
            successors[number[operand]] |= 1 << number[var]
    nodes = tuple(
        SiteNodes(
            site.name,
            tuple(sorted({number[var] for var in site.operand_variables})),
            tuple(sorted({number[var] for var in site.result_variables})),
            price,
        )
        for site, price in zip(sites, prices, strict=True)
    )
    outputs = tuple(number[var] for var in graph.outputs if var in number)
    inputs = tuple(number[var] for var in graph.inputs)
    network = Network(
        tuple(sizes[var] for var in variables), tuple(successors), nodes, inputs, tuple(sorted(outputs))
    )  # fmt: skip
    return network, variables, live


def _leave_out_detours(
    before: dict[Var, set[Var]], ends: set[Var], sizes: Mapping[Var, int]
) -> None:
    """Take out arrays of JAX parts that no minimal cut needs.

    In a cut, an array that is computed from one other array can be replaced by that one, and an array that
    one other is computed from by that one. Where these are no larger, nothing is lost.
    """
    after: dict[Var, set[Var]] = {var: set() for var in before}
    for var, read in before.items():
        for operand in read:
            after[operand].add(var)
    for var in list(before):
        if var in ends:
            continue
        neighbours = [side for side in (before[var], after[var]) if len(side) == 1]
        if any(sizes[next(iter(side))] <= sizes[var] for side in neighbours):
            for reader in after[var]:
                before[reader] = before[reader] - {var} | before[var]
            for operand in before[var]:
                after[operand] = after[operand] - {var} | after[var]
            del before[var], after[var]


_MANY_ENTRIES = 1_000_000
"""Parts of local Jacobians with more entries than this are not looked at one by one."""


def _live_elements(
    graph: Graph, sites: Sequence[Site], variables: Sequence[Var]
) -> dict[Var, np.ndarray]:
    """The elements that vary and are read, of the arrays in which these are not all.

    A vector for another element would be zero, or would be multiplied by zero. All elements of inputs and of
    results of sites vary, and all elements of outputs and of operands of sites are read; from there on both
    follow the entries of the JAX parts.

    Args:
        graph: of the function.
        sites: in it.
        variables: all arrays of the graph, in the order in which they are computed.
    """
    before = _without_sites(graph, sites).structures
    after: Edges = {}
    for result, row in before.items():
        for operand, structure in row.items():
            after.setdefault(operand, {})[result] = structure
    vary = {*graph.inputs, *(var for site in sites for var in site.result_variables)}
    read = {*graph.outputs, *(var for site in sites for var in site.operand_variables)}
    found = [
        _reached_elements([var for var in variables if var not in vary], before, backwards=False),
        _reached_elements([var for var in reversed(variables) if var not in read], after, backwards=True),
    ]  # fmt: skip
    return {
        var: np.flatnonzero(np.logical_and.reduce([each[var] for each in found if var in each]))
        for var in variables
        if any(var in each for each in found)
    }


def _reached_elements(
    order: Sequence[Var], edges: Edges, *, backwards: bool
) -> dict[Var, np.ndarray]:
    """Which elements are reached from other arrays, as masks, of the arrays in which these are not all."""
    found: dict[Var, np.ndarray] = {}
    for var in order:
        mask = np.zeros(size_of(var), bool)
        for neighbour, structure in edges.get(var, {}).items():
            for term in structure.terms:
                mask[_reached_by(term, found.get(neighbour), backwards=backwards)] = True
        if not mask.all():
            found[var] = mask
    return found


def _reached_by(term: Term, start: np.ndarray | None, *, backwards: bool) -> Any:
    """The rows of a term that have entries in some columns, or the columns in some rows, as an index."""
    if start is None or term.entries > _MANY_ENTRIES:
        reached = term.columns_with_entries() if backwards else term.rows_with_entries()
        return slice(None) if reached is None else reached
    rows, columns = term.flat_positions()
    return columns[start[rows]] if backwards else rows[start[columns]]


def size_of(var: Var) -> int:
    """Real numbers of an array."""
    return real_size(var.aval)
