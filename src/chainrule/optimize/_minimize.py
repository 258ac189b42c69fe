"""`minimize` and `least_squares`: from a component or function and a start to a result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Number
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._describe import describe_value, names_its_arguments
from chainrule._errors import InputError
from chainrule._jaxpr import enable_x64
from chainrule._trees import get_at_path, is_arraylike
from chainrule.bridge import apply_component, component_errors
from chainrule.elimination import value_and_jacobian
from chainrule.optimize._evaluation import FEASIBLE, Evaluation, Limits, Point, Step
from chainrule.optimize._solvers import (
    LEAST_SQUARES_METHODS,
    SCIPY_METHODS,
    Answer,
    Method,
    check_method,
    find_method,
    installed,
    nlopt_minimize,
    optimistix_answer,
    scipy_least_squares,
    scipy_minimize,
    solve,
)
from chainrule.optimize._variables import (
    BoundsLike,
    Variables,
    call_traced,
    is_component,
    variables_of,
)
from chainrule.runtime import Bounds

_OTHERS = {
    "nlopt": Method(bounds=True, constraints=True),
    "ipopt": Method(bounds=True, constraints=True),
    "optimistix": Method(),
}
_MAX_EVALUATIONS = 10_000


@dataclass(frozen=True)
class Result:
    """What an optimisation found.

    Attributes:
        x: the variables in the form of the start: the solver's answer, or the best point of a run that was
            stopped.
        value: the objective there; half the sum of squares for residuals.
        success: whether the solver says that this is a solution, and it keeps the bounds and constraints.
        message: whether it converged, and why it ended, in the words of the solver.
        method: that was used.
        evaluations: how many points were evaluated, those of an earlier run in the checkpoint included.
        history: every evaluation, in order.
        raw: the solver's own result; `None` when it was stopped.
    """

    x: Any
    value: float
    success: bool
    message: str
    method: str
    evaluations: int
    history: tuple[Step, ...] = field(repr=False)
    raw: Any = field(repr=False)


@names_its_arguments
def minimize(
    f: Any,
    x0: Any,
    *,
    objective: str | None = None,
    free: Collection[str] | None = None,
    bounds: BoundsLike = "schema",
    constraints: Constraints = (),
    method: str | None = None,
    tolerance: float | None = None,
    max_evaluations: int = _MAX_EVALUATIONS,
    sparse: bool = False,
    callback: Callable[[Step], Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Result:
    """The variables for which a component's output, or a function, is smallest.

    min f(x) subject to l ≤ x ≤ u and a ≤ g(x) ≤ b. Everything is computed in double precision, whether or not
    JAX is configured for it, and a leaf in float32 gets numbers in float32.

    Args:
        f: a component, or a function of nested data that JAX can trace (components may be called inside).
        x0: where to begin. For a component its inputs: the differentiable arrays vary, those that are left to
            their defaults included, and everything else stays.
        objective: the output of a component that is minimised; needed when it has several.
        free: paths of the variables, where only some of them shall vary.
        bounds: `"schema"`: those of the component's input schema (a function has none). Otherwise `{path:
            (lower, upper)}` in place of them, or `None`. The path of a bare array is `x`.
        constraints: `{output path: Bounds(le=0)}` of a component, or `[(g, Bounds(ge=0, le=1)), …]` with
            functions of the variables. Equal bounds make an equality.
        method: of scipy (`"L-BFGS-B"`, `"SLSQP"`, `"trust-constr"`, …), `"ipopt"` (by CasADi),
            `"nlopt.LD_MMA"` and the like, or `"optimistix.BFGS"` and the like. L-BFGS-B by default, SLSQP
            with constraints.
        tolerance: of the solver.
        max_evaluations: ends the run.
        sparse: hand the Jacobian of the constraints over as a sparse matrix, for `"trust-constr"`.
        callback: called with a `Step` after every evaluation; the run ends when it returns `True`.
        checkpoint: a file for the best point so far. When it is there already, the run begins at its point;
            what the solver had learned about curvature is not kept.
        options: handed to the solver as they are.

    Returns:
        What was found; `success` is `False` where a run ended early.

    Raises:
        InputError: the start, the bounds or the constraints cannot be used, or the method does not take them.
        ComponentError: the component failed; its own error arrives.

    Example:
        >>> import chainrule
        >>> found = chainrule.minimize(lambda p: (p["a"] - 1.0) ** 2 + p["b"] ** 2, {"a": 0.0, "b": 2.0})
        >>> print(found.success, round(float(found.x["a"]), 4))
        True 1.0
    """
    variables = variables_of(f, x0, bounds, free)
    problem = problem_of(f, objective, constraints)
    name = method or ("SLSQP" if problem.bounds else "L-BFGS-B")
    kind = find_method(name, SCIPY_METHODS, _OTHERS)
    has_constraints = bool(problem.bounds)
    check_method(name, kind, has_bounds=variables.has_bounds, has_constraints=has_constraints)
    flat = _flat(problem, variables)
    evaluation = Evaluation(
        variables,
        _computation(flat, kind, has_constraints=has_constraints, sparse=sparse),
        limits=_limits(problem, variables),
        callback=callback,
        checkpoint=_path(checkpoint),
        max_evaluations=_count(max_evaluations),
        description=f"minimize ({name})",
    )
    _check_tolerance(tolerance)
    options = dict(options or {})
    package = name.partition(".")[0] if name not in SCIPY_METHODS else "scipy"
    solvers: dict[str, Callable[[Evaluation], Answer]] = {
        "scipy": lambda e: scipy_minimize(
            e,
            name,
            hvp=_hvp(flat) if kind.uses == "hvp" else None,
            tolerance=tolerance,
            options=options,
        ),
        "nlopt": lambda e: nlopt_minimize(e, name, tolerance=tolerance, options=options),
        "ipopt": lambda e: _ipopt(e, tolerance=tolerance, options=options),
        "optimistix": lambda e: optimistix_answer(
            name, "minimise", lambda x: flat(x)[0], e, tolerance=tolerance, options=options
        ),
    }
    return _result(evaluation, solve(evaluation, solvers[package]), name)


@names_its_arguments
def least_squares(
    f: Any,
    x0: Any,
    *,
    residuals: Sequence[str] | None = None,
    free: Collection[str] | None = None,
    bounds: BoundsLike = "schema",
    method: str = "trf",
    jacobian: Literal["dense", "sparse", "products"] = "dense",
    tolerance: float | None = None,
    max_evaluations: int = _MAX_EVALUATIONS,
    callback: Callable[[Step], Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Result:
    """The variables for which the residuals of a component, or of a function, are smallest.

    min ½ Σ r(x)² subject to l ≤ x ≤ u. The Jacobian is that of `chainrule.elimination`, which plans the
    cheapest way for a pipeline.

    Args:
        f: a component, or a function that returns its residuals as nested data.
        x0: where to begin, as in `minimize`.
        residuals: the outputs of a component that are residuals; all differentiable ones by default.
        free: as in `minimize`.
        bounds: as in `minimize`.
        method: `"trf"`, `"dogbox"` or `"lm"` of scipy, or `"optimistix.LevenbergMarquardt"` and the like.
        jacobian: how scipy gets it: `"dense"`, `"sparse"` (both whole) or `"products"` (never whole, one JVP
            or VJP per iteration of its inner solver).
        tolerance: of the solver.
        max_evaluations: ends the run.
        callback: as in `minimize`.
        checkpoint: as in `minimize`.
        options: handed to the solver as they are.

    Returns:
        What was found; its `value` is half the sum of squares.

    Raises:
        InputError: as in `minimize`.
        ComponentError: as in `minimize`.

    Example:
        >>> import jax.numpy as jnp, chainrule
        >>> t = jnp.linspace(0.0, 1.0, 9)
        >>> y = 2.0 * jnp.exp(-3.0 * t)
        >>> fit = chainrule.least_squares(lambda p: p["a"] * jnp.exp(-p["k"] * t) - y, {"a": 1.0, "k": 1.0})
        >>> print({name: round(float(value), 3) for name, value in fit.x.items()})
        {'a': 2.0, 'k': 3.0}
    """
    if jacobian not in ("dense", "sparse", "products"):
        raise InputError(
            f"Expected jacobian='dense', 'sparse' or 'products'; found {jacobian!r}.",
            code="bad_option",
        )
    variables = variables_of(f, x0, bounds, free)
    of_tree = residuals_of(f, residuals)
    kind = find_method(method, LEAST_SQUARES_METHODS, {"optimistix": Method()})
    check_method(method, kind, has_bounds=variables.has_bounds, has_constraints=False)
    if method == "lm" and jacobian != "dense":
        raise InputError("The method 'lm' takes a dense Jacobian only.", code="bad_option")

    def flat(vector: Any) -> Any:
        found = _real(of_tree(variables.tree(vector)), "the residuals")
        if not found.size:
            raise InputError(
                "There are no residuals: the function returned none.", code="bad_objective"
            )
        return found

    evaluation = Evaluation(
        variables,
        _residual_computation(flat, jacobian),
        callback=callback,
        checkpoint=_path(checkpoint),
        max_evaluations=_count(max_evaluations),
        description=f"least_squares ({method})",
    )
    _check_tolerance(tolerance)
    options = dict(options or {})

    def solver(e: Evaluation) -> Answer:
        if method in LEAST_SQUARES_METHODS:
            return scipy_least_squares(e, method, tolerance=tolerance, options=options)
        function = _with_one_jacobian(flat)
        return optimistix_answer(
            method, "least_squares", function, e, tolerance=tolerance, options=options
        )

    return _result(evaluation, solve(evaluation, solver), method)


def _ipopt(evaluation: Evaluation, **settings: Any) -> Answer:
    installed("casadi", "casadi")
    from chainrule.optimize._ipopt import ipopt_minimize

    return ipopt_minimize(evaluation, **settings)


def _flat(problem: Problem, variables: Variables) -> Callable[[Any], tuple[Any, Any]]:
    def flat(vector: Any) -> tuple[Any, Any]:
        value, constraints = problem.function(variables.tree(vector))
        return _real(value, "the objective"), _real(joined(constraints), "the constraints")

    return flat


def _real(values: Any, who: str) -> Any:
    """Numbers in the precision of the solver; for others JAX has no derivative, or drops a part of them."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise InputError(
            f"Expected {who} as real floating-point numbers; found {values.dtype}.",
            code="bad_objective",
        )
    return values.astype(float)


def _computation(
    flat: Callable[[Any], tuple[Any, Any]], method: Method, *, has_constraints: bool, sparse: bool
) -> Callable[[Any], Point]:
    """Everything at one point in one compiled program."""
    if method.uses == "value":
        values = jax.jit(flat)

        def evaluate(x: Any) -> Point:
            value, constraints = values(x)
            return Point(value, None, constraints if has_constraints else None, None)

        return evaluate
    if not has_constraints:
        with_gradient = jax.jit(jax.value_and_grad(lambda x: flat(x)[0]))

        def evaluate_gradient(x: Any) -> Point:
            value, gradient = with_gradient(x)
            return Point(value, gradient, None, None)

        return evaluate_gradient
    whole = jax.jit(value_and_jacobian(flat, sparse=sparse))

    def evaluate_all(x: Any) -> Point:
        (value, constraints), (gradient, jacobian) = whole(x)
        if sparse:
            gradient, jacobian = gradient.todense(), jacobian.to_scipy()
        return Point(value, gradient, constraints, jacobian)

    return evaluate_all


def _residual_computation(flat: Callable[[Any], Any], jacobian: str) -> Callable[[Any], Point]:
    if jacobian == "products":
        return _products(flat)
    whole = jax.jit(value_and_jacobian(flat, sparse=jacobian == "sparse"))

    def evaluate(x: Any) -> Point:
        values, block = whole(x)
        # ½ Σ r² has the gradient Jᵀ r: the Jacobian that the solver needs anyway gives it.
        r = np.asarray(values, float)
        matrix = block.to_scipy() if jacobian == "sparse" else np.asarray(block, float)
        return Point(0.5 * r @ r, matrix.T @ r, r, matrix)

    return evaluate


def _with_one_jacobian(flat: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Residuals that are linearised by their planned Jacobian.

    optimistix linearises the residuals once per step and applies the linear function to many vectors. With
    this rule the linear function is v ↦ J v with a matrix J that is made once, so that the programs inside
    are asked for the products of the plan, and not for one product per vector.
    """
    function = jax.custom_jvp(flat)

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        values, matrix = value_and_jacobian(flat)(*primals)
        return values, matrix @ tangents[0]

    return function


def _products(flat: Callable[[Any], Any]) -> Callable[[Any], Point]:
    """The Jacobian as an operator.

    Programs are applied once per point, and a product is one JVP or VJP of each.
    """

    def evaluate(x: Any) -> Point:
        from scipy.sparse.linalg import LinearOperator

        values, push = jax.linearize(flat, x)
        pull = jax.linear_transpose(push, x)

        def product(function: Callable[[Any], Any], vector: Any) -> np.ndarray:
            with component_errors(), enable_x64(True):
                # A copy: scipy writes into what it gets.
                return np.array(function(jnp.asarray(np.ravel(vector), float)), float)

        r = np.asarray(values, float)
        matvec, rmatvec = partial(product, push), partial(product, lambda u: pull(u)[0])
        # Without a dtype scipy finds it by a product with integers, which no derivative takes.
        operator = LinearOperator((r.size, x.size), matvec=matvec, rmatvec=rmatvec, dtype=float)
        return Point(0.5 * r @ r, rmatvec(r), r, operator)

    return evaluate


def _hvp(flat: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any, Any], np.ndarray]:
    # d/dt ∇f(x + t v) = H v: forward over reverse, a few gradients' work and no matrix.
    gradient = jax.grad(lambda x: flat(x)[0])
    product = jax.jit(lambda x, v: jax.jvp(gradient, (x,), (v,))[1])

    def hvp(x: Any, v: Any) -> np.ndarray:
        with component_errors(), enable_x64(True):
            return np.asarray(product(jnp.asarray(x), jnp.asarray(v)), float)

    return hvp


def _limits(problem: Problem, variables: Variables) -> Limits | None:
    """The limits of all elements of the constraints, whose number the functions say without being run."""
    if not problem.bounds:
        return None
    with enable_x64(True):
        _, found = jax.eval_shape(lambda x: problem.function(variables.tree(x)), variables.start)
    return Limits.of(problem.bounds, [each.size for each in found])


def _result(evaluation: Evaluation, answer: Answer, method: str) -> Result:
    """The result of a run; the word of the solver counts only where bounds and constraints hold."""
    x = evaluation.best if answer.x is None else answer.x
    if x is None:
        x = evaluation.start
    point = evaluation.look(x)
    violation = 0.0 if evaluation.limits is None else evaluation.limits.violation(point.constraints)
    message = answer.message
    if answer.success and violation > FEASIBLE:
        message = f"{message} (but a constraint is violated by {violation:.2g})"
    return Result(
        x=evaluation.variables.tree(evaluation.clipped(x)),
        value=point.value,
        success=answer.success and violation <= FEASIBLE and bool(np.isfinite(point.value)),
        message=message,
        method=method,
        evaluations=len(evaluation.history),
        history=tuple(evaluation.history),
        raw=answer.raw,
    )


def _path(checkpoint: str | PathLike[str] | None) -> Path | None:
    return None if checkpoint is None else Path(checkpoint)


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InputError(
        f"Expected max_evaluations to be 1 or more; found {value!r}.", code="bad_option"
    )


def _check_tolerance(value: float | None) -> None:
    if value is not None and not value > 0:
        raise InputError(
            f"Expected tolerance to be a positive number; found {value!r}.", code="bad_option"
        )


# --- objectives and constraints -----------------------------------------------------------------

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
        value = _scalar(call_traced(function, tree), "The function")
        return value, [_constraint(g, tree) for g in functions]

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
        return value, [*held, *(_constraint(g, tree) for g in functions)]

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
        return lambda tree: joined(jax.tree.leaves(call_traced(function, tree)))
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


def _constraint(function: Callable[[Any], Any], tree: Any) -> Any:
    """The value of a constraint."""
    name = getattr(function, "__name__", "a function")
    return _array(call_traced(function, tree), f"The constraint {name}", "bad_constraints")


def _array(value: Any, who: str, code: str) -> Any:
    if is_arraylike(value) or isinstance(value, Number):
        return jnp.asarray(value)
    raise InputError(
        f"{who} has to return a number or an array; found {describe_value(value)}.", code=code
    )


def _scalar(value: Any, who: str) -> Any:
    value = _array(value, who, "bad_objective")
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
