"""Loops around rewritten programs: extras are stacked, or folded on their way through the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from chainrule._jaxpr._extras import Extra
from chainrule._jaxpr._folds import FOLDS, Fold
from chainrule._jaxpr._names import scan_layout
from chainrule._jaxpr._programs import SubProgram, subprograms

if TYPE_CHECKING:
    from chainrule._jaxpr._rewrite import Rewriter


def bind_scan(
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


def bind_while(
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
