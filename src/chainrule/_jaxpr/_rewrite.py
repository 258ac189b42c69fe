"""The rewriter: programs that give values from their inside, or use other values there.

A rewriter runs a program equation by equation. The equations its `claim` takes over may hand out
*extras*, arrays that leave the program beside its outputs; every other equation is bound as it was. A
higher-order equation that holds a claimed one is bound again around a rewritten sub-program, and its
extras leave as the primitive lets them:

    jit, remat, closed_call, …   as they are
    custom_jvp, custom_vjp       as they are; the results keep the custom derivative, the extras have
                                 the ordinary one of the program that computes them
    scan                         stacked over the iterations, or folded into one value
    while                        folded into one value (the last one when nothing else is asked), with
                                 the number of executions
    cond                         of every branch, zeros for those that did not run, with a flag
    shard_map                    with one leading axis per mesh axis

Any other primitive that holds a claimed equation is an error that names it: nothing is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from chainrule._errors import CapabilityError
from chainrule._jaxpr._evaluate import bind_equation, evaluate, trace_avals
from chainrule._jaxpr._folds import FOLDS, Fold
from chainrule._jaxpr._names import (
    UNSPECIFIED,
    ClosedJaxpr,
    JaxprEqn,
    aval_of,
    close_program,
    scan_layout,
)
from chainrule._jaxpr._programs import SubProgram, subprograms
from chainrule._jaxpr._source import locate

__all__ = ["Claim", "Extra", "Rewriter"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Extra:
    """Arrays that leave a program beside its outputs.

    Attributes:
        leaves: the arrays.
        label: what they are; carried along and compared, never looked into.
        fold: how a loop combines them; `None` stacks them where the number of iterations is known.
        open_fold: how a loop without a known number of iterations combines them when `fold` is `None`;
            `None` keeps the last.
        taken: whether the place they come from was reached, as a boolean array; `None`: always.
        count: how often it was reached inside `while` loops; `None` outside of them.
    """

    leaves: tuple[Any, ...]
    label: Any = field(metadata={"static": True})
    fold: Fold | None = field(default=None, metadata={"static": True})
    open_fold: Fold | None = field(default=None, metadata={"static": True})
    taken: Any = None
    count: Any = None


class Claim(Protocol):
    """Runs one equation differently: its results and extras, or `None` to leave it alone.

    `loops` are the iteration numbers of the loops around it, outermost first.
    """

    def __call__(
        self, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
    ) -> tuple[Sequence[Any], Sequence[Extra]] | None: ...


@dataclass(frozen=True)
class _Staged:
    """A rewritten sub-program: outputs first, then the leaves of its extras."""

    program: ClosedJaxpr
    n_outputs: int
    extras_tree: Any

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        outputs, leaves = list(values[: self.n_outputs]), values[self.n_outputs :]
        return outputs, jax.tree.unflatten(self.extras_tree, leaves)

    def run(self, operands: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        return self.split(evaluate(self.program, operands))

    @property
    def extras(self) -> list[Extra]:
        """The extras with abstract leaves."""
        return self.split(self.program.out_avals)[1]


class Rewriter:
    """Runs programs with some equations claimed.

    Args:
        claim: runs an equation differently.
        is_claimed: whether `claim` takes an equation over; decides which sub-programs are entered.
        substitutes: the claimed equations get other results, so a custom derivative around them no
            longer describes the program and is dropped. Loops then count their iterations for `claim`.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        is_claimed: Callable[[JaxprEqn], bool],
        substitutes: bool = False,
    ) -> None:
        self.claim = claim
        self.is_claimed = is_claimed
        self.substitutes = substitutes
        self._holds: dict[int, tuple[Any, bool]] = {}

    def run(
        self, program: ClosedJaxpr, operands: Sequence[Any], loops: tuple[Any, ...] = ()
    ) -> tuple[list[Any], list[Extra]]:
        """The outputs of a program, and the extras in execution order."""
        extras: list[Extra] = []

        def rule(eqn: JaxprEqn, values: list[Any]) -> Sequence[Any] | None:
            done = self._apply(eqn, values, loops)
            if done is None:
                return None
            results, more = done
            extras.extend(more)
            return results

        return evaluate(program, operands, rule), extras

    def _apply(
        self, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
    ) -> tuple[Sequence[Any], Sequence[Extra]] | None:
        if self.is_claimed(eqn):
            return self.claim(eqn, operands, loops)
        held = [sub for sub in subprograms(eqn) if self.holds(sub.program)]
        if not held:
            return None
        binder = _BINDERS.get(eqn.primitive.name)
        if binder is None or any(sub.role in ("operator", "combiner", "unknown") for sub in held):
            raise _cannot_enter(eqn)
        return binder(self, eqn, operands, loops)

    def holds(self, program: ClosedJaxpr) -> bool:
        """Whether a program holds a claimed equation at any depth."""
        key = id(program.jaxpr)
        if key not in self._holds:
            found = any(
                self.is_claimed(eqn) or any(self.holds(sub.program) for sub in subprograms(eqn))
                for eqn in program.jaxpr.eqns
            )
            self._holds[key] = (program, found)  # keeps the program alive, so the id stays its own
        return self._holds[key][1]

    def stage(
        self, program: ClosedJaxpr, loops: tuple[Any, ...] = (), *, counted: bool = False
    ) -> _Staged:
        """Trace a rewritten sub-program; when `counted`, an iteration number is its first input."""
        avals = list(program.in_avals)
        notes: dict[str, Any] = {}

        def function(*inputs: Any) -> list[Any]:
            here = (*loops, inputs[0]) if counted else loops
            outputs, extras = self.run(program, inputs[1:] if counted else inputs, here)
            leaves, notes["tree"] = jax.tree.flatten(extras)
            return [*outputs, *leaves]

        if counted:
            avals.insert(0, aval_of(jnp.int32(0)))
        staged = trace_avals(function, avals)
        return _Staged(staged, len(program.out_avals), notes["tree"])


