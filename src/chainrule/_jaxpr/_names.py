"""The contact surface with JAX's internals: every private or version-dependent name is taken here.

`tests/_jaxpr/test_names.py` exercises each of them, so that a JAX release that moves one fails there
with its name and not somewhere deep inside a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.experimental
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import linear_util as _linear_util
from jax._src import named_sharding as _named_sharding
from jax._src import source_info_util
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _partial_eval
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var

__all__ = [
    "CALLBACKS",
    "NO_TRACE",
    "UNSPECIFIED",
    "Atom",
    "ClosedJaxpr",
    "DropVar",
    "Effect",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "aval_of",
    "bind_parameters",
    "capture_context",
    "close_program",
    "constants_first",
    "current_trace",
    "enable_x64",
    "equation_context",
    "fresh_variable",
    "hidden_batch_size",
    "is_reference",
    "is_staging",
    "is_transforming",
    "loop_input",
    "manual_axes",
    "name_stack_of",
    "permit_effect",
    "register_dead_code_rule",
    "scan_layout",
    "trace_flat",
    "trace_state",
    "user_frames_of",
]

# Lines of this package are never "the user's line" of an equation.
source_info_util.register_exclusion(str(Path(__file__).parents[1]))

# What captures around the code that is traced now want of it (`harvest`). A context is part of the key of
# each compiled program: made in the middle of a trace, it would have all programs traced again.
capture_context: Any = jax.make_user_context(None)

# In JAX's own namespace since 0.8.
enable_x64: Any = (
    jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # type: ignore[attr-defined]
)
UNSPECIFIED: Any = _named_sharding.UNSPECIFIED
DropVar = _core.DropVar
Effect = _effects.Effect
Atom: TypeAlias = Var | Literal


CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
"""Primitives that call a Python function of the user's when the program runs."""


class _TraceState:
    """`trace_state` in older versions of JAX."""

    @property
    def value(self) -> Any:
        return _core.trace_ctx.trace


# The trace that is current in a thread, and what stands there outside of all transformations. For those who
# ask at every call: `is_transforming()` takes three times as long as its one line.
trace_state: Any = getattr(_core, "trace_state_strong_ref", None) or _TraceState()
NO_TRACE: Any = _core.eval_trace


def permit_effect(effect: type[Effect]) -> None:
    """Let an effect that only protects equations from dead-code elimination occur everywhere."""
    for permitted in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        permitted.add_type(effect)


def aval_of(value: Any) -> Any:
    """The exact abstract value of an array, tracer or scalar."""
    return _core.typeof(value)


def is_reference(aval: Any) -> bool:
    """Whether an abstract value is that of a mutable array (`jax.new_ref`)."""
    return hasattr(aval, "inner_aval")


def is_transforming() -> bool:
    """Whether any JAX transformation is going on around this call."""
    return trace_state.value is not NO_TRACE


def is_staging() -> bool:
    """Whether operations become equations of a program here, also those on numbers that are known."""
    trace = _core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, _partial_eval.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def hidden_batch_size(values: Sequence[Any]) -> int:
    """How many elements the `vmap`s around this call carry beside each value that is seen here.

    1 where there is none, or where a `jit` between them and this call hides it.
    """
    return max((_batch_size(value) for value in values), default=1)


def _batch_size(value: Any) -> int:
    size = 1
    while isinstance(value, _core.Tracer):
        if isinstance(value, _batching.BatchTracer):
            if isinstance(value.batch_dim, int):
                size *= value.val.shape[value.batch_dim]
            value = value.val
        elif hasattr(value, "primal"):
            value = value.primal
        else:
            break
    return size


def loop_input() -> Any:
    """A small value that differs between iterations of the `scan` whose body is being traced.

    `None` when the innermost function being staged is not the body of a `scan`.
    """
    trace: Any = _core.trace_ctx.trace
    while not hasattr(trace, "frame") and hasattr(trace, "parent_trace"):
        trace = trace.parent_trace
    frame = getattr(trace, "frame", None)
    if frame is None or frame.debug_info.traced_for not in ("scan", "fori_loop"):
        return None
    arrays = [var for var in frame.invars if hasattr(var.aval, "size")]
    if not arrays:
        return None
    smallest = min(arrays, key=lambda var: var.aval.size)
    return trace.var_to_tracer(smallest, source_info_util.current())


