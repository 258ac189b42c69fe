"""Whether a program is linear in some of its inputs, proved from its equations.

A rule of a `custom_jvp` or `custom_vjp` function maps tangents to tangents, or cotangents to cotangents.
JAX runs it as it is; only if it is linear is there a matrix that can be multiplied with others. Rules that
clip, round, normalise or return a constant are legal, and are not linear.

Every variable is one of

    FIXED     it does not depend on the directions (the inputs in question)
    ZERO      it is 0
    LINEAR    it is a linear function of the directions

and a table says in which operands a primitive is linear. An equation that the table does not cover, applied
to something linear, ends the proof. The proof is about values; elimination needs derivatives. For the
primitives of the table these agree. They do not for `stop_gradient`, nor for a function with a rule of its
own inside of a loop, so these end the proof, too. (Outside of loops `traced_rule` inlines such a function.)

Every operation rounds, and the proof overlooks that as long as it rounds no more coarsely than the directions
or the results are rounded themselves. A rule that compresses a float32 cotangent to bfloat16 on its way is a
step function, not a linear one. A rule that computes in float32 for bfloat16 operands, and casts its result
back, is linear.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    CALLS,
    ClosedJaxpr,
    DropVar,
    JaxprEqn,
    Literal,
    Var,
    as_function,
    locate,
    scan_layout,
    subprograms,
    trace_avals,
)
from chainrule.elimination._flatten import flatten

_WITH_RULES = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})


def why_no_matrix(eqn: JaxprEqn, wanted: Sequence[int] | None = None) -> str | None:
    """What keeps the derivative of an equation from being linear: a user's rule, at any depth inside.

    `None` where every rule is linear, or where there are none. A rule may refuse a derivative with respect to
    some operands, so it is asked about the wanted ones only, where these are known.
    """
    if eqn.primitive.name in _WITH_RULES:
        if wanted is None:
            wanted = [k for k, atom in enumerate(eqn.invars) if _is_inexact(atom.aval)]
        program, directions = traced_rule(eqn, wanted)
        return why_not_linear(program, directions)
    for sub in subprograms(eqn):
        for inner in sub.program.jaxpr.eqns:
            reason = why_no_matrix(inner)
            if reason is not None:
                return reason
    return None


def traced_rule(eqn: JaxprEqn, wanted: Sequence[int]) -> tuple[ClosedJaxpr, range]:
    """The rule of a function with a derivative of its own, and the positions of the directions in it.

    Its inputs are the operands of the equation, then tangents of the wanted operands (`custom_jvp`) or
    cotangents of the inexact results (`custom_vjp`); its outputs are tangents of these results, or cotangents
    of these operands. The rule is a function that is run, not differentiated. So what it calls is inlined,
    and a rule of what it calls (or its own: a rule may apply the function to the tangent) does not matter.
    """
    count = len(eqn.invars)
    results = [k for k, var in enumerate(eqn.outvars) if _is_inexact(var.aval)]

    def restricted(operands: Sequence[Any]) -> Callable[..., list[Any]]:
        def function(*inputs: Any) -> list[Any]:
            full = list(operands)
            for position, value in zip(wanted, inputs, strict=True):
                full[position] = value
            outputs = as_function(eqn)(*full)
            return [outputs[k] for k in results]

        return function

    def push(*values: Any) -> list[Any]:
        operands, tangents = values[:count], values[count:]
        return jax.jvp(restricted(operands), [operands[p] for p in wanted], list(tangents))[1]

    def pull(*values: Any) -> list[Any]:
        operands, cotangents = values[:count], values[count:]
        _, back = jax.vjp(restricted(operands), *(operands[p] for p in wanted))
        return list(back(list(cotangents)))

    is_forward = eqn.primitive.name == "custom_jvp_call"
    given = [eqn.invars[p] for p in wanted] if is_forward else [eqn.outvars[k] for k in results]
    avals = [*(atom.aval for atom in eqn.invars), *(atom.aval for atom in given)]
    program = trace_avals(push if is_forward else pull, avals)
    return flatten(program, also=_WITH_RULES), range(count, len(avals))


def _is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


class _State(enum.Enum):
    FIXED = "fixed"
    ZERO = "zero"
    LINEAR = "linear"


class _NotLinearError(Exception):
    """The proof fails here (internal signal)."""


def why_not_linear(program: ClosedJaxpr, directions: Collection[int]) -> str | None:
    """What keeps a program from being linear in the inputs at some positions; `None` if it is linear."""
    count = len(program.jaxpr.invars)
    given = [_State.LINEAR if k in directions else _State.FIXED for k in range(count)]
    try:
        states = _run(program, given, _precisions(program, directions))
    except _NotLinearError as error:
        return str(error)
    for atom, state in zip(program.jaxpr.outvars, states, strict=True):
        if state is _State.FIXED and _is_inexact(atom.aval):
            return "a result that does not depend on the direction, and is not known to be 0"
    return None


class _Precision(NamedTuple):
    """How a dtype rounds: digits of its numbers, and the powers of two between which they are."""

    digits: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, dtype: Any) -> _Precision:
        info = jnp.finfo(dtype)
        return cls(int(info.nmant), int(info.minexp), int(info.maxexp))

    def holds(self, other: _Precision) -> bool:
        """Whether all numbers of another precision can be written in this one."""
        is_wider = self.lowest <= other.lowest and self.highest >= other.highest
        return self.digits >= other.digits and is_wider


def _precisions(program: ClosedJaxpr, directions: Collection[int]) -> frozenset[_Precision]:
    """The precisions of the directions and of the results."""
    jaxpr = program.jaxpr
    ends = [*(jaxpr.invars[k].aval for k in directions), *(atom.aval for atom in jaxpr.outvars)]
    return frozenset(_Precision.of(aval.dtype) for aval in ends if _is_inexact(aval))


def _is_coarse(eqn: JaxprEqn, result: Any, ends: frozenset[_Precision]) -> bool:
    """Whether an equation rounds a result more coarsely than all ends of the program are rounded."""
    if not _is_inexact(result.aval):
        return False
    precision = _Precision.of(result.aval.dtype)
    if eqn.primitive.name == "reduce_precision":
        highest = 2 ** (eqn.params["exponent_bits"] - 1)
        digits = min(precision.digits, eqn.params["mantissa_bits"])
        precision = _Precision(
            digits, max(precision.lowest, 2 - highest), min(precision.highest, highest)
        )
    return not any(precision.holds(end) for end in ends)


def _run(
    program: ClosedJaxpr, given: Sequence[_State], ends: frozenset[_Precision]
) -> list[_State]:
    """The states of a program's outputs, from those of its inputs."""
    jaxpr = program.jaxpr
    states: dict[Var, _State] = {
        var: _state_of_constant(value)
        for var, value in zip(jaxpr.constvars, program.consts, strict=True)
    }
    states.update(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> _State:
        return _state_of_constant(atom.val) if isinstance(atom, Literal) else states[atom]

    needed = _needed(program)
    for eqn in jaxpr.eqns:
        if any(var in needed for var in eqn.outvars if not isinstance(var, DropVar)):
            results = _step(eqn, [read(a) for a in eqn.invars], ends)
            for var, state in zip(eqn.outvars, results, strict=True):
                if state is _State.LINEAR and _is_coarse(eqn, var, ends):
                    raise _fail(eqn)
                states[var] = state
    return [read(atom) for atom in jaxpr.outvars]


def _state_of_constant(value: Any) -> _State:
    # Literals are arrays of a class of JAX's own in some versions, so the class is not asked for.
    is_array = hasattr(value, "__array__") and not isinstance(value, jax.core.Tracer)
    if not (is_array or isinstance(value, (int, float, complex))):
        return _State.FIXED
    dtype = value.dtype if is_array else np.result_type(value)
    is_zero = jnp.issubdtype(dtype, jnp.number) and not np.any(np.asarray(value))
    return _State.ZERO if is_zero else _State.FIXED


def _needed(program: ClosedJaxpr) -> set[Var]:
    """The variables that the outputs depend on."""
    needed = {atom for atom in program.jaxpr.outvars if not isinstance(atom, Literal)}
    for eqn in reversed(program.jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    return needed


def _step(eqn: JaxprEqn, operands: list[_State], ends: frozenset[_Precision]) -> Sequence[_State]:
    name = eqn.primitive.name
    if name in _WITH_PROGRAMS:
        return _WITH_PROGRAMS[name](eqn, operands, ends)
    stepper = _STEPS.get(name)
    if stepper is not None:
        return stepper(eqn, operands)
    if name in _LINEAR_IN:
        state = _in_some(eqn, operands, _LINEAR_IN[name])
    else:
        if _State.LINEAR in operands:
            raise _fail(eqn)
        state = _State.FIXED
    return [state] * len(eqn.outvars)


def _fail(eqn: JaxprEqn) -> _NotLinearError:
    where = locate(eqn)
    return _NotLinearError(f"`{eqn.primitive.name}`{f' at {where}' if where else ''}")


def _in_some(eqn: JaxprEqn, operands: list[_State], positions: Sequence[int] | None) -> _State:
    """The result of a primitive that is linear in the operands at some positions together."""
    chosen = range(len(operands)) if positions is None else [p % len(operands) for p in positions]
    inside = {operands[p] for p in chosen}
    outside = {state for p, state in enumerate(operands) if p not in chosen}
    if _State.LINEAR in outside or inside >= {_State.LINEAR, _State.FIXED}:
        raise _fail(eqn)
    if _State.LINEAR in inside:
        return _State.LINEAR
    return _State.FIXED if _State.FIXED in inside else _State.ZERO


def _bilinear(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    """A product: linear in one factor, for a fixed other one.

    0·x is 0 here, also for an x that is infinite when the program runs. Such a 0 is the tangent of an operand
    that has none (JAX gives a rule zeros for it), and elimination leaves out what does not depend on it.
    """
    if operands.count(_State.LINEAR) > 1:
        raise _fail(eqn)
    # 0 · anything is 0; linear · fixed is linear; fixed · fixed is fixed. (Linear · linear is quadratic.)
    for state in (_State.ZERO, _State.LINEAR):
        if state in operands:
            return [state]
    return [_State.FIXED]


def _each(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    """As many results as operands, each a linear function of its own."""
    return operands


def _gather(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    """Places that do not exist read the fill value, which is NaN by default."""
    is_filled = eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    if is_filled and eqn.params["fill_value"] != 0:
        return _only_fixed(eqn, operands)
    return [_in_some(eqn, operands, (0,))]


def _convert(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    if not _is_inexact(eqn.outvars[0].aval):
        return _only_fixed(eqn, operands)
    return operands


def _integer_pow(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    return operands if eqn.params["y"] == 1 else _only_fixed(eqn, operands)


def _only_fixed(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    if _State.LINEAR in operands:
        raise _fail(eqn)
    return [_State.FIXED] * len(eqn.outvars)


def _linear_solve(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    """Operands are the constants of the operators, then the right-hand side, in which it is linear."""
    n_constants = sum(eqn.params["const_lengths"])
    state = _in_some(eqn, operands, range(n_constants, len(operands)))
    return [state] * len(eqn.outvars)


def _call(eqn: JaxprEqn, operands: list[_State], ends: frozenset[_Precision]) -> list[_State]:
    (sub,) = subprograms(eqn)
    return _run(sub.program, operands, ends)


def _cond(eqn: JaxprEqn, operands: list[_State], ends: frozenset[_Precision]) -> list[_State]:
    if operands[0] is _State.LINEAR:
        raise _fail(eqn)
    branches = [_run(sub.program, operands[1:], ends) for sub in subprograms(eqn)]
    states = branches[0]
    for branch in branches[1:]:
        states = _joined(eqn, states, branch)
    return states


def _scan(eqn: JaxprEqn, operands: list[_State], ends: frozenset[_Precision]) -> list[_State]:
    (body,) = subprograms(eqn)
    n_constants, n_carry = scan_layout(eqn)
    constants, scanned = operands[:n_constants], operands[n_constants + n_carry :]

    def step(carry: list[_State]) -> list[_State]:
        return _run(body.program, [*constants, *carry, *scanned], ends)

    return _until_stable(eqn, step, operands[n_constants : n_constants + n_carry])


def _while(eqn: JaxprEqn, operands: list[_State], ends: frozenset[_Precision]) -> list[_State]:
    condition, body = subprograms(eqn)
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    constants = operands[n_cond : n_cond + n_body]

    def step(carry: list[_State]) -> list[_State]:
        return _run(body.program, [*constants, *carry], ends)

    states = _until_stable(eqn, step, operands[n_cond + n_body :])
    if _State.LINEAR in _run(condition.program, [*operands[:n_cond], *states], ends):
        raise _fail(eqn)
    return states


def _until_stable(
    eqn: JaxprEqn, step: Callable[[list[_State]], list[_State]], carry: list[_State]
) -> list[_State]:
    """The states of a loop's results. A carry may rise from zero to fixed or linear, once, so this ends."""
    while True:
        results = step(carry)
        joined = _joined(eqn, carry, results[: len(carry)])
        if joined == carry:
            return [*carry, *results[len(carry) :]]
        carry = joined


def _joined(eqn: JaxprEqn, first: list[_State], second: list[_State]) -> list[_State]:
    """What is one or the other. Neither fixed nor linear is not linear."""
    joined = []
    for a, b in zip(first, second, strict=True):
        if {a, b} == {_State.FIXED, _State.LINEAR}:
            raise _fail(eqn)
        joined.append(b if a is _State.ZERO else a)
    return joined


_MOVES = (
    "all_gather", "all_to_all", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum", "expand_dims",
    "fft", "imag", "layout_constraint", "name", "neg", "ppermute", "pvary", "real", "reduce_precision",
    "reduce_scatter", "reduce_sum", "reduce_window_sum", "reshape", "reshard", "rev", "sharding_constraint",
    "slice", "split", "squeeze", "stack", "tile", "transpose", "unstack",
)  # fmt: skip

# The positions of the operands in which a primitive is linear together; `None` for all of them.
_LINEAR_IN: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(_MOVES),
    **dict.fromkeys(("add", "add_any", "sub", "complex", "conj", "pad")),
    **dict.fromkeys(("div", "dynamic_slice", "select_and_scatter_add", "select_and_gather_add"), (0,)),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), (0, 2)),
    "dynamic_update_slice": (0, 1),
    "triangular_solve": (1,),
    "tridiagonal_solve": (3,),
}  # fmt: skip


def _select(eqn: JaxprEqn, operands: list[_State]) -> list[_State]:
    return [_in_some(eqn, operands, range(1, len(operands)))]


_STEPS: dict[str, Callable[[JaxprEqn, list[_State]], Sequence[_State]]] = {
    **dict.fromkeys(("mul", "dot_general", "conv_general_dilated"), _bilinear),
    **dict.fromkeys(("optimization_barrier", "device_put", "psum", "psum2", "psum_invariant"), _each),
    "select_n": _select,
    "gather": _gather,
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "custom_linear_solve": _linear_solve,
}  # fmt: skip

_WITH_PROGRAMS: dict[str, Callable[..., Sequence[_State]]] = {
    **dict.fromkeys((*CALLS, "remat", "remat2", "checkpoint"), _call),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
