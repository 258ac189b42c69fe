"""What runs through the parts of a division: values, cotangents and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import JaxprEqn, Var, evaluate, outside_call_of
from chainrule._jaxpr import Literal as Constant
from chainrule.harvest import save_intermediates, sow
from chainrule.view._division import Division, Section, function_of

RESULT = "result"
ReadPlace = tuple[Var, int | str]
"""A variable of the whole program, and the part that reads it, or `"result"`."""
ReadValues = Mapping[ReadPlace, Mapping[str, Any]]
"""`primal` and perhaps `cotangent` of a variable where it is read."""

_TAG = "chainrule.view"


class Reads:
    """The function of a division with every array sown where a part reads it."""

    def __init__(self, division: Division, *, has_gradient: bool) -> None:
        self._division = division
        self._has_gradient = has_gradient
        inner = [section.program.jaxpr for section in division.sections]
        made = {*division.program.jaxpr.invars, *(v for jaxpr in inner for v in jaxpr.outvars)}
        results = [v for v in division.program.jaxpr.outvars if not isinstance(v, Constant)]
        places = [(var, k) for k, jaxpr in enumerate(inner) for var in jaxpr.invars]
        reads: list[ReadPlace] = [*places, *((v, RESULT) for v in results if v in made)]
        self._names = {place: str(k) for k, place in enumerate(dict.fromkeys(reads))}

    def run(self, operands: Sequence[Any]) -> dict[ReadPlace, Mapping[str, Any]]:
        """What is read at every place, and what comes back there."""
        arrays = [jnp.asarray(operand) for operand in operands]
        floats = [k for k, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
        is_read = any(target == RESULT for _, target in self._names)  # the result may be a constant
        has_gradient = self._has_gradient and is_read and bool(floats)

        def of_floats(chosen: Sequence[Any]) -> Any:
            every = dict(enumerate(arrays)) | dict(zip(floats, chosen, strict=True))
            results = self._evaluate(list(every.values()))
            return results[0] if has_gradient else results

        function = jax.grad(of_floats) if has_gradient else of_floats
        _, found = save_intermediates(function, tag=_TAG)([arrays[k] for k in floats])
        return {place: found[name] for place, name in self._names.items() if name in found}

    def _evaluate(self, operands: Sequence[Any]) -> list[Any]:
        values = dict(zip(self._division.program.jaxpr.invars, operands, strict=True))
        for number, section in enumerate(self._division.sections):
            inner = section.program.jaxpr
            given = [self._sown(values, var, number) for var in inner.invars]
            values.update(zip(inner.outvars, evaluate(section.program, given), strict=True))
        return [self._sown(values, var, target) for var, target in self._names if target == RESULT]

    def _sown(self, values: Mapping[Var, Any], var: Var, target: int | str) -> Any:
        return sow(values[var], self._names[var, target], tag=_TAG)

    def values(self, found: ReadValues) -> dict[Var, Any]:
        """Variable → value."""
        return {var: entry["primal"] for (var, _), entry in found.items()}


def measure_parts(
    division: Division, values: Mapping[Var, Any], *, has_gradient: bool
) -> dict[int, dict[str, float]]:
    """Seconds of every part, forward and, where that is asked for, backward."""
    return {
        number: _seconds(section, [values[v] for v in section.program.jaxpr.invars], has_gradient)
        for number, section in enumerate(division.sections)
    }


def _seconds(section: Section, inputs: Sequence[Any], has_gradient: bool) -> dict[str, float]:
    is_jax = not section.calls
    run = jax.jit(_function(section)) if is_jax else _function(section)
    requests = dict.fromkeys(called(call)[1] for call in section.calls)
    forward, backward = ("forward", "backward") if is_jax else (", ".join(requests), "vjp")
    repeats = 3 if is_jax else 1
    seconds = {forward: _time(run, inputs, repeats)}
    floats = [k for k, each in enumerate(inputs) if jnp.issubdtype(each.dtype, jnp.inexact)]
    if not has_gradient or not floats:
        return seconds

    def of_floats(*chosen: Any) -> list[Any]:
        every = dict(enumerate(inputs)) | dict(zip(floats, chosen, strict=True))
        outputs = run(*every.values())
        return [each for each in outputs if jnp.issubdtype(each.dtype, jnp.inexact)]

    outputs, pull = jax.vjp(of_floats, *(inputs[k] for k in floats))
    pull_back = jax.jit(pull) if is_jax else pull
    return seconds | {backward: _time(pull_back, [[jnp.ones_like(y) for y in outputs]], repeats)}


def _function(section: Section) -> Callable[..., list[Any]]:
    """A part as a function of its inputs."""
    return lambda *flat: evaluate(section.program, flat)


def _time(run: Callable[..., Any], inputs: Sequence[Any], repeats: int) -> float:
    jax.block_until_ready(run(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(*inputs))
        times.append(time.perf_counter() - start)
    return min(times)


def called(eqn: JaxprEqn) -> tuple[str, str]:
    """The name of what an equation calls, and what it is asked for."""
    call = outside_call_of(eqn)
    assert call is not None
    return call.name or function_of(eqn) or "callback", call.request
