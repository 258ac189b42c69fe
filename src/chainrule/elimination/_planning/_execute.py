"""Carrying out a plan: every site is applied once, then asked for the products of its step.

All values of the pipeline are computed first. Then the local Jacobians of its JAX parts are known as blocks
that keep their structure, and each step of the plan adds the blocks that it resolves (see `_search`). What is
left after the last step is a graph of JAX alone.

All this works on arrays and on tracers alike: under `jit` the steps become part of the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import TransportError
from chainrule._jaxpr import JaxprEqn, Var, bind_equation, enable_x64
from chainrule.elimination._blocks import Block, add, dense, multiply
from chainrule.elimination._eliminate import (
    VALUES,
    BlockPlace,
    blocks_by_place,
    eliminate,
    local_edges,
    read,
    run,
    without_values,
)
from chainrule.elimination._graph import Edges
from chainrule.elimination._planning._prices import Way, is_backwards, name_of_product
from chainrule.elimination._planning._schedule import needed_steps
from chainrule.elimination._planning._search import SiteStep
from chainrule.elimination._planning._sites import Pipeline, Site, size_of
from chainrule.elimination._rules import real_shape
from chainrule.elimination._rules._elementwise import diagonal_structure
from chainrule.elimination._structure import dense_term, structure_of


def execute(
    pipeline: Pipeline,
    steps: Sequence[SiteStep],
    operands: Sequence[Any],
    *,
    workers: int | None = None,
) -> tuple[list[Any], dict[BlockPlace, Block]]:
    """The outputs of a pipeline's program, and the Jacobian block of every target and input.

    Args:
        pipeline: the pipeline.
        steps: one per site.
        operands: of its program.
        workers: how many messages are under way at the same time; `None` for one step after the other. What
            is traced is left to XLA.
    """
    graph = pipeline.graph
    linear = _LinearMaps(pipeline, steps)
    values = run(graph.program, operands, linear.apply)
    known = _Known(pipeline, local_edges(pipeline.jax_graph, values))
    requests = [linear.request(step, values) for step in steps]
    if any(isinstance(operand, jax.core.Tracer) for operand in operands):
        workers = None
    _ask_all(known, requests, needed_steps(pipeline.network, steps), workers)
    outputs = [read(atom, values) for atom in graph.program.jaxpr.outvars]
    return outputs, blocks_by_place(graph, known.eliminated())


# --- The blocks that are known.


class _Known:
    """The graph of a pipeline, as far as its Jacobians are known.

    Attributes:
        rows: result → operand → block.
    """

    def __init__(self, pipeline: Pipeline, rows: Edges) -> None:
        self.rows = rows
        self._graph = pipeline.graph
        self._elements = pipeline.elements
        defined = (var for eqn in pipeline.graph.program.jaxpr.eqns for var in eqn.outvars)
        self._order = {var: k for k, var in enumerate((*pipeline.graph.inputs, *defined))}

    def vectors(self, request: _Request) -> dict[int, Any]:
        """What a site is sent: M of du = M dz, column by column, or of dz = M dv, row by row.

        By the positions of its operands, or results; those that the cut does not reach are left out.
        """
        site, cut = request.site, request.cut
        if request.way in ("coloured columns", "coloured rows"):
            assert site.compression is not None
            return site.compression.seeds(request.way)
        if not any(len(self._elements(z)) for z in cut):
            return {}
        if request.way == "columns":
            found, places = self._columns_from(cut, site.operand_variables), site.operands
            variables, axis = site.operand_variables, -1
        elif request.way == "rows":
            found, places = self._rows_to(cut, site.result_variables), site.results
            variables, axis = site.result_variables, 0
        else:
            return {}
        return {
            place: self._stacked([found[var].get(z) for z in cut], cut, var, axis=axis)
            for place, var in zip(places, variables, strict=True)
            if found[var]
        }

    def absorb(self, request: _Request, answer: Any) -> None:
        """Add what a site has answered: dv = (J · M) dz, dz = (M · J) du, or J itself."""
        site, cut = request.site, request.cut
        if answer is None:
            return
        if request.way == "jacobian":
            for (result, operand), block in answer.items():
                ends = site.equation.outvars[result], site.equation.invars[operand]
                self._put(*ends, _dense_block(block, *ends))
        elif request.way in ("coloured columns", "coloured rows"):
            assert site.compression is not None
            sides = site.operands if is_backwards(request.way) else site.results
            products = dict(zip(sides, answer, strict=True))
            for (result, operand), block in site.compression.blocks(request.way, products).items():
                self._put(site.equation.outvars[result], site.equation.invars[operand], block)
        elif request.way == "columns":
            for result, product in zip(site.result_variables, answer, strict=True):
                for z, part in self._split(product, cut):
                    self._put(result, z, _dense_block(jnp.moveaxis(part, 0, -1), result, z))
        else:
            for operand, product in zip(site.operand_variables, answer, strict=True):
                for z, part in self._split(product, cut):
                    self._put(z, operand, _dense_block(part, z, operand))

    def _stacked(
        self, blocks: Sequence[Block | None], cut: Sequence[Var], var: Var, *, axis: int
    ) -> Any:
        """Blocks between the nodes of a cut and an array, as one vector of the array per live element."""
        aval: Any = var.aval
        shape, parts = aval.shape, []
        for block, z in zip(blocks, cut, strict=True):
            chosen = self._elements(z)
            if block is None:
                parts.append(jnp.zeros((len(chosen), *shape), aval.dtype))
                continue
            full = dense(block, aval.dtype)
            full = full.reshape(*shape, -1) if axis == -1 else full.reshape(-1, *shape)
            full = jnp.moveaxis(full, axis, 0)
            parts.append(full if len(chosen) == len(full) else full[chosen])
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def _split(self, product: Any, cut: Sequence[Var]) -> Iterator[tuple[Var, Any]]:
        """The products of each node of a cut, one per element; zeros for those that are not live."""
        start = 0
        for z in cut:
            chosen = self._elements(z)
            part = product[start : start + len(chosen)]
            start += len(chosen)
            if len(chosen) < size_of(z):
                part = jnp.zeros((size_of(z), *part.shape[1:]), part.dtype).at[chosen].set(part)
            yield z, part

    def _put(self, result: Any, operand: Any, block: Block) -> None:
        row = self.rows.setdefault(result, {})
        row[operand] = add(row[operand], block) if operand in row else block

    def _columns_from(
        self, cut: Sequence[Var], targets: Sequence[Var]
    ) -> dict[Var, dict[Var, Block]]:
        """Target → node of the cut → ∂target/∂node, along paths that meet no other node of the cut."""
        # du = Σ_z M_z dz. The recurrence is ∂node/∂z = Σ ∂node/∂operand · ∂operand/∂z, from the cut on in the
        # order of the program. It stops at nodes of the cut: what comes before them is in dz.
        found: dict[Var, dict[Var, Block]] = {z: {z: _identity(z)} for z in cut}
        for node in self._ancestors(targets, stop=cut):
            columns: dict[Var, Block] = {}
            found[node] = columns
            for operand, outer in self.rows.get(node, {}).items():
                for z, inner in found.get(operand, {}).items():
                    _accumulate(columns, z, multiply(outer, inner))
        return {target: found[target] for target in targets}

    def _rows_to(self, cut: Sequence[Var], sources: Sequence[Var]) -> dict[Var, dict[Var, Block]]:
        """Source → node of the cut → ∂node/∂source, along paths that meet no other node of the cut."""
        # dz = Σ M dv, by the transposed recurrence: ∂z/∂operand += ∂z/∂node · ∂node/∂operand, from the cut
        # backwards. Only nodes on a way from the sources to the cut are visited. A node of the cut is not
        # passed: its own dz stands for all paths through it.
        before = self._ancestors(cut, stop=())
        between = set(sources)
        for node in before:
            if not between.isdisjoint(self.rows.get(node, ())):
                between.add(node)
        between -= set(cut)
        found: dict[Var, dict[Var, Block]] = {z: {z: _identity(z)} for z in cut}
        for node in reversed(before):
            for operand, inner in self.rows.get(node, {}).items():
                if operand in between:
                    for z, outer in found.get(node, {}).items():
                        _accumulate(found.setdefault(operand, {}), z, multiply(outer, inner))
        return {source: found.get(source, {}) for source in sources}

    def _ancestors(self, targets: Iterable[Var], stop: Sequence[Var]) -> list[Var]:
        """The nodes that targets depend on, themselves included, in order; nothing at or beyond `stop`."""
        seen = set(stop)
        waiting = list(targets)
        found = []
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                found.append(node)
                waiting += self.rows.get(node, {})
        return sorted(found, key=self._order.__getitem__)

    def eliminated(self) -> Edges:
        """Output → input → block. What only sites needed is left out first."""
        outputs = [var for var in self._graph.outputs if var in self._order]
        needed = self._ancestors(outputs, stop=self._graph.inputs)
        rows = {node: self.rows[node] for node in needed if node in self.rows}
        order = [v for v in self._graph.partials if any(n in rows for n in self._graph.nodes(v))]
        sizes = [sum(map(size_of, side)) for side in (self._graph.inputs, outputs)]
        return eliminate(self._graph, rows, order if sizes[0] <= sizes[1] else order[::-1], VALUES)


def _accumulate(row: dict[Var, Block], z: Var, product: Block) -> None:
    if not product.structure.is_zero:
        row[z] = add(row[z], product) if z in row else product


def _identity(var: Var) -> Block:
    shape = real_shape(var.aval)
    structure = diagonal_structure(shape, shape, stored=None)
    assert structure is not None
    return without_values(structure)


def _dense_block(value: Any, result: Any, operand: Any) -> Block:
    term = dense_term(real_shape(result.aval), real_shape(operand.aval))
    return Block(structure_of([term]), (value.reshape(term.stored_shape),))


# --- Asking the sites, directly or through JAX.

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Request:
    """What is asked of a site at a point.

    Attributes:
        site: the site.
        way: how it is asked.
        cut: whose columns or rows it gets; none where it gives its own Jacobian.
        ask: the site as a linear map.
        in_one: whether one message carries all its vectors.
    """

    site: Site
    way: Way
    cut: Sequence[Var]
    ask: Any
    in_one: bool

    def answer(self, vectors: Mapping[int, Any]) -> Any:
        """The products, or the Jacobian; `None` where there is nothing to ask for."""
        if self.way == "jacobian":
            return self.ask.jacobian()
        if not vectors:
            return None
        return self.ask.rows(vectors) if is_backwards(self.way) else self.ask.columns(vectors)


class _LinearMaps:
    """The sites of a pipeline at a point, as linear maps.

    Opaque ones are linearised by JAX where they are applied, so that this is done once.
    """

    def __init__(self, pipeline: Pipeline, steps: Sequence[SiteStep]) -> None:
        opaque = (site for site in pipeline.sites if site.products is None)
        self._opaque = {var: site for site in opaque for var in site.result_variables}
        self._ways = {pipeline.sites[step.site].vertex: step.way for step in steps}
        self._pipeline = pipeline
        self._maps: dict[int, _OpaqueProducts] = {}

    def apply(self, eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """The results of an equation."""
        site = next((self._opaque[var] for var in eqn.outvars if var in self._opaque), None)
        if site is None:
            return bind_equation(eqn, operands)
        reverse = is_backwards(self._ways[site.vertex])
        results, found = _linearise(site, operands, reverse=reverse)
        self._maps[site.vertex] = found
        return results

    def request(self, step: SiteStep, values: Mapping[Var, Any]) -> _Request:
        """What a step asks, where the value of every variable is known."""
        site = self._pipeline.sites[step.site]
        primals = [read(atom, values) for atom in site.equation.invars]
        ask = self._maps.get(site.vertex) or _Products(site, primals)
        cut = [self._pipeline.variables[node] for node in step.cut]
        in_one = self._pipeline.network.sites[step.site].prices.messages(step.way, 2) == 1
        return _Request(site, step.way, cut, ask, in_one)


class _Products:
    """A site at a point, as a linear map that is asked for products.

    Vectors are keyed by the positions of operands or results, with one axis for the vectors in front.
    """

    def __init__(self, site: Site, primals: Sequence[Any]) -> None:
        self._site, self._primals = site, primals

    def columns(self, tangents: Mapping[int, Any]) -> list[Any]:
        """Tangents of the site's results."""
        assert self._site.products is not None
        return self._site.products.columns(self._primals, tangents, self._site.results)

    def rows(self, cotangents: Mapping[int, Any]) -> list[Any]:
        """Cotangents of the site's operands."""
        assert self._site.products is not None
        return self._site.products.rows(self._primals, cotangents, self._site.operands)

    def jacobian(self) -> dict[BlockPlace, Any]:
        """The blocks by (result, operand)."""
        assert self._site.products is not None
        return self._site.products.jacobian(self._primals, self._site.operands, self._site.results)


