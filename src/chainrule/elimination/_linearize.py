"""Linearising a function of pytrees at a point: the object behind every public entry."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._describe import describe_array
from chainrule._errors import InputError
from chainrule._jaxpr import ClosedJaxpr, trace
from chainrule._trees import with_article
from chainrule.elimination._blocks import Block, entries_of, multiply
from chainrule.elimination._counting import OperationCounts, count_operations
from chainrule.elimination._eliminate import BlockPlace, accumulate
from chainrule.elimination._flatten import flatten
from chainrule.elimination._graph import Graph, build_graph, check_linear
from chainrule.elimination._result import StructuredJacobian
from chainrule.elimination._rules import complex_dtype, term_structure
from chainrule.elimination._search import OrderStep
from chainrule.elimination._structure import Axis, zero_structure

_is_tracing: ContextVar[bool] = ContextVar("is_tracing", default=False)


def is_being_eliminated() -> bool:
    """Whether a function is being traced for its own Jacobian: what is inside will be differentiated."""
    return _is_tracing.get()


@dataclass(frozen=True)
class Traced:
    """A function traced at a point.

    Attributes:
        graph: its computational graph.
        program: the function as it was traced. JAX's sweeps run this one: its calls are compiled, and
            `jax.checkpoint` in it saves memory, as in the user's function.
        operands: the values of the graph's inputs, all of which are differentiated.
        in_tree: structure of what is differentiated: one argument, or a tuple of arguments.
        out_tree: structure of the differentiated result.
        aux_tree: structure of the auxiliary result; `None` when the function has none.
        obstacle: why the graph has no partials, so that only JAX's own sweeps are left; else `None`.
    """

    graph: Graph
    program: ClosedJaxpr
    operands: tuple[Any, ...]
    in_tree: Any
    out_tree: Any
    aux_tree: Any = None
    obstacle: Exception | None = None


_LEAVES = inspect.Signature([inspect.Parameter("differentiated", inspect.Parameter.VAR_POSITIONAL)])


def trace_function(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    has_aux: bool = False,
    needs_graph: bool = True,
) -> Traced:
    """Trace a function with respect to some arguments; all others stay as they are, untraced.

    Unless `needs_graph`, what goes wrong while the graph is built becomes the result's `obstacle`.
    """
    single = not isinstance(argnums, Sequence)
    positions, operands, in_tree = differentiated_leaves(argnums, args)

    @wraps(fun)
    def of_chosen(*differentiated: Any) -> Any:
        restored = jax.tree.unflatten(in_tree, differentiated)
        full = list(args)
        for p, value in zip(positions, (restored,) if single else restored, strict=True):
            full[p] = value
        return fun(*full, **kwargs)

    # JAX's messages name the user's function, and not by its own names what it is called with here.
    of_chosen.__signature__ = _LEAVES  # type: ignore[attr-defined]
    token = _is_tracing.set(True)
    try:
        program, _, out_tree = trace(of_chosen, *operands)
    finally:
        _is_tracing.reset(token)
    out_tree, aux_tree = _split_aux(out_tree) if has_aux else (out_tree, None)
    obstacle = None
    try:
        graph = build_graph(flatten(program), range(len(operands)), out_tree.num_leaves)
    except Exception as error:
        if needs_graph:
            raise
        # A rule of the user's that failed half-way can leave its `custom_vjp` equation unusable. Tracing the
        # same function again would give the same program: JAX remembers it.
        program, _, _ = trace(lambda *leaves: of_chosen(*leaves), *operands)
        targets = tuple(program.jaxpr.outvars[: out_tree.num_leaves])
        graph, obstacle = Graph(program, tuple(program.jaxpr.invars), targets, {}, ()), error
    return Traced(graph, program, operands, in_tree, out_tree, aux_tree, obstacle)


def differentiated_leaves(
    argnums: int | Sequence[int], args: Sequence[Any]
) -> tuple[list[int], tuple[Any, ...], Any]:
    """The positions of the arguments that are differentiated, their leaves, and the tree of these."""
    single = not isinstance(argnums, Sequence)
    named = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    positions = _checked_positions(named, len(args))
    chosen = tuple(args[p] for p in positions)
    leaves, in_tree = jax.tree.flatten(chosen[0] if single else chosen)
    operands = tuple(_checked_leaf(leaf, k, in_tree) for k, leaf in enumerate(leaves))
    return positions, operands, in_tree


def as_examples(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments, with zeros for those of which only shape and dtype are given."""

    def example(leaf: Any) -> Any:
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.zeros(leaf.shape, leaf.dtype) if is_shape else leaf

    return jax.tree.map(example, args)


def _split_aux(tree: Any) -> tuple[Any, Any]:
    children = tree.children()
    if tree.node_data() is None or tree.node_data()[0] is not tuple or len(children) != 2:
        raise InputError(
            f"With has_aux=True the function returns a pair (result, auxiliary), but it returned {tree}.",
            code="bad_aux",
        )
    return children[0], children[1]