def manual_axes(eqn: JaxprEqn) -> tuple[str, ...]:
    """The mesh axes that a `shard_map` divides its operands over, in the order of the mesh."""
    params = eqn.params
    names = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
    return tuple(name for name in params["mesh"].axis_names if name in names)


def scan_layout(eqn: JaxprEqn) -> tuple[int, int]:
    """How many operands of a `scan` are constants, and how many are carried.

    JAX up to 0.10 says so in two numbers, later versions in a tree of the operands.
    """
    params = eqn.params
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def fresh_variable(aval: Any) -> Var:
    """A variable that occurs nowhere else."""
    return Var(aval)


def close_program(
    invars: Sequence[Var],
    outvars: Sequence[Atom],
    eqns: Sequence[JaxprEqn],
    *,
    like: Jaxpr,
    constvars: Sequence[Var] = (),
    consts: Sequence[Any] = (),
) -> ClosedJaxpr:
    """A program from its parts; effects are those of its equations, the rest is taken from `like`."""
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    debug_info: Any = like.debug_info
    if len(debug_info.result_paths or ()) not in (0, len(outvars)):
        debug_info = debug_info._replace(result_paths=None)
    if len(debug_info.arg_names or ()) not in (0, len(invars)):
        debug_info = debug_info._replace(arg_names=None)
    jaxpr = Jaxpr(
        list(constvars), list(invars), list(outvars), list(eqns), effects, debug_info=debug_info
    )
    return ClosedJaxpr(jaxpr, list(consts))


def constants_first(jaxpr: Jaxpr) -> ClosedJaxpr:
    """A program without constants: those of the given one are its first inputs."""
    if not jaxpr.constvars:
        return ClosedJaxpr(jaxpr, ())
    return close_program([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, like=jaxpr)


def bind_parameters(eqn: JaxprEqn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `primitive.bind` wants before and after the operands.

    JAX up to 0.9 returned wrapped functions that go in front of the operands; later versions keep
    them among the parameters.
    """
    bound = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(bound, tuple):
        functions, params = bound
        return tuple(functions), params
    return (), bound


def equation_context(eqn: JaxprEqn) -> Any:
    """The context an equation was traced in: source line, name stack, compute type."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)


def trace_flat(function: Any, avals: Sequence[Any], *, debug_info: Any = None) -> ClosedJaxpr:
    """Trace a flat function (a list of arrays out) at exact abstract values.

    Unlike `jax.make_jaxpr` this keeps weak types, shardings and varying manual axes of the avals, so
    that the result can stand in the place of a sub-program.
    """
    if debug_info is None:
        debug_info = _linear_util.DebugInfo("rewritten", "chainrule", None, None)
    wrapped = _linear_util.wrap_init(function, debug_info=debug_info)
    jaxpr, _, consts, *_ = _partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return ClosedJaxpr(jaxpr, list(consts))


def register_dead_code_rule(
    primitive: Primitive,
    rule: Callable[[list[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]],
) -> None:
    """How dead-code elimination treats a primitive: which inputs are used, and the equation that stays.

    JAX 0.12 also passes which inputs are live, between the two arguments of the rule.
    """

    def with_any_arguments(used: list[bool], *others: Any) -> tuple[list[bool], JaxprEqn | None]:
        return rule(used, others[-1])

    _partial_eval.dce_rules[primitive] = with_any_arguments


def user_frames_of(eqn: JaxprEqn) -> Iterator[Any]:
    """The frames outside JAX of the line that made an equation and of its callers, innermost first."""
    return iter(source_info_util.user_frames(eqn.source_info.traceback))


def name_stack_of(eqn: JaxprEqn) -> str:
    """The names and transformations around an equation, as `transpose(jvp(layer))/…`."""
    return str(eqn.source_info.name_stack)


def current_trace() -> Any:
    """An opaque object that is equal exactly while the same trace is current."""
    return _core.get_opaque_trace_state(convention="chainrule")