def _cannot_enter(eqn: JaxprEqn) -> CapabilityError:
    name = eqn.primitive.name
    return CapabilityError(
        f"Cannot look inside the primitive {name!r} at {locate(eqn) or 'an unknown line'}: it holds a "
        "tagged value, and how often and where its program runs is not known. Move the `sow` outside "
        f"of {name!r}.",
        code="cannot_look_inside",
        details={"primitive": name},
    )


# --- call-like primitives ------------------------------------------------------------------------


def _bind_call(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Bind a call around its rewritten program; arrays that program captured become operands."""
    (sub,) = subprograms(eqn)
    staged = rewriter.stage(sub.program, loops)
    jaxpr, captured = staged.program.jaxpr, list(staged.program.consts)
    opened = close_program(
        [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, like=jaxpr
    )
    held = eqn.params[sub.parameter]
    params = dict(eqn.params)
    params[sub.parameter] = opened if isinstance(held, ClosedJaxpr) else opened.jaxpr
    n_extras = len(jaxpr.outvars) - staged.n_outputs
    for name, (leading, trailing) in _PER_OPERAND.items():
        if isinstance(params.get(name), tuple):
            before, after = (leading,) * len(captured), (trailing,) * n_extras
            is_output = name.startswith("out_")
            params[name] = (*params[name], *after) if is_output else (*before, *params[name])
    return staged.split(bind_equation(eqn, [*captured, *operands], params))


# Parameters of call-like primitives with one entry per operand or result, and what new ones get.
_PER_OPERAND: dict[str, tuple[Any, Any]] = {
    "in_shardings": (UNSPECIFIED, None),
    "in_layouts": (None, None),
    "donated_invars": (False, None),
    "prevent_cse": (True, None),
    "out_shardings": (None, UNSPECIFIED),
    "out_layouts": (None, None),
}


def _inline(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    (sub,) = subprograms(eqn)
    return rewriter.run(sub.program, operands, loops)


def _custom_derivative(
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
    held = eqn.params[sub.parameter]
    bare = bare if isinstance(held, ClosedJaxpr) else bare.jaxpr
    return bind_equation(eqn, operands, {**eqn.params, sub.parameter: bare}), extras


def _shard_map(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    (sub,) = subprograms(eqn)
    params = eqn.params
    axes = [name for name in params["mesh"].axis_names if name in params["manual_axes"]]
    notes: dict[str, Any] = {}

    def function(*inputs: Any) -> tuple[list[Any], list[Any]]:
        outputs, extras = rewriter.run(sub.program, inputs, loops)
        leaves, notes["tree"] = jax.tree.flatten(extras)
        leading = tuple(range(len(axes)))
        return outputs, [jnp.expand_dims(leaf, leading) for leaf in leaves]

    outputs, leaves = jax.shard_map(
        function,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=(list(params["out_specs"]), jax.sharding.PartitionSpec(*axes)),
        axis_names=set(params["manual_axes"]),
        check_vma=params["check_vma"],
    )(*operands)
    return outputs, jax.tree.unflatten(notes["tree"], leaves)


# --- loops ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Progress:
    """One folded extra on its way through a loop.

    The state is (the fold's state, iterations taken in, executions): an iteration may stand for many
    executions when it holds a `while` loop itself.
    """

    like: Extra
    fold: Fold
    in_while: bool

    def start(self) -> _State:
        return list(self.fold.start(self.like.leaves)), jnp.int32(0), jnp.int32(0)

    def step(self, state: _State, extra: Extra) -> _State:
        old, taken_in, count = state
        new = list(self.fold.step(old, extra.leaves, taken_in))
        executions = 1 if extra.count is None else extra.count
        if extra.taken is None:
            return new, taken_in + 1, count + executions
        after = (new, taken_in + 1, count + executions)
        return jax.tree.map(lambda n, o: jnp.where(extra.taken, n, o), after, state)

    def finish(self, state: _State) -> Extra:
        leaves, taken_in, count = state
        may_be_missing = self.in_while or self.like.taken is not None
        return replace(
            self.like,
            leaves=tuple(self.fold.finish(leaves, taken_in)),
            taken=taken_in > 0 if may_be_missing else None,
            count=count if self.in_while or self.like.count is not None else None,
        )


_State = tuple[list[Any], Any, Any]


def _scan(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    (sub,) = subprograms(eqn)
    params = eqn.params
    n_constants, n_carry = scan_layout(eqn)
    constants = operands[:n_constants]
    init, xs = operands[n_constants : n_constants + n_carry], operands[n_constants + n_carry :]
    counted = rewriter.substitutes
    staged = rewriter.stage(sub.program, loops, counted=counted)
    folded = {
        position: _Progress(extra, extra.fold, False)
        for position, extra in enumerate(staged.extras)
        if extra.fold is not None
    }
    backwards = params["reverse"]
    last = params["length"] - 1

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        inner, states, step = carry
        number = [last - step if backwards else step] if counted else []
        outputs, extras = staged.run([*number, *constants, *inner, *x])
        new = {position: folded[position].step(states[position], extras[position]) for position in folded}
        stacked = [extra for position, extra in enumerate(extras) if position not in folded]
        return (outputs[:n_carry], new, step + 1), (outputs[n_carry:], stacked)

    start = {position: progress.start() for position, progress in folded.items()}
    (carry, states, _), (ys, stacked) = jax.lax.scan(
        body, (init, start, jnp.int32(0)), xs,
        length=params["length"], reverse=backwards, unroll=params["unroll"],
    )  # fmt: skip
    ready = iter(stacked)
    extras = [
        folded[position].finish(states[position]) if position in folded else next(ready)
        for position in range(len(staged.extras))
    ]
    return [*carry, *ys], extras


def _while(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    constants = operands[:n_cond], operands[n_cond : n_cond + n_body]
    condition, body = (
        _LoopPart(rewriter, sub, list(own), loops)
        for sub, own in zip(subprograms(eqn), constants, strict=True)
    )
    init = operands[n_cond + n_body :]
    if rewriter.holds(subprograms(eqn)[0].program):
        carry, states = _while_watching_condition(condition, body, init)
    else:
        carry, states = _while_watching_body(condition, body, init)
    parts = zip((condition, body), states, strict=True)
    return list(carry), [extra for part, state in parts for extra in part.finish(state)]


class _LoopPart:
    """The condition or the body of a `while` loop, with what it has handed out so far."""

    def __init__(
        self, rewriter: Rewriter, sub: SubProgram, constants: list[Any], loops: tuple[Any, ...]
    ) -> None:
        self.counted = rewriter.substitutes
        self.constants = constants
        self.staged = rewriter.stage(sub.program, loops, counted=self.counted)
        self.progress = [
            _Progress(extra, extra.fold or extra.open_fold or FOLDS["last"], True)
            for extra in self.staged.extras
        ]

    def start(self) -> list[_State]:
        return [each.start() for each in self.progress]

    def run(self, step: Any, carry: list[Any], states: list[_State]) -> tuple[list[Any], list[_State]]:
        number = [step] if self.counted else []
        outputs, extras = self.staged.run([*number, *self.constants, *carry])
        steps = zip(self.progress, states, extras, strict=True)
        return outputs, [each.step(state, extra) for each, state, extra in steps]

    def finish(self, states: list[_State]) -> list[Extra]:
        return [each.finish(state) for each, state in zip(self.progress, states, strict=True)]


def _while_watching_body(
    condition: _LoopPart, body: _LoopPart, init: list[Any]
) -> tuple[list[Any], tuple[list[_State], list[_State]]]:
    def proceed(state: Any) -> Any:
        step, carry, _ = state
        return condition.run(step, carry, [])[0][0]

    def iterate(state: Any) -> Any:
        step, carry, done = state
        return step + 1, *body.run(step, carry, done)

    start = (jnp.int32(0), init, body.start())
    _, carry, done = jax.lax.while_loop(proceed, iterate, start)
    return carry, ([], done)


def _while_watching_condition(
    condition: _LoopPart, body: _LoopPart, init: list[Any]
) -> tuple[list[Any], tuple[list[_State], list[_State]]]:
    """The condition moves to the end of each iteration, and in front of the first one."""

    def iterate(state: Any) -> Any:
        _, step, carry, (asked, done) = state
        carry, done = body.run(step, carry, done)
        (proceed,), asked = condition.run(step + 1, carry, asked)
        return proceed, step + 1, carry, (asked, done)

    first = jnp.int32(0)
    (proceed,), asked = condition.run(first, init, condition.start())
    start = (proceed, first, init, (asked, body.start()))
    _, _, carry, states = jax.lax.while_loop(lambda state: state[0], iterate, start)
    return carry, states


# --- branches ------------------------------------------------------------------------------------


def _cond(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Every branch hands out the extras of all, with its own filled in and flagged as taken."""
    branches = [rewriter.stage(sub.program, loops) for sub in subprograms(eqn)]
    slots, places = _share_slots([staged.extras for staged in branches])

    def make(staged: _Staged, own: dict[int, int]) -> Callable[..., Any]:
        def branch(*inputs: Any) -> Any:
            outputs, extras = staged.run(inputs)
            filled = [_present(extras[own[n]]) if n in own else _absent(slot) for n, slot in enumerate(slots)]
            return outputs, filled

        return branch

    functions = [make(staged, own) for staged, own in zip(branches, places, strict=True)]
    outputs, extras = jax.lax.switch(operands[0], functions, *operands[1:])
    everywhere = [all(n in own for own in places) for n in range(len(slots))]
    return outputs, [
        replace(extra, taken=None) if always and slot.taken is None else extra
        for extra, slot, always in zip(extras, slots, everywhere, strict=True)
    ]


def _share_slots(branches: list[list[Extra]]) -> tuple[list[Extra], list[dict[int, int]]]:
    """Equal extras of different branches share a slot: at most one of them exists.

    Returns the slots, and per branch where in its extras each of its slots is.
    """
    slots: list[Extra] = []
    places: list[dict[int, int]] = []
    for extras in branches:
        own: dict[int, int] = {}
        for position, extra in enumerate(extras):
            free = (n for n, slot in enumerate(slots) if n not in own and _alike(slot, extra))
            slot = next(free, len(slots))
            if slot == len(slots):
                slots.append(extra)
            own[slot] = position
        places.append(own)
    return slots, places


def _alike(one: Extra, other: Extra) -> bool:
    def shape(extra: Extra) -> Any:
        leaves, tree = jax.tree.flatten(extra)
        return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]

    return one.label == other.label and shape(one) == shape(other)


def _present(extra: Extra) -> Extra:
    return replace(extra, taken=jnp.bool_(True)) if extra.taken is None else extra


def _absent(like: Extra) -> Extra:
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return replace(blank, taken=jnp.bool_(False) if blank.taken is None else blank.taken)


_Binder = Callable[[Rewriter, JaxprEqn, list[Any], tuple[Any, ...]], tuple[list[Any], list[Extra]]]

_BINDERS: dict[str, _Binder] = {
    "jit": _bind_call,
    "pjit": _bind_call,
    "remat": _bind_call,
    "remat2": _bind_call,
    "checkpoint": _bind_call,
    "closed_call": _inline,
    "core_call": _inline,
    "call": _inline,
    "custom_jvp_call": _custom_derivative,
    "custom_vjp_call": _custom_derivative,
    "custom_vjp_call_jaxpr": _custom_derivative,
    "shard_map": _shard_map,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