def _checked_positions(named: Sequence[Any], count: int) -> list[int]:
    positions = [_checked_position(position, count) for position in named]
    if len(set(positions)) < len(positions):
        raise InputError(
            f"argnums names an argument more than once: {named}. A Jacobian has one block per argument.",
            code="bad_argnums",
        )
    return positions


def _checked_position(position: Any, count: int) -> int:
    try:
        position = operator.index(position)
    except TypeError:
        raise InputError(
            f"argnums is the position of an argument, or a sequence of them; found {position!r}.",
            code="bad_argnums",
        ) from None
    if not -count <= position < count:
        raise InputError(
            f"argnums names argument {position}, but the function was called with {count} positional "
            "arguments. Pass what is differentiated by position.",
            code="bad_argnums",
        )
    return position % count


def _checked_leaf(leaf: Any, index: int, tree: Any) -> Any:
    try:
        value = jnp.asarray(leaf)
    except (TypeError, ValueError):
        value = None
    if value is None or not jnp.issubdtype(value.dtype, jnp.floating):
        paths = jax.tree_util.tree_leaves_with_path(
            jax.tree.unflatten(tree, range(tree.num_leaves))
        )
        where = jax.tree_util.keystr(paths[index][0]) or "the argument"
        found = with_article(type(leaf).__name__) if value is None else describe_array(value)
        raise InputError(
            f"Jacobians are taken with respect to real floating-point arrays, but {where} is {found}. "
            f"{_remedy(value)}, or leave it out of argnums.",
            code="not_differentiable",
        )
    return value


def _remedy(value: Any) -> str:
    if value is not None and jnp.iscomplexobj(value):
        return "Make it a function of the real and the imaginary part"
    return "Convert it to a float"


@dataclass(frozen=True)
class Linearization:
    """A function at a point: its value, its Jacobian in structured blocks, and what they cost.

    Attributes:
        value: the function's result.
        aux: its auxiliary result, or `None`.
        blocks: `StructuredJacobian`s, arranged like the result of `jax.jacrev`.
        order: the steps in the order in which they were taken.
        graph: the computational graph.
    """

    value: Any
    aux: Any
    blocks: Any
    order: tuple[OrderStep, ...]
    graph: Graph = field(repr=False)

    @cached_property
    def jacobian(self) -> Any:
        """The blocks as dense arrays."""
        return as_arrays(self.blocks)

    @cached_property
    def counts(self) -> OperationCounts:
        """Multiplications and additions of the elimination."""
        return count_operations(self.graph, self.order)


def as_arrays(blocks: Any) -> Any:
    """A tree of blocks with dense arrays in their places."""

    def is_block(node: Any) -> bool:
        return isinstance(node, StructuredJacobian)

    return jax.tree.map(lambda block: block.todense(), blocks, is_leaf=is_block)


def linearize_traced(traced: Traced, order: Sequence[OrderStep]) -> Linearization:
    """Evaluate a traced function and its Jacobian by elimination in the given order."""
    check_linear(traced.graph)
    outputs, found = accumulate(traced.graph, order, traced.operands)
    return Linearization(*arrange(traced, outputs, found), tuple(order), traced.graph)


def arrange(
    traced: Traced, outputs: Sequence[Any], found: Mapping[BlockPlace, Block]
) -> tuple[Any, Any, Any]:
    """The value, the auxiliary result and the blocks of a function, in its trees."""
    outputs = [jnp.asarray(value) for value in outputs]
    n_targets = traced.out_tree.num_leaves
    rows = [
        jax.tree.unflatten(
            traced.in_tree,
            [
                _structured(found[o, i], outputs[o], operand.dtype)
                for i, operand in enumerate(traced.operands)
            ],
        )
        for o in range(n_targets)
    ]
    aux = None
    if traced.aux_tree is not None:
        aux = jax.tree.unflatten(traced.aux_tree, outputs[n_targets:])
    value = jax.tree.unflatten(traced.out_tree, outputs[:n_targets])
    return value, aux, jax.tree.unflatten(traced.out_tree, rows)


def _structured(block: Block, output: Any, dtype: Any) -> StructuredJacobian:
    """A block as a result. That of a complex output is about pairs of real numbers so far."""
    if jnp.iscomplexobj(output):
        dtype = complex_dtype(dtype)
        block = multiply(_complex_of_pairs(output.shape, dtype), block)
    return StructuredJacobian(block.structure, tuple(map(entries_of, block.values)), dtype)


def _complex_of_pairs(shape: tuple[int, ...], dtype: Any) -> Block:
    """The linear map from pairs (real, imaginary) to complex numbers."""
    # z = 1 · Re + i · Im for each element: diagonal along all axes of the array, with the value (1, i) over
    # the last axis of the pairs.
    axes = [Axis.of(v) for v in range(len(shape) + 1)]
    found = term_structure(shape, (*shape, 2), (*shape, 2), axes[:-1], axes, stored=[len(shape)])
    if found is None:
        return Block(zero_structure(shape, (*shape, 2)), ())
    return Block(found[0], (jnp.array([1, 1j], dtype),))
