"""JAX's own ways of computing a Jacobian: sweeps (`jacrev`, `jacfwd`), and few of them for sparse Jacobians.

A compressed Jacobian comes from one product per colour: columns (or rows) that never meet share one.
Elimination finds most such Jacobians without products at all; this is for programs in which it has to give up
structure, such as long loops. Where the entries are is proved from the program (`derivative_pattern`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._describe import describe_error
from chainrule._errors import CapabilityError, ChainruleError
from chainrule._jaxpr import (
    JaxprEqn,
    Literal,
    derivative_pattern,
    equations_inside,
    evaluate,
    is_reference,
    locate,
    subprograms,
    walk,
)
from chainrule._patterns import Pattern
from chainrule.elimination._graph import Graph, check_linear
from chainrule.elimination._linearize import Traced
from chainrule.elimination._rules import as_real, complex_dtype, real_shape, real_size, traced_rule

_log = logging.getLogger(__name__)

Outcome = tuple[Any, Any, Any]
"""The value (`None` if not wanted), the auxiliary result, the dense Jacobian."""


def why_no_sweep(graph: Graph, *, reverse: bool) -> str | None:
    """What in a program keeps JAX from pulling back (or pushing forward) through it; `None` if nothing does.

    Only equations between inputs and targets are looked at: a loop over constants is no obstacle. Nor is one
    inside of a `custom_vjp` or `custom_jvp` function, which have rules of their own. In a graph without
    partials, which may not have been built to the end, all equations are looked at.
    """
    if not reverse:
        for eqn in walk(graph.program):
            if any(is_reference(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
                where = locate(eqn) or "an unknown line"
                return f"JAX cannot push several tangents into the mutable array at {where}"
    for vertex in graph.partials or range(1, graph.size + 1):
        for eqn in _differentiated(graph.equation(vertex)):
            name = eqn.primitive.name
            where = f" at {locate(eqn) or 'an unknown line'}"
            if not reverse and "custom_vjp" in name:
                return f"the function{where} has a rule for cotangents (`custom_vjp`) and none for tangents"
            if reverse and name == "while":
                return f"JAX cannot pull cotangents back through the `while` loop{where}"
            if reverse and name == "pvary":
                # Inside of `shard_map` JAX adds up, over the devices, what it pulls back to such a value.
                return f"a value is shared by the devices of a mesh{where}"
    return None


def _differentiated(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """An equation and, at any depth, those inside that are differentiated when it is."""
    yield eqn
    if "custom_vjp" in eqn.primitive.name:
        return
    if eqn.primitive.name == "custom_jvp_call":
        inside = _on_tangents(eqn) if _has_obstacle(eqn) else []
    else:
        inside = [
            inner
            for sub in subprograms(eqn)
            if sub.role not in ("condition", "operator", "combiner")
            for inner in sub.program.jaxpr.eqns
        ]
    for inner in inside:
        yield from _differentiated(inner)


def _has_obstacle(eqn: JaxprEqn) -> bool:
    """Whether it is worth tracing the rule of a `custom_jvp` function, which takes time."""
    names = {inner.primitive.name for inner in equations_inside(eqn)}
    return not names.isdisjoint({"while", "pvary"})


def _on_tangents(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The equations of a rule that work on tangents. A loop of the function itself is not differentiated."""
    operands: Sequence[Any] = eqn.invars
    wanted = [k for k, x in enumerate(operands) if jnp.issubdtype(x.aval.dtype, jnp.inexact)]
    try:
        program, directions = traced_rule(eqn, wanted)
    except Exception:
        # A rule of the user's may raise what it likes. The sweep says so, or does not need this operand.
        return []
    active = {program.jaxpr.invars[k] for k in directions}
    found = []
    for inner in program.jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in active for atom in inner.invars):
            active.update(inner.outvars)
            found.append(inner)
    return found


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
    found = [coloured(pattern, reverse=False)]
    if obstacles[True] is None and _most_per_line(pattern.transpose) < found[0].count:
        found.append(coloured(pattern, reverse=True))
    return min(found, key=lambda colouring: colouring.count)


def _most_per_line(pattern: Pattern) -> int:
    """The most entries that a row has: their columns all need different colours."""
    # Two columns with an entry in the same row cannot share a product, or the two entries would be added: the
    # columns of a row need as many colours as there are.
    return int(np.bincount(pattern.rows, minlength=1).max()) if pattern.rows.size else 0


