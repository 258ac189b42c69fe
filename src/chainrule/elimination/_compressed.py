"""Jacobians with few entries from few products: columns (or rows) that never meet share one.

Elimination finds most such Jacobians without products at all; this is for programs in which it has to give up
structure, such as long loops. Where the entries are is proved from the program (`derivative_pattern`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import CapabilityError, ChainruleError
from chainrule._jaxpr import derivative_pattern, evaluate
from chainrule._patterns import Pattern
from chainrule.elimination._graph import Graph, check_linear
from chainrule.elimination._rules import as_real, real_shape
from chainrule.elimination._sweeps import why_no_sweep


@dataclass(frozen=True, eq=False)
class Colouring:
    """Which entries a Jacobian can have, and which products give them.

    Attributes:
        rows: of the entries.
        columns: of the entries.
        colours: of every column, or of every row when `reverse`; -1 for those without an entry.
        count: number of colours, that is of products.
        reverse: whether the products are with the transposed Jacobian.
    """

    rows: np.ndarray
    columns: np.ndarray
    colours: np.ndarray
    count: int
    reverse: bool


def colour(graph: Graph) -> Colouring:
    """The colouring of a graph's Jacobian with the fewest products, of those that JAX can do.

    Raises:
        CapabilityError: the pattern is not known (`no_pattern`), or JAX cannot differentiate the program.
    """
    obstacles = {reverse: why_no_sweep(graph, reverse=reverse) for reverse in (False, True)}
    if obstacles[False] is not None:
        raise CapabilityError(
            "The pattern of a Jacobian is read off the derivative along a tangent, which this function does "
            f"not have: {obstacles[False]}. Use method='jacrev' or 'elimination'.",
            code="no_pattern",
        )
    check_linear(graph)
    pattern = _pattern_of(graph)
    found = [_coloured(pattern, reverse=False)]
    if obstacles[True] is None and _most_per_line(pattern.transpose) < found[0].count:
        found.append(_coloured(pattern, reverse=True))
    return min(found, key=lambda colouring: colouring.count)


def fewest_products(pattern: Pattern) -> int:
    """No colouring of the pattern, of its columns or of its rows, has fewer colours."""
    return min(_most_per_line(pattern), _most_per_line(pattern.transpose))


def _most_per_line(pattern: Pattern) -> int:
    """The most entries that a row has: their columns all need different colours."""
    return int(np.bincount(pattern.rows, minlength=1).max()) if pattern.rows.size else 0


def _coloured(pattern: Pattern, *, reverse: bool) -> Colouring:
    chosen = pattern.transpose if reverse else pattern
    colours = np.full(chosen.shape[1], -1)
    if _most_per_line(chosen) == chosen.shape[1]:  # a full row: nothing can be shared
        colours = np.arange(chosen.shape[1])
    else:
        for number, group in enumerate(chosen.column_groups):
            colours[group] = number
    count = int(colours.max(initial=-1)) + 1
    return Colouring(pattern.rows, pattern.columns, colours, count, reverse)


def _pattern_of(graph: Graph) -> Pattern:
    try:
        return derivative_pattern(
            lambda *operands: _real_targets(graph, operands)[0], [var.aval for var in graph.inputs]
        )
    except ChainruleError:
        raise
    except Exception as error:
        # JAX differentiates the user's functions here, whose rules may raise what they like.
        text = str(error).partition("\n")[0]
        raise CapabilityError(
            f"The derivative of this function along a tangent cannot be traced: {type(error).__name__}: "
            f"{text}. Use method='jacrev' or 'elimination'.",
            code="no_pattern",
        ) from error


def _real_targets(graph: Graph, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What is differentiated, as real floating-point arrays; and all outputs as they are."""
    outputs = evaluate(graph.program, operands)
    targets = [as_real(jnp.asarray(value)) for value in outputs[: len(graph.targets)]]
    return [
        value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
        for value in targets
    ], outputs


def compressed_jacobian(graph: Graph, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
    """The outputs, and the dense blocks, per target and input, from one product per colour.

    Complex targets are pairs of real ones here: their blocks have an axis of two after the target's.
    """
    plan = colour(graph)
    with jax.numpy_dtype_promotion("standard"):
        point = jnp.concatenate([jnp.ravel(operand) for operand in operands])
    used = np.arange(plan.count)[:, None] == plan.colours
    seeds = jnp.asarray(used, point.dtype)

    def flat(vector: Any) -> tuple[Any, list[Any]]:
        targets, outputs = _real_targets(graph, _split(vector, operands))
        # The blocks have the dtypes of the inputs, as those of `jax.jacrev`.
        return jnp.concatenate([jnp.ravel(t).astype(vector.dtype) for t in targets]), outputs

    if plan.reverse:
        _, pull, outputs = jax.vjp(flat, point, has_aux=True)
        (products,) = jax.vmap(pull)(seeds)
        entries = products[plan.colours[plan.rows], plan.columns]
    else:
        _, push, outputs = jax.linearize(flat, point, has_aux=True)
        products = jax.vmap(push)(seeds)
        entries = products[plan.colours[plan.columns], plan.rows]
    n_rows = sum(_size(atom.aval) for atom in graph.targets)
    matrix = jnp.zeros((n_rows, point.size), point.dtype)
    matrix = matrix.at[plan.rows, plan.columns].set(entries, unique_indices=True)
    return outputs, _blocks(graph, matrix, operands)


def _size(aval: Any) -> int:
    return math.prod(real_shape(aval))


def _split(vector: Any, operands: Sequence[Any]) -> list[Any]:
    ends = np.cumsum([operand.size for operand in operands])
    starts = [0, *ends[:-1]]
    return [
        vector[start:end].reshape(operand.shape).astype(operand.dtype)
        for start, end, operand in zip(starts, ends, operands, strict=True)
    ]


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
