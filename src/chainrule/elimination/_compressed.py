"""Jacobians with few entries from few products: columns (or rows) that never meet share one.

asdex reads the pattern of non-zeros off the program and colours it. Elimination finds most such Jacobians
without products at all; this is for programs in which it has to give up structure, such as long loops.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import CapabilityError
from chainrule._jaxpr import evaluate
from chainrule._trees import LRUCache
from chainrule.elimination._graph import Graph
from chainrule.elimination._order import fingerprint
from chainrule.elimination._rules import as_real, real_shape

__all__ = ["Colouring", "colour", "compressed_jacobian", "has_asdex"]


@dataclass(frozen=True, eq=False)
class Colouring:
    """Which entries a Jacobian can have, and which products give them.

    Attributes:
        rows: of the entries.
        columns: of the entries.
        colours: of every column, or of every row when `reverse`.
        count: number of colours, that is of products.
        reverse: whether the products are with the transposed Jacobian.
    """

    rows: np.ndarray
    columns: np.ndarray
    colours: np.ndarray
    count: int
    reverse: bool


_known: LRUCache[str, Colouring] = LRUCache(64)


def has_asdex() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("asdex") is not None


def colour(graph: Graph) -> Colouring:
    """The colouring of a graph's Jacobian, remembered per program.

    Raises:
        CapabilityError: asdex is not installed, or cannot read the program.
    """
    if any(isinstance(const, jax.core.Tracer) for const in graph.program.consts):
        raise CapabilityError(
            "The pattern of a Jacobian is read off the program, but this function closes over values that "
            "are being traced. Pass them as arguments.",
            code="no_pattern",
        )
    name = fingerprint(graph)
    found = _known.get(name)
    if found is None:
        found = _detect(graph)
        _known.put(name, found)
    return found


def _detect(graph: Graph) -> Colouring:
    try:
        import asdex
    except ImportError:
        raise CapabilityError(
            "Compressed Jacobians need asdex: pip install 'chainrule[sparse]'.",
            code="missing_dependency",
        ) from None
    shapes = [var.aval for var in graph.inputs]
    point = jnp.zeros(sum(_size(aval) for aval in shapes))
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.simplefilter("ignore")  # it advises dense Jacobians where the pattern is full
        try:
            found = asdex.jacobian_coloring(lambda vector: _flat_targets(graph, vector), point)
        except NotImplementedError as error:
            raise CapabilityError(
                f"asdex cannot read the pattern of this Jacobian off the program: {error}. Use "
                "method='elimination'.",
                code="no_pattern",
            ) from error
    return Colouring(
        np.asarray(found.sparsity.rows), np.asarray(found.sparsity.cols),
        np.asarray(found.colors), int(found.num_colors), found.mode == "rev",
    )  # fmt: skip


def _size(aval: Any) -> int:
    return math.prod(real_shape(aval))


def _split(vector: Any, avals: Sequence[Any]) -> list[Any]:
    ends = np.cumsum([_size(aval) for aval in avals])
    starts = [0, *ends[:-1]]
    return [
        vector[start:end].reshape(aval.shape).astype(aval.dtype)
        for start, end, aval in zip(starts, ends, avals, strict=True)
    ]


def _flat_targets(graph: Graph, vector: Any) -> Any:
    operands = _split(vector, [var.aval for var in graph.program.jaxpr.invars])
    outputs = evaluate(graph.program, operands)[: len(graph.targets)]
    return jnp.concatenate([jnp.ravel(as_real(value)).astype(vector.dtype) for value in outputs])


def compressed_jacobian(graph: Graph, operands: Sequence[Any]) -> list[list[Any]]:
    """The dense blocks, per target and input, from one product per colour.

    Complex targets are pairs of real ones here: their blocks have an axis of two after the target's.
    """
    plan = colour(graph)
    with jax.numpy_dtype_promotion("standard"):
        point = jnp.concatenate([jnp.ravel(operand) for operand in operands])
    used = np.arange(plan.count)[:, None] == plan.colours
    seeds = jnp.asarray(used, point.dtype)

    def flat(vector: Any) -> Any:
        return _flat_targets(graph, vector)

    if plan.reverse:
        _, pull = jax.vjp(flat, point)
        (products,) = jax.vmap(pull)(seeds)
        entries = products[plan.colours[plan.rows], plan.columns]
    else:
        _, push = jax.linearize(flat, point)
        products = jax.vmap(push)(seeds)
        entries = products[plan.colours[plan.columns], plan.rows]
    n_rows = sum(_size(atom.aval) for atom in graph.targets)
    matrix = jnp.zeros((n_rows, point.size), point.dtype)
    matrix = matrix.at[plan.rows, plan.columns].set(entries, unique_indices=True)
    return _blocks(graph, matrix, operands)


def _blocks(graph: Graph, matrix: Any, operands: Sequence[Any]) -> list[list[Any]]:
    heights = np.cumsum([_size(atom.aval) for atom in graph.targets])[:-1]
    widths = np.cumsum([_size(var.aval) for var in graph.inputs])[:-1]
    return [
        [
            part.reshape(*real_shape(atom.aval), *operand.shape).astype(operand.dtype)
            for part, operand in zip(jnp.split(row, widths, axis=1), operands, strict=True)
        ]
        for atom, row in zip(graph.targets, jnp.split(matrix, heights), strict=True)
    ]