class _OpaqueProducts:
    """A site that JAX has linearised, in one direction."""

    def __init__(self, site: Site, linear: Callable[..., Any]) -> None:
        self._site, self._linear = site, linear

    def columns(self, tangents: Mapping[int, Any]) -> list[Any]:
        """Tangents of the site's results."""
        full = _filled(tangents, self._site.operands, self._site.operand_variables)
        return list(jax.vmap(self._linear)(*full))

    def rows(self, cotangents: Mapping[int, Any]) -> list[Any]:
        """Cotangents of the site's operands."""
        full = _filled(cotangents, self._site.results, self._site.result_variables)
        return list(jax.vmap(self._linear)(full))


def _linearise(
    site: Site, operands: Sequence[Any], *, reverse: bool
) -> tuple[Sequence[Any], _OpaqueProducts]:
    """The results of an opaque site, and its linear map forwards, or backwards."""
    moving = [operands[k] for k in site.operands]
    way = jax.vjp if reverse else jax.linearize
    _, linear, results = way(site.of_operands(operands), *moving, has_aux=True)
    return results, _OpaqueProducts(site, linear)


def _filled(
    vectors: Mapping[int, Any], positions: Sequence[int], variables: Sequence[Var]
) -> list[Any]:
    """Vectors at all positions: zeros where there are none."""
    (size,) = {vector.shape[0] for vector in vectors.values()}
    avals: list[Any] = [var.aval for var in variables]
    return [
        vectors[k] if k in vectors else jnp.zeros((size, *aval.shape), aval.dtype)
        for k, aval in zip(positions, avals, strict=True)
    ]


