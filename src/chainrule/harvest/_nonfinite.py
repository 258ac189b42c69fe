"""`locate_nonfinite`: the equation and the source line that made the first NaN or infinity.

The search starts at the results that are not finite and follows non-finite values backwards, through loops
and branches, to an equation that made one from finite operands. An infinity that a later equation
swallows (a mask of -inf in front of a softmax) is therefore never blamed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    ClosedJaxpr,
    JaxprEqn,
    SourceLocation,
    SubProgram,
    Var,
    bind_equation,
    evaluate,
    locate,
    name_stack_of,
    scan_layout,
    subprograms,
)
from chainrule.harvest._capture import stage
from chainrule.harvest._sow import is_sow


@dataclass(frozen=True)
class NonFinite:
    """Where the first NaN or infinity of a run was made. `str()` gives a sentence.

    Attributes:
        kind: what it is.
        primitive: the operation that made it; `None` when it came in with an argument or a constant.
        where: the user's line of that operation.
        phase: `"backward"` when the line belongs to the transposed part of a gradient.
        iterations: the iteration of each loop around the operation, outermost first.
        name: the first sown value that shows it, with the mode in which it does; `None` when none does.
        mode: that mode.
    """

    kind: Literal["nan", "inf"]
    primitive: str | None = None
    where: SourceLocation | None = None
    phase: Literal["forward", "backward"] = "forward"
    iterations: tuple[int, ...] = ()
    name: str | None = None
    mode: str | None = None

    def __str__(self) -> str:
        if self.primitive is None:
            made = f"an argument or a constant holds {self.kind}"
        else:
            place = self.where or "an unknown line"
            loops = f", iteration {self.iterations}" if self.iterations else ""
            made = f"{self.primitive!r} made {self.kind} at {place} in the {self.phase} pass{loops}"
        seen = f"; first seen in the {self.mode} of {self.name!r}" if self.name else ""
        return made + seen


def locate_nonfinite(
    fn: Callable[..., Any], *, tag: str = "intermediates"
) -> Callable[..., NonFinite | None]:
    """Find out where a function, or its gradient, first makes a NaN or an infinity.

    Args:
        fn: any function that JAX can trace; `jax.grad(f)` to search the backward pass as well.
        tag: the sows to name in the report.

    Returns:
        A function of the arguments of `fn` that gives a report, or `None` when every result is finite. It
        keeps all intermediate values while it searches.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.harvest import locate_nonfinite
        >>> report = locate_nonfinite(lambda x: jnp.log(x) + 1)(0.0)
        >>> report.kind, report.primitive
        ('inf', 'log')
    """

    def located(*args: Any, **kwargs: Any) -> NonFinite | None:
        args, kwargs = jax.tree.map(_as_array, (args, kwargs))
        traced = stage(fn, args, kwargs)
        search = _Search(tag)
        outputs = search.run(traced.program, traced.operands)[0]
        bad = [n for n, output in enumerate(outputs) if not _is_finite(output)]
        if not bad:
            return None
        cause = search.trace_back(traced.program, traced.operands, bad, _Context())
        return cause.report or NonFinite(_kind(outputs[bad[0]]))

    return located


@dataclass(frozen=True)
class _Context:
    """Where a program runs."""

    iterations: tuple[int, ...] = ()
    is_backward: bool = False


@dataclass(frozen=True)
class _Cause:
    """What made some outputs non-finite: an equation, or inputs that were so already."""

    report: NonFinite | None = None
    inputs: tuple[int, ...] = ()


class _Search:
    """Follows non-finite values backwards, and notes the sows of a tag on the way."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def run(
        self, program: ClosedJaxpr, operands: Sequence[Any]
    ) -> tuple[list[Any], list[tuple[list[Any], list[Any]]]]:
        """The outputs of a program, and the operands and results of each of its equations."""

        @jax.jit
        def recorded(operands: Sequence[Any]) -> Any:
            record = []

            def rule(eqn: JaxprEqn, values: list[Any]) -> list[Any]:
                results = bind_equation(eqn, values)
                record.append((values, results))
                return results

            return evaluate(program, operands, rule), record

        return recorded(list(operands))

    def trace_back(
        self,
        program: ClosedJaxpr,
        operands: Sequence[Any],
        bad_outputs: Sequence[int],
        context: _Context,
    ) -> _Cause:
        """Follow non-finite outputs to what made them, the earliest when there are several."""
        # One visit per equation, last first: an operand of a suspect is computed before it, so it is among
        # the suspects when its own equation is reached.
        _, record = self.run(program, operands)
        jaxpr = program.jaxpr
        suspects = {v for n in bad_outputs if isinstance(v := jaxpr.outvars[n], Var)}
        report, seen = None, None
        for eqn, (values, results) in reversed(list(zip(jaxpr.eqns, record, strict=True))):
            bad = [n for n, var in enumerate(eqn.outvars) if var in suspects]
            if not bad:
                continue
            if is_sow(eqn, self.tag):
                seen = eqn.params["sowing"]
            cause = self._cause(eqn, values, results, bad, context)
            # Equations are visited backwards, so the last report that is found is the earliest in the
            # program.
            report = cause.report or report
            suspects |= {v for n in cause.inputs if isinstance(v := eqn.invars[n], Var)}
        if report is not None and report.name is None and seen is not None:
            report = replace(report, name=seen.name, mode=seen.mode.label)
        inputs = tuple(n for n, var in enumerate(jaxpr.invars) if var in suspects)
        return _Cause(report, inputs)

    def _cause(
        self,
        eqn: JaxprEqn,
        values: list[Any],
        results: list[Any],
        bad: list[int],
        context: _Context,
    ) -> _Cause:
        inner = replace(
            context, is_backward=context.is_backward or "transpose" in name_stack_of(eqn)
        )
        entered = self._enter(eqn, values, bad, inner)
        if entered is not None:
            return entered
        inputs = [
            n
            for n, (value, atom) in enumerate(zip(values, eqn.invars, strict=True))
            if isinstance(atom, Var) and not _is_finite(value)
        ]
        if inputs:
            return _Cause(inputs=tuple(inputs))
        phase: Literal["forward", "backward"] = "backward" if inner.is_backward else "forward"
        kind = _kind(results[bad[0]])
        return _Cause(NonFinite(kind, eqn.primitive.name, locate(eqn), phase, inner.iterations))

    def _enter(
        self, eqn: JaxprEqn, values: list[Any], bad: list[int], context: _Context
    ) -> _Cause | None:
        """Continue inside a higher-order equation; `None` when it cannot be replayed.

        That is so under `shard_map`, and for a `while` loop whose examples stop one by one.
        """
        subs = subprograms(eqn)
        roles = {sub.role for sub in subs}
        if roles == {"call"}:
            if eqn.primitive.name == "shard_map":
                return None
            return self._trace_into(subs[0], values, bad, context)
        if roles == {"branch"}:
            chosen = subs[int(np.clip(values[0], 0, len(subs) - 1))]
            return self._trace_into(chosen, values[1:], bad, context)
        if eqn.primitive.name == "scan":
            return self._replay(subs[0], _scan_steps(eqn, values), context)
        if eqn.primitive.name == "while" and not subs[0].program.out_avals[0].shape:
            return self._replay(subs[1], _while_steps(eqn, subs[0], values), context)
        return None

    def _trace_into(
        self, sub: SubProgram, inputs: Sequence[Any], bad: Sequence[int], context: _Context
    ) -> _Cause:
        cause = self.trace_back(sub.program, inputs, bad, context)
        outer = (sub.operands[n] for n in cause.inputs)
        return replace(cause, inputs=tuple(n for n in outer if n is not None))

    def _replay(self, body: SubProgram, steps: _Steps, context: _Context) -> _Cause | None:
        """Run a loop again, up to the first iteration that makes something non-finite."""
        run = jax.jit(lambda inputs: evaluate(body.program, inputs))
        number, inputs = next(steps, (0, None))
        while inputs is not None:
            outputs = run(inputs)
            bad = [n for n, output in enumerate(outputs) if not _is_finite(output)]
            if bad:
                here = replace(context, iterations=(*context.iterations, number))
                return self._trace_into(body, inputs, bad, here)
            number, inputs = steps.send(outputs)
        return None


