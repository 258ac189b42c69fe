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
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from chainrule._errors import CapabilityError
from chainrule._jaxpr._evaluate import evaluate, trace_avals
from chainrule._jaxpr._extras import Binder, Extra, Staged
from chainrule._jaxpr._names import aval_of
from chainrule._jaxpr._programs import subprograms
from chainrule._jaxpr._rewrite_branches import bind_cond
from chainrule._jaxpr._rewrite_calls import (
    bind_call,
    bind_custom_derivative,
    bind_shard_map,
    inline,
)
from chainrule._jaxpr._rewrite_loops import bind_scan, bind_while
from chainrule._jaxpr._source import locate


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
        self._staged: dict[int, tuple[ClosedJaxpr, Staged]] = {}

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

    def _binder(self, eqn: JaxprEqn) -> Binder | None:
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
    ) -> Staged:
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

    def _stage(self, program: ClosedJaxpr, loops: tuple[Any, ...], counted: bool) -> Staged:
        notes: dict[str, Any] = {}

        def function(*inputs: Any) -> list[Any]:
            number, inputs = inputs[:counted], inputs[counted:]
            outputs, extras = self.run(program, inputs, (*loops, *number))
            leaves, notes["tree"] = jax.tree.flatten(extras)
            return [*outputs, *leaves]

        number = [aval_of(jnp.int32(0))] if counted else []
        staged = trace_avals(function, [*number, *program.in_avals])
        return Staged(staged, len(program.out_avals), notes["tree"])


def _cannot_enter(eqn: JaxprEqn) -> CapabilityError:
    name = eqn.primitive.name
    return CapabilityError(
        f"Cannot look inside the primitive {name!r} at {locate(eqn) or 'an unknown line'}: it holds a "
        "tagged value, and how often and where its program runs is not known. Move the `sow` outside "
        f"of {name!r}.",
        code="cannot_look_inside",
        details={"primitive": name},
    )


_BINDERS: dict[str, Binder] = {
    "jit": bind_call,
    "pjit": bind_call,
    "remat": bind_call,
    "remat2": bind_call,
    "checkpoint": bind_call,
    "closed_call": inline,
    "core_call": inline,
    "call": inline,
    "eval_jaxpr": inline,
    "custom_jvp_call": bind_custom_derivative,
    "custom_vjp_call": bind_custom_derivative,
    "custom_vjp_call_jaxpr": bind_custom_derivative,
    "shard_map": bind_shard_map,
    "scan": bind_scan,
    "while": bind_while,
    "cond": bind_cond,
}
