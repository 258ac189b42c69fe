"""Objectives, constraints and residuals: what a component's outputs, or functions, are in a problem.

Everything becomes one function of the tree of variables that JAX traces, so that a component is called once
for its objective and its constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import InputError
from chainrule._trees import get_at_path
from chainrule.bridge import apply_component
from chainrule.optimize._variables import is_component
from chainrule.runtime import Bounds
from chainrule.runtime.internal import describe_value

Constraints = Mapping[str, Bounds] | Sequence[tuple[Callable[[Any], Any], Bounds]]


@dataclass(frozen=True)
class Problem:
    """What is minimised, and what has to hold.

    Attributes:
        function: the tree of variables → the objective and the constraints.
        bounds: one for each constraint.
    """

    function: Callable[[Any], tuple[Any, list[Any]]]
    bounds: tuple[Bounds, ...] = ()


def problem_of(function: Any, objective: str | None, constraints: Constraints) -> Problem:
    """The problem of a component or a function.

    Raises:
        InputError: the objective is not one number, or constraints cannot be read (`bad_constraints`).
    """
    if is_component(function):
        return _component_problem(function, objective, constraints)
    if objective is not None:
        raise InputError(
            f"objective={objective!r} names an output of a component; a function returns its objective.",
            code="bad_option",
        )
    functions, bounds = _check_pairs(constraints)

    def joint(tree: Any) -> tuple[Any, list[Any]]:
        return _scalar(function(tree), "The function"), [g(tree) for g in functions]

    return Problem(joint, bounds)


def _component_problem(component: Any, objective: str | None, constraints: Constraints) -> Problem:
    by_output = dict(constraints) if isinstance(constraints, Mapping) else {}
    outputs = [path for path in component.differentiable_outputs if path not in by_output]
    if objective is None:
        if len(outputs) != 1:
            raise InputError(
                f"{component.name} has the differentiable outputs "
                f"{', '.join(component.differentiable_outputs)}. Say which one is minimised: objective=….",
                code="bad_option",
            )
        objective = outputs[0]
    for path, bound in by_output.items():
        _check_output(component, path)
        _check_bounds(path, bound)
    _check_output(component, objective)
    pairs = () if isinstance(constraints, Mapping) else constraints
    functions, bounds = _check_pairs(pairs)

    def joint(tree: Any) -> tuple[Any, list[Any]]:
        found = apply_component(component, tree)
        held = [get_at_path(found, path) for path in by_output]
        value = _scalar(get_at_path(found, objective), f"{objective} of {component.name}")
        return value, [*held, *(g(tree) for g in functions)]

    return Problem(joint, (*by_output.values(), *bounds))


def residuals_of(function: Any, outputs: Sequence[str] | None) -> Callable[[Any], Any]:
    """The residuals of a component or a function as one vector.

    Args:
        function: the component or function.
        outputs: which outputs of a component are residuals; all differentiable ones when not given.
    """
    if not is_component(function):
        if outputs is not None:
            raise InputError(
                "residuals=… names outputs of a component; a function returns its residuals.",
                code="bad_option",
            )
        return lambda tree: joined(jax.tree.leaves(function(tree)))
    paths = list(function.differentiable_outputs) if outputs is None else list(outputs)
    for path in paths:
        _check_output(function, path)

    def residuals(tree: Any) -> Any:
        found = apply_component(function, tree)
        return joined([get_at_path(found, path) for path in paths])

    return residuals


def joined(arrays: Sequence[Any]) -> Any:
    """Arrays of any shape as one vector."""
    return jnp.concatenate([jnp.ravel(array) for array in arrays] or [jnp.zeros(0)])


def _scalar(value: Any, who: str) -> Any:
    shape = jnp.shape(value)
    if np.prod(shape, dtype=int) != 1:
        raise InputError(
            f"{who} has to be one number to be minimised; its shape is {list(shape)}. Weigh its elements, "
            "for example by a sum of squares, or use `least_squares`.",
            code="bad_objective",
        )
    return jnp.reshape(value, ())


def _check_output(component: Any, path: str) -> None:
    known = component.differentiable_outputs
    if path not in known:
        raise InputError(
            f"{component.name} has no differentiable output {path!r}; it has {', '.join(known)}.",
            code="path_unknown",
            path=path,
        )


def _check_pairs(constraints: Any) -> tuple[tuple[Any, ...], tuple[Bounds, ...]]:
    if isinstance(constraints, Mapping):
        raise InputError(
            "Constraints of a function are pairs [(g, Bounds(le=0)), …]; a dictionary names outputs of a "
            "component.",
            code="bad_constraints",
        )
    functions, bounds = [], []
    for entry in constraints:
        if not (isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0])):
            raise InputError(
                f"Expected constraints as pairs (function, Bounds(le=0)); found {describe_value(entry)}.",
                code="bad_constraints",
            )
        _check_bounds(getattr(entry[0], "__name__", "constraint"), entry[1])
        functions.append(entry[0])
        bounds.append(entry[1])
    return tuple(functions), tuple(bounds)


def _check_bounds(name: str, bounds: Any) -> None:
    if not isinstance(bounds, Bounds) or bounds.gt is not None or bounds.lt is not None:
        raise InputError(
            f"Expected the constraint {name} to have bounds such as Bounds(ge=0, le=1); found {bounds}. A "
            "solver cannot tell < from ≤.",
            code="bad_constraints",
            path=name,
        )
