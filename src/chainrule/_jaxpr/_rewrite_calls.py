"""Call-like equations around rewritten programs: `jit`, `remat`, custom derivatives, `shard_map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from chainrule._jaxpr._evaluate import bind_equation, trace_avals
from chainrule._jaxpr._extras import Extra
from chainrule._jaxpr._names import UNSPECIFIED, manual_axes
from chainrule._jaxpr._programs import subprograms

if TYPE_CHECKING:
    from chainrule._jaxpr._rewrite import Rewriter

# Parameters with one entry per operand or per result, and what the new ones get.
_PER_OPERAND = {
    "in_shardings": UNSPECIFIED, "in_layouts": None, "donated_invars": False, "prevent_cse": True
}  # fmt: skip
_PER_RESULT = {"out_shardings": UNSPECIFIED, "out_layouts": None}


def bind_call(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Bind a call with more results; arrays that the new program captured become operands."""
    (sub,) = subprograms(eqn)
    staged = rewriter.stage(sub.program, loops)
    captured = list(staged.program.consts)
    params = dict(eqn.params)
    params[sub.parameter] = _held_like(eqn.params[sub.parameter], staged.opened)
    for name, default in _PER_OPERAND.items():
        if isinstance(params.get(name), tuple):
            params[name] = (default,) * len(captured) + params[name]
    for name, default in _PER_RESULT.items():
        if name in params:
            params[name] += (default,) * (len(staged.program.out_avals) - staged.n_outputs)
    return staged.split(bind_equation(eqn, [*captured, *operands], params))


def inline(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Run the called program in the place of the call."""
    (sub,) = subprograms(eqn)
    return rewriter.run(sub.program, operands, loops)


def bind_custom_derivative(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Results from the equation itself, extras from a second copy of its program.

    The custom rule says nothing about inner values, so these get their ordinary derivative. The copy
    costs nothing: XLA merges it with the first.
    """
    (sub,) = subprograms(eqn)
    results, extras = rewriter.run(sub.program, operands, loops)
    if rewriter.substitutes:
        return results, extras
    bare = trace_avals(lambda *inputs: rewriter.run(sub.program, inputs)[0], sub.program.in_avals)
    held = _held_like(eqn.params[sub.parameter], bare)
    return bind_equation(eqn, operands, {**eqn.params, sub.parameter: held}), extras


def bind_shard_map(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Every device hands out its own extras: they get one leading axis per manual mesh axis."""
    (sub,) = subprograms(eqn)
    params = eqn.params
    axes = manual_axes(eqn)
    notes: dict[str, Any] = {}

    def function(*inputs: Any) -> tuple[list[Any], list[Any]]:
        outputs, extras = rewriter.run(sub.program, inputs, loops)
        leaves, notes["tree"] = jax.tree.flatten(extras)
        return outputs, [jnp.expand_dims(leaf, tuple(range(len(axes)))) for leaf in leaves]

    outputs, leaves = jax.shard_map(
        function,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=(list(params["out_specs"]), jax.sharding.PartitionSpec(*axes)),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )(*operands)
    return outputs, jax.tree.unflatten(notes["tree"], leaves)


def _held_like(held: Any, program: ClosedJaxpr) -> Any:
    """Some primitives hold closed programs, others open ones."""
    return program if isinstance(held, ClosedJaxpr) else program.jaxpr