# --- One request after the other, or several at the same time.


def _ask_all(
    known: _Known,
    requests: Sequence[_Request],
    needed: Sequence[frozenset[int]],
    workers: int | None,
) -> None:
    """Make requests, in an order in which each has what it needs.

    A message that fails because the component cannot be reached, or died, is sent once more.

    Args:
        known: what is known; the answers are added to it.
        requests: one per site.
        needed: for every request, the positions of those that come before it.
        workers: how many messages are under way at the same time; `None`: one request after the other.

    Raises:
        TransportError: a message failed twice; with the site and the product.
        Exception: what a component raised, with a note of the site and the product.
    """
    if workers is not None:
        _ask_concurrently(known, requests, needed, workers)
        return
    for request in requests:
        vectors = known.vectors(request)
        known.absorb(
            request, _answer(request, vectors, f"{name_of_product(request.way)}s of {request.site}")
        )


def _ask_concurrently(
    known: _Known, requests: Sequence[_Request], needed: Sequence[frozenset[int]], workers: int
) -> None:
    """Send the messages of all requests as soon as what they need is known.

    At most `workers` of them are under way at a time. When one has failed, the others that are under way are
    waited for before the error is raised.
    """
    answers: dict[int, list[Any]] = {}
    messages: dict[Future[Any], tuple[int, int]] = {}
    done: set[int] = set()
    has_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    with ThreadPoolExecutor(workers, "chainrule-plan") as pool:

        def send(position: int) -> None:
            request = requests[position]
            parts = _messages(request, known.vectors(request))
            answers[position] = [None] * len(parts)
            for number, part in enumerate(parts):
                place = (
                    f"{name_of_product(request.way)} {number + 1} of {len(parts)} of {request.site}"
                )
                future = pool.submit(_answer_on_a_thread, request, part, place, has_x64)
                messages[future] = position, number
            if not parts:
                finish(position)

        def finish(position: int) -> None:
            parts = answers[position]
            known.absorb(requests[position], _joined(requests[position].way, parts))
            done.add(position)
            for other, before in enumerate(needed):
                if other not in answers and before <= done:
                    send(other)

        try:
            for position, before in enumerate(needed):
                if not before and position not in answers:
                    send(position)
            while messages:
                ready, _ = wait(messages, return_when=FIRST_COMPLETED)
                for future in sorted(ready, key=messages.__getitem__):
                    position, number = messages.pop(future)
                    answers[position][number] = future.result()
                    if not any(other == position for other, _ in messages.values()):
                        finish(position)
        finally:
            for future in messages:
                future.cancel()


