"""Carrying out a plan: every site is applied once, then asked for the products of its step.

All values of the pipeline are computed first. Then the local Jacobians of its JAX parts are known as blocks
that keep their structure, and each step of the plan adds the blocks that it resolves (see `_search`). What is
left after the last step is a graph of JAX alone.

All this works on arrays and on tracers alike: under `jit` the steps become part of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import Var
from chainrule.elimination._blocks import Block, add, dense, multiply
from chainrule.elimination._eliminate import (
    VALUES,
    Place,
    blocks_by_place,
    eliminate,
    local_edges,
    read,
    run,
    without_values,
)
from chainrule.elimination._graph import Edges
from chainrule.elimination._planning._asking import LinearMaps, Request, ask_all
from chainrule.elimination._planning._prices import is_backwards
from chainrule.elimination._planning._schedule import needed_steps
from chainrule.elimination._planning._search import Step
from chainrule.elimination._planning._sites import Pipeline, size_of
from chainrule.elimination._rules import real_shape
from chainrule.elimination._rules._elementwise import diagonal_structure
from chainrule.elimination._structure import dense_term, structure_of


def execute(
    pipeline: Pipeline,
    steps: Sequence[Step],
    operands: Sequence[Any],
    *,
    workers: int | None = None,
) -> tuple[list[Any], dict[Place, Block]]:
    """The outputs of a pipeline's program, and the Jacobian block of every target and input.

    Args:
        pipeline: the pipeline.
        steps: one per site.
        operands: of its program.
        workers: how many messages are under way at the same time; `None` for one step after the other. What
            is traced is left to XLA.
    """
    graph = pipeline.graph
    linear = LinearMaps(pipeline, steps)
    values = run(graph.program, operands, linear.apply)
    known = _Known(pipeline, local_edges(pipeline.jax_graph, values))
    requests = [linear.request(step, values) for step in steps]
    if any(isinstance(operand, jax.core.Tracer) for operand in operands):
        workers = None
    ask_all(known, requests, needed_steps(pipeline.network, steps), workers)
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

    def vectors(self, request: Request) -> dict[int, Any]:
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

    def absorb(self, request: Request, answer: Any) -> None:
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
