"""Jacobians with few entries from few products: columns (or rows) that never meet share one.

asdex reads the pattern of non-zeros off the program and colours it. Elimination finds most such Jacobians
without products at all; this is for programs in which it has to give up structure, such as long loops.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import CapabilityError
from chainrule._jaxpr import (
    ClosedJaxpr,
    JaxprEqn,
    Rewriter,
    bind_equation,
    evaluate,
    plain_text,
    walk,
)
from chainrule._trees import LRUCache
from chainrule.elimination._graph import Graph
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
    program = _program_with_pattern(graph)
    name = _identity(program)
    found = None if name is None else _known.get(name)
    if found is None:
        found = _detect(program)
        if name is not None:
            _known.put(name, found)
    return found


def _program_with_pattern(graph: Graph) -> ClosedJaxpr:
    """A program of one vector that depends on its entries as the derivative of the flat targets does.

    That is the program itself, except where a function has a derivative rule of its own, of which asdex
    knows nothing: rounding with the derivative of the identity, for example. Such a function f becomes
    f(x) + Df(x)·x, by its rule.
    """
    if any("custom_vjp" in site.equation.primitive.name for site in walk(graph.program)):
        raise CapabilityError(
            "The pattern of a Jacobian is read off the program, but a `custom_vjp` function in it has a "
            "derivative of its own. Use method='elimination'.",
            code="no_pattern",
        )
    rewriter = Rewriter(
        _with_its_rule,
        is_claimed=lambda eqn: eqn.primitive.name == "custom_jvp_call",
        substitutes=True,
    )
    size = sum(_size(var.aval) for var in graph.inputs)
    point = jax.ShapeDtypeStruct((size,), jnp.zeros(()).dtype)

    def flat(vector: Any) -> Any:
        return _flat_targets(graph, vector, lambda *operands: rewriter.run(*operands)[0])

    return jax.make_jaxpr(flat)(point)


def _with_its_rule(
    eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], tuple[()]]:
    active = [k for k, x in enumerate(operands) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]

    def function(*inputs: Any) -> list[Any]:
        full = list(operands)
        for position, value in zip(active, inputs, strict=True):
            full[position] = value
        return bind_equation(eqn, full)

    point = [jnp.asarray(operands[position]) for position in active]
    results, pushed = jax.jvp(function, point, point)
    changed = [
        result + tangent if jnp.issubdtype(result.dtype, jnp.inexact) else result
        for result, tangent in zip(results, pushed, strict=True)
    ]
    return changed, ()


def _identity(program: ClosedJaxpr) -> str | None:
    """A name for everything that decides a pattern, values of constants included; `None` if there is none."""
    digest = hashlib.sha256(plain_text(program.jaxpr).encode())
    for const in program.consts:
        try:
            array = np.asarray(const)
        except TypeError:  # a random key
            return None
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _detect(program: ClosedJaxpr) -> Colouring:
    try:
        import asdex
    except ImportError:
        raise CapabilityError(
            "Compressed Jacobians need asdex: pip install 'chainrule[sparse]'.",
            code="missing_dependency",
        ) from None
    (aval,) = program.in_avals
    point = jnp.zeros(aval.shape, aval.dtype)
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.simplefilter("ignore")  # it advises dense Jacobians where the pattern is full
        try:
            found = asdex.jacobian_coloring(lambda vector: evaluate(program, [vector])[0], point)
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


def _flat_targets(graph: Graph, vector: Any, run: Callable[..., list[Any]] = evaluate) -> Any:
    operands = _split(vector, [var.aval for var in graph.program.jaxpr.invars])
    outputs = run(graph.program, operands)[: len(graph.targets)]
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