def _messages(request: _Request, vectors: Mapping[int, Any]) -> list[Mapping[int, Any]]:
    """The vectors of each message: all of them where the component takes batches, else one."""
    if request.way == "jacobian" or not vectors:
        return [vectors] if request.way == "jacobian" else []
    if request.in_one:
        return [vectors]
    (size,) = {vector.shape[0] for vector in vectors.values()}
    return [{k: vector[n : n + 1] for k, vector in vectors.items()} for n in range(size)]


def _answer_on_a_thread(
    request: _Request, vectors: Mapping[int, Any], place: str, has_x64: bool
) -> Any:
    """The answer to one message. The precision of JAX belongs to a thread."""
    with enable_x64(has_x64):
        return _answer(request, vectors, place)


def _answer(request: _Request, vectors: Mapping[int, Any], place: str) -> Any:
    """The answer to vectors, at the first or the second attempt."""
    try:
        return _answer_once(request, vectors, place)
    except TransportError as first:
        _log.warning("The request for the %s failed and is repeated: %s", place, first)
    try:
        return _answer_once(request, vectors, place)
    except TransportError as error:
        raise TransportError(
            f"The request for the {place} failed twice: {error.message}",
            code=error.code,
            details=error.details,
        ) from error


def _answer_once(request: _Request, vectors: Mapping[int, Any], place: str) -> Any:
    try:
        return request.answer(vectors)
    except Exception as error:
        note = f"Raised in the request for the {place}."
        # A transport error gets a message of its own; an author may raise one object again and again.
        if not isinstance(error, TransportError) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _joined(way: Way, parts: Sequence[Any]) -> Any:
    if way == "jacobian" or len(parts) == 1:
        return parts[0]
    return [jnp.concatenate(each) for each in zip(*parts, strict=True)] if parts else None