_Steps = Generator[tuple[int, list[Any] | None], list[Any], None]
"""The iterations of a loop: gives number and inputs (`None` at the end), takes the body's outputs."""


def _scan_steps(eqn: JaxprEqn, values: list[Any]) -> _Steps:
    n_constants, n_carry = scan_layout(eqn)
    constants, xs = values[:n_constants], values[n_constants + n_carry :]
    carry = values[n_constants : n_constants + n_carry]
    numbers = range(eqn.params["length"])
    for number in reversed(numbers) if eqn.params["reverse"] else numbers:
        outputs = yield number, [*constants, *carry, *(x[number] for x in xs)]
        carry = outputs[:n_carry]
    yield 0, None


def _while_steps(eqn: JaxprEqn, condition: SubProgram, values: list[Any]) -> _Steps:
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_constants, body_constants = values[:n_cond], values[n_cond : n_cond + n_body]
    carry = values[n_cond + n_body :]
    ask = jax.jit(lambda inputs: evaluate(condition.program, inputs)[0])
    for number in itertools.count():
        if not np.any(ask([*cond_constants, *carry])):
            break
        carry = yield number, [*body_constants, *carry]
    yield 0, None


def _as_array(leaf: Any) -> Any:
    # Other numbers may be meant as static, floats are data.
    return jnp.asarray(leaf) if isinstance(leaf, float) else leaf


def _is_finite(value: Any) -> bool:
    if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
        return True
    return bool(jnp.all(jnp.isfinite(value)))


def _kind(value: Any) -> Literal["nan", "inf"]:
    return "nan" if bool(jnp.any(jnp.isnan(value))) else "inf"