def coloured(pattern: Pattern, *, reverse: bool) -> Colouring:
    """The colours of the columns of a pattern, or of its rows when `reverse`."""
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
        raise CapabilityError(
            "The derivative of this function along a tangent cannot be traced: "
            f"{describe_error(error)}. Use method='jacrev' or 'elimination'.",
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


def compressed(traced: Traced) -> Outcome:
    """The Jacobian from one product per colour of its pattern."""
    return _arranged(traced, *_compressed_blocks(traced.graph, traced.operands))


def _compressed_blocks(graph: Graph, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
    """The outputs, and the dense blocks, per target and input, from one product per colour.

    Complex targets are pairs of real ones here: their blocks have an axis of two after the target's.
    """
    plan = colour(graph)
    with jax.numpy_dtype_promotion("standard"):
        point = jnp.concatenate([jnp.ravel(operand) for operand in operands])
    # The seed of a colour is Σ e_c over its columns, so J·seed at row r is Σ J[r, c]. By the colouring at
    # most one of these c has an entry in row r: each entry is read off the product of its own colour. In
    # reverse the same holds with rows and Jᵀ.
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
    matrix = jnp.zeros((graph.rows, point.size), point.dtype)
    matrix = matrix.at[plan.rows, plan.columns].set(entries, unique_indices=True)
    return outputs, _blocks(graph, matrix, operands)


def _split(vector: Any, operands: Sequence[Any]) -> list[Any]:
    ends = np.cumsum([operand.size for operand in operands])
    starts = [0, *ends[:-1]]
    return [
        vector[start:end].reshape(operand.shape).astype(operand.dtype)
        for start, end, operand in zip(starts, ends, operands, strict=True)
    ]


def _blocks(graph: Graph, matrix: Any, operands: Sequence[Any]) -> list[list[Any]]:
    heights = np.cumsum([real_size(atom.aval) for atom in graph.targets])[:-1]
    widths = np.cumsum([real_size(var.aval) for var in graph.inputs])[:-1]
    return [
        [
            part.reshape(*real_shape(atom.aval), *operand.shape).astype(operand.dtype)
            for part, operand in zip(jnp.split(row, widths, axis=1), operands, strict=True)
        ]
        for atom, row in zip(graph.targets, jnp.split(matrix, heights), strict=True)
    ]


SWEEPS: dict[str, Callable[..., Any]] = {"jacrev": jax.jacrev, "jacfwd": jax.jacfwd}


def sweep(method: str, traced: Traced) -> Outcome:
    """JAX's own Jacobian of the traced program, in our arrangement."""
    n_targets = traced.out_tree.num_leaves

    def targets_and_all(*operands: Any) -> tuple[list[Any], list[Any]]:
        outputs = evaluate(traced.program, operands)
        return [as_real(_as_inexact(value)) for value in outputs[:n_targets]], outputs

    positions = tuple(range(len(traced.operands)))
    rows, outputs = SWEEPS[method](targets_and_all, positions, has_aux=True)(*traced.operands)
    return _arranged(traced, outputs, rows)


def sweep_untraced(
    fun: Callable[..., Any], argnums: Any, args: Any, kwargs: dict[str, Any], reason: Exception,
    *, has_aux: bool,
) -> Outcome:  # fmt: skip
    """JAX's own Jacobian of a function that cannot become a program, or not one that can be differentiated.

    Outside of `jit`, JAX differentiates functions that look at their arguments (`if x > 0`), that make shapes
    of values, and whose derivative rules close over a value that is being traced.

    Raises:
        Exception: JAX cannot either; `reason` says why.
    """

    def both(*arguments: Any) -> tuple[Any, tuple[Any, Any]]:
        result = fun(*arguments, **kwargs)
        value, aux = result if has_aux else (result, None)
        return value, (value, aux)

    for way in SWEEPS.values():
        try:
            rows, (value, aux) = way(both, argnums, has_aux=True)(*args)
        except Exception as error:
            _log.debug("JAX cannot differentiate the untraced function: %s", describe_error(error))
        else:
            _log.info(
                "JAX differentiates this function without a trace: %s",
                describe_error(reason),
            )
            return value, aux, _in_input_dtypes(rows, value, argnums, args)
    raise reason


def _in_input_dtypes(rows: Any, value: Any, argnums: Any, args: Any) -> Any:
    """Blocks in the dtypes of the inputs; that of a complex output stays complex."""
    chosen = args[argnums] if isinstance(argnums, int) else tuple(args[k] for k in argnums)

    def cast(output: Any, row: Any) -> Any:
        if jnp.iscomplexobj(output):
            return row
        return jax.tree.map(lambda block, x: block.astype(jnp.result_type(x)), row, chosen)

    return jax.tree.map(cast, value, rows)


def _as_inexact(value: Any) -> Any:
    """Integer results have the derivative zero, which JAX takes only of floats."""
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(float)


def _arranged(traced: Traced, outputs: Any, rows: Any) -> Outcome:
    """Flat outputs and blocks in the function's trees."""
    n_targets = traced.out_tree.num_leaves
    blocks = [
        jax.tree.unflatten(
            traced.in_tree,
            [
                # `jacfwd` gives the dtype of the output; ours is that of `jacrev`, the input's.
                _complex_again(output, block.astype(operand.dtype))
                for block, operand in zip(row, traced.operands, strict=True)
            ],
        )
        for output, row in zip(outputs, rows, strict=False)
    ]
    value = jax.tree.unflatten(traced.out_tree, outputs[:n_targets])
    aux = None
    if traced.aux_tree is not None:
        aux = jax.tree.unflatten(traced.aux_tree, outputs[n_targets:])
    return value, aux, jax.tree.unflatten(traced.out_tree, blocks)


def _complex_again(output: Any, block: Any) -> Any:
    """The block of a complex output, from that of its real and imaginary part."""
    if not jnp.iscomplexobj(output):
        return block
    # For real inputs the derivative of a complex output is ∂Re + i ∂Im, as `jax.jacfwd` gives it. `jacrev`
    # refuses complex outputs: it is given the pairs.
    parts = jnp.moveaxis(block, jnp.ndim(output), 0)
    dtype = jnp.finfo(complex_dtype(block.dtype)).dtype
    return jax.lax.complex(parts[0].astype(dtype), parts[1].astype(dtype))
