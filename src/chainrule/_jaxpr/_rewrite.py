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

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from chainrule._errors import CapabilityError
from chainrule._jaxpr._evaluate import bind_equation, evaluate, trace_avals
from chainrule._jaxpr._extras import FOLDS, Extra, Fold
from chainrule._jaxpr._names import UNSPECIFIED, aval_of, constants_first, manual_axes, scan_layout
from chainrule._jaxpr._programs import SubProgram, locate, subprograms


@dataclass(frozen=True)
class _Staged:
    """A rewritten sub-program: outputs first, then the leaves of its extras."""

    program: ClosedJaxpr
    n_outputs: int
    extras_tree: Any

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        """Separate what the program gives into its outputs and its extras."""
        outputs, leaves = list(values[: self.n_outputs]), values[self.n_outputs :]
        return outputs, jax.tree.unflatten(self.extras_tree, leaves)

    def run(self, operands: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        """The outputs and extras at operands."""
        return self.split(evaluate(self.program, operands))

    @functools.cached_property
    def opened(self) -> ClosedJaxpr:
        """The program with its captured constants as first inputs; one object, so it is lowered once."""
        return constants_first(self.program.jaxpr)

    @property
    def extras(self) -> list[Extra]:
        """The extras, with abstract values in place of arrays."""
        return self.split(self.program.out_avals)[1]


_Binder = Callable[
    ["Rewriter", JaxprEqn, list[Any], tuple[Any, ...]], tuple[list[Any], list[Extra]]
]
"""Binds a higher-order equation again around rewritten sub-programs.

Takes the rewriter, the equation, its operands and the iteration numbers of the loops around it; gives the
equation's results and the extras of its sub-programs.
"""


class Claim(Protocol):
    """Runs one equation differently: gives its results and its extras.

    `loops` are the iteration numbers of the loops around it, outermost first; they are known only to
    rewriters that substitute.
    """

    def __call__(
        self, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
    ) -> tuple[Sequence[Any], Sequence[Extra]]: ...


class Rewriter:
    """Runs programs with some equations claimed.

    Args:
        claim: runs a claimed equation.
        is_claimed: which equations are claimed; decides which sub-programs are entered.
        substitutes: the claimed equations get other results, so a custom derivative around them no
            longer describes the program and is dropped. Loops count their iterations for `claim`.
    """

    def __init__(
        self, claim: Claim, *, is_claimed: Callable[[JaxprEqn], bool], substitutes: bool = False
    ) -> None:
        self.claim = claim
        self.is_claimed = is_claimed
        self.substitutes = substitutes
        # Keyed by identity, and holding the programs, so that an id stays that of its program.
        self._holds: dict[int, tuple[ClosedJaxpr, bool]] = {}
        self._staged: dict[int, tuple[ClosedJaxpr, _Staged]] = {}

    def run(
        self, program: ClosedJaxpr, operands: Sequence[Any], loops: tuple[Any, ...] = ()
    ) -> tuple[list[Any], list[Extra]]:
        """The outputs of a program, and the extras in execution order."""
        extras: list[Extra] = []

        def rule(eqn: JaxprEqn, values: list[Any]) -> Sequence[Any] | None:
            if self.is_claimed(eqn):
                results, more = self.claim(eqn, values, loops)
            elif (binder := self._binder(eqn)) is not None:
                results, more = binder(self, eqn, values, loops)
            else:
                return None
            extras.extend(more)
            return results

        return evaluate(program, operands, rule), extras

    def _binder(self, eqn: JaxprEqn) -> _Binder | None:
        held = [sub for sub in subprograms(eqn) if self.holds(sub.program)]
        if not held:
            return None
        binder = _BINDERS.get(eqn.primitive.name)
        if binder is None:
            raise _cannot_enter(eqn)
        return binder

    def holds(self, program: ClosedJaxpr) -> bool:
        """Whether a program holds a claimed equation at any depth."""
        key = id(program.jaxpr)
        if key not in self._holds:
            found = any(
                self.is_claimed(eqn) or any(self.holds(sub.program) for sub in subprograms(eqn))
                for eqn in program.jaxpr.eqns
            )
            self._holds[key] = (program, found)
        return self._holds[key][1]

    def stage(
        self, program: ClosedJaxpr, loops: tuple[Any, ...] = (), *, counted: bool = False
    ) -> _Staged:
        """Trace a rewritten sub-program; when `counted`, an iteration number is its first input.

        A program that is called in several places is staged once. Not so when substituting: what is put
        in may belong to the place.
        """
        if self.substitutes:
            return self._stage(program, loops, counted)
        key = id(program.jaxpr)
        if key not in self._staged:
            self._staged[key] = (program, self._stage(program, (), False))
        return self._staged[key][1]

    def _stage(self, program: ClosedJaxpr, loops: tuple[Any, ...], counted: bool) -> _Staged:
        notes: dict[str, Any] = {}

        def function(*inputs: Any) -> list[Any]:
            number, inputs = inputs[:counted], inputs[counted:]
            outputs, extras = self.run(program, inputs, (*loops, *number))
            leaves, notes["tree"] = jax.tree.flatten(extras)
            return [*outputs, *leaves]

        number = [aval_of(jnp.int32(0))] if counted else []
        staged = trace_avals(function, [*number, *program.in_avals])
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


# Parameters with one entry per operand or per result, and what the new ones get.
_PER_OPERAND = {
    "in_shardings": UNSPECIFIED, "in_layouts": None, "donated_invars": False, "prevent_cse": True
}  # fmt: skip
_PER_RESULT = {"out_shardings": UNSPECIFIED, "out_layouts": None}


def _bind_call(
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


def _run_inline(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Run the called program in the place of the call."""
    (sub,) = subprograms(eqn)
    return rewriter.run(sub.program, operands, loops)


def _bind_custom_derivative(
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


def _bind_shard_map(
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


def _bind_cond(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Every branch hands out the extras of all, its own filled in and flagged as taken."""
    branches = [rewriter.stage(sub.program, loops) for sub in subprograms(eqn)]
    slots, places = _share_slots([staged.extras for staged in branches])
    functions = [_filling(staged, slots, own) for staged, own in zip(branches, places, strict=True)]
    outputs, extras = jax.lax.switch(operands[0], functions, *operands[1:])
    in_all = [all(n in own for own in places) for n in range(len(slots))]
    return outputs, [
        replace(extra, taken=None) if always and slot.taken is None else extra
        for extra, slot, always in zip(extras, slots, in_all, strict=True)
    ]


def _filling(staged: _Staged, slots: list[Extra], own: dict[int, int]) -> Callable[..., Any]:
    def branch(*inputs: Any) -> tuple[list[Any], list[Extra]]:
        outputs, extras = staged.run(inputs)
        return outputs, [
            _present(extras[own[n]]) if n in own else _absent(slot) for n, slot in enumerate(slots)
        ]

    return branch


def _share_slots(branches: list[list[Extra]]) -> tuple[list[Extra], list[dict[int, int]]]:
    """Equal extras of different branches share a slot: at most one of them exists.

    Returns the slots, and per branch the positions of its extras by slot.
    """
    slots: list[Extra] = []
    places: list[dict[int, int]] = []
    for extras in branches:
        own: dict[int, int] = {}
        for position, extra in enumerate(extras):
            shared = (n for n, slot in enumerate(slots) if n not in own and _alike(slot, extra))
            slot = next(shared, len(slots))
            if slot == len(slots):
                slots.append(extra)
            own[slot] = position
        places.append(own)
    return slots, places


def _alike(one: Extra, other: Extra) -> bool:
    def form(extra: Extra) -> Any:
        leaves, tree = jax.tree.flatten(extra)
        return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]

    return form(one) == form(other)


def _present(extra: Extra) -> Extra:
    return replace(extra, taken=jnp.full(extra.loop_shape, True)) if extra.taken is None else extra


def _absent(like: Extra) -> Extra:
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return replace(blank, taken=jnp.full(like.loop_shape, False))


def _bind_scan(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Extras without a fold become stacked results, those with one become part of the carry."""
    (sub,) = subprograms(eqn)
    params = eqn.params
    n_constants, n_carry = scan_layout(eqn)
    constants = operands[:n_constants]
    init, xs = operands[n_constants : n_constants + n_carry], operands[n_constants + n_carry :]
    counted, backwards = rewriter.substitutes, params["reverse"]
    staged = rewriter.stage(sub.program, loops, counted=counted)
    folded = {
        position: _Progress(extra, extra.fold)
        for position, extra in enumerate(staged.extras)
        if extra.fold is not None
    }

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        inner, states, steps = carry
        # `step` counts executions. A `scan` in reverse begins with the last iteration.
        number = [params["length"] - 1 - step if backwards else step for step in steps]
        outputs, extras = staged.run([*number, *constants, *inner, *x])
        new = {n: progress.step(states[n], extras[n]) for n, progress in folded.items()}
        stacked = [extra for n, extra in enumerate(extras) if n not in folded]
        return (outputs[:n_carry], new, _next(steps)), (outputs[n_carry:], stacked)

    states = {n: progress.start() for n, progress in folded.items()}
    (carry, states, _), (ys, stacked) = jax.lax.scan(
        body, (init, states, _first(counted)), xs,
        length=params["length"], reverse=backwards, unroll=params["unroll"],
    )  # fmt: skip
    ready = (replace(extra, stacked=extra.stacked + 1) for extra in stacked)
    return [*carry, *ys], [
        folded[n].finish(states[n]) if n in folded else next(ready)
        for n in range(len(staged.extras))
    ]


def _first(counted: bool) -> list[Any]:
    """The iteration number, where loops count their iterations."""
    return [jnp.int32(0)] if counted else []


def _next(steps: list[Any]) -> list[Any]:
    return [step + 1 for step in steps]


def _bind_while(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Extras of the condition and of the body are folded; the loop itself stays the same."""
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    constants = operands[:n_cond], operands[n_cond : n_cond + n_body]
    # Under vmap each example has its own condition, and stops by itself.
    (proceed,) = subprograms(eqn)[0].program.out_avals
    condition, body = (
        _WhilePart(rewriter, sub, list(own), loops, proceed.shape)
        for sub, own in zip(subprograms(eqn), constants, strict=True)
    )
    run = _watch_both if condition.progress else _watch_body
    carry, asked, done = run(condition, body, operands[n_cond + n_body :])
    return list(carry), [*condition.finish(asked), *body.finish(done)]


def _watch_body(condition: _WhilePart, body: _WhilePart, init: list[Any]) -> tuple[Any, Any, Any]:
    def ask(state: Any) -> Any:
        steps, carry, _ = state
        (proceed,), _ = condition.run(steps, carry, [], None)
        return proceed

    def iterate(state: Any) -> Any:
        steps, carry, done = state
        # Under `vmap` the loop goes on until the last example stops. Those that have stopped are computed
        # with the others, and `_where_running` and `_Progress` keep what they had.
        running = ask(state) if body.batch else None
        new, done = body.run(steps, carry, done, running)
        return _next(steps), _where_running(running, new, carry), done

    start = (_first(body.counted), init, body.start())
    _, carry, done = jax.lax.while_loop(lambda state: jnp.any(ask(state)), iterate, start)
    return carry, [], done


def _watch_both(condition: _WhilePart, body: _WhilePart, init: list[Any]) -> tuple[Any, Any, Any]:
    """The condition moves in front of the loop, and to the end of each iteration."""

    def iterate(state: Any) -> Any:
        proceed, steps, carry, asked, done = state
        running = proceed if body.batch else None
        new, done = body.run(steps, carry, done, running)
        carry, steps = _where_running(running, new, carry), _next(steps)
        (again,), asked = condition.run(steps, carry, asked, running)
        return again, steps, carry, asked, done

    steps = _first(body.counted)
    (proceed,), asked = condition.run(steps, init, condition.start(), None)
    start = (proceed, steps, init, asked, body.start())
    _, _, carry, asked, done = jax.lax.while_loop(lambda state: jnp.any(state[0]), iterate, start)
    return carry, asked, done


def _where_running(running: Any, new: list[Any], old: list[Any]) -> list[Any]:
    if running is None:
        return new
    return [jnp.where(_right_pad(running, n), n, o) for n, o in zip(new, old, strict=True)]


def _right_pad(mask: Any, like: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (jnp.ndim(like) - mask.ndim))


class _WhilePart:
    """The condition or the body of a `while` loop, and its extras on their way."""

    def __init__(
        self,
        rewriter: Rewriter,
        sub: SubProgram,
        constants: list[Any],
        loops: tuple[Any, ...],
        batch: tuple[int, ...],
    ) -> None:
        self.counted = rewriter.substitutes
        self.constants = constants
        self.batch = batch
        self.staged = rewriter.stage(sub.program, loops, counted=self.counted)
        self.progress = [
            _Progress(extra, extra.fold or extra.open_fold or FOLDS["last"], batch, in_while=True)
            for extra in self.staged.extras
        ]

    def start(self) -> list[_State]:
        return [each.start() for each in self.progress]

    def run(
        self, steps: list[Any], carry: list[Any], states: list[_State], running: Any
    ) -> tuple[list[Any], list[_State]]:
        """One execution; without states, the extras are ignored."""
        outputs, extras = self.staged.run([*steps, *self.constants, *carry])
        advanced = zip(self.progress, states, extras, strict=bool(states))
        return outputs, [each.step(state, extra, running) for each, state, extra in advanced]

    def finish(self, states: list[_State]) -> list[Extra]:
        return [each.finish(state) for each, state in zip(self.progress, states, strict=True)]


_State = tuple[Sequence[Any], Any, Any]
"""The fold's state, iterations taken in, executions (more than one when a `while` loop is inside)."""


@dataclass(frozen=True)
class _Progress:
    """One extra on its way through a loop that folds it.

    An iteration in which the extra was not reached, or whose example had already stopped, leaves the
    state as it is. The axes of a batch of examples stay in front of everything until the end.

    Attributes:
        like: the extra of one iteration, with abstract values.
        fold: how iterations combine.
        batch: shape of the batch of examples, which stop one by one.
        in_while: whether the loop may also run zero times.
    """

    like: Extra
    fold: Fold
    batch: tuple[int, ...] = ()
    in_while: bool = False

    def start(self) -> _State:
        values, _, _ = jax.eval_shape(self._open, self.like, None)
        one = self.fold.start(
            [jax.ShapeDtypeStruct(v.shape[len(self.batch) :], v.dtype) for v in values]
        )
        nothing = jnp.int32(0)
        state = (list(one), nothing, nothing)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*self.batch, *leaf.shape)), state)

    def step(self, state: _State, extra: Extra, running: Any = None) -> _State:
        return self._per_example(self._step)(state, *self._open(extra, running))

    def _step(self, state: _State, values: list[Any], taken: Any, executions: Any) -> _State:
        old, taken_in, count = state
        new = (list(self.fold.step(old, values, taken_in)), taken_in + 1, count + executions)
        return jax.tree.map(lambda n, o: jnp.where(taken, n, o), new, (list(old), taken_in, count))

    def finish(self, state: _State) -> Extra:
        leaves, taken_in, count = state
        leaves = self._per_example(lambda *args: list(self.fold.finish(*args)))(leaves, taken_in)
        axes = range(len(self.batch))
        after = [self.like.stacked + self.fold.axes + axis for axis in axes]
        values = [jnp.moveaxis(leaf, axes, after) for leaf in leaves]
        n_leaves = len(self.like.leaves)
        whole = replace(
            self.like, leaves=tuple(values[:n_leaves]), stacked=self.like.stacked + self.fold.axes
        )
        if self.like.stacked:
            facts = iter(values[n_leaves:])
            return replace(
                whole,
                taken=None if self.like.taken is None else next(facts),
                count=None if self.like.count is None else next(facts),
            )
        may_be_missing = self.in_while or self.like.taken is not None
        return replace(
            whole,
            taken=taken_in > 0 if may_be_missing else None,
            count=count if self.in_while or self.like.count is not None else None,
        )

    def _open(self, extra: Extra, running: Any) -> tuple[list[Any], Any, Any]:
        """What is folded, whether to take it in, and how many executions it stands for.

        Where inner loops have stacked values, whether each was reached is stacked as well and is
        folded like a value.
        """
        if extra.stacked:
            facts = [fact for fact in (extra.taken, extra.count) if fact is not None]
            values, taken, executions = [*extra.leaves, *facts], True, 1
        else:
            values = list(extra.leaves)
            taken = True if extra.taken is None else extra.taken
            executions = 1 if extra.count is None else extra.count
        if running is not None:
            taken = taken & running
        n = len(self.batch)
        return (
            [self._batch_in_front(value, extra.stacked) for value in values],
            jnp.broadcast_to(taken, self.batch) if n else jnp.asarray(taken),
            jnp.broadcast_to(executions, self.batch) if n else executions,
        )

    def _batch_in_front(self, value: Any, stacked: int) -> Any:
        n = len(self.batch)
        if value.shape[stacked : stacked + n] == self.batch:
            return jnp.moveaxis(value, range(stacked, stacked + n), range(n))
        return jnp.broadcast_to(value, (*self.batch, *value.shape))

    def _per_example(self, function: Any) -> Any:
        for _ in self.batch:
            function = jax.vmap(function)
        return function


_BINDERS: dict[str, _Binder] = {
    "jit": _bind_call,
    "pjit": _bind_call,
    "remat": _bind_call,
    "remat2": _bind_call,
    "checkpoint": _bind_call,
    "closed_call": _run_inline,
    "core_call": _run_inline,
    "call": _run_inline,
    "eval_jaxpr": _run_inline,
    "custom_jvp_call": _bind_custom_derivative,
    "custom_vjp_call": _bind_custom_derivative,
    "custom_vjp_call_jaxpr": _bind_custom_derivative,
    "shard_map": _bind_shard_map,
    "scan": _bind_scan,
    "while": _bind_while,
    "cond": _bind_cond,
}
