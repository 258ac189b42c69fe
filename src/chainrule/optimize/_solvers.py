"""The solvers: each is a function of an `Evaluation` that returns its answer in one form.

A method is named as its package names it: `"SLSQP"` is scipy's, `"nlopt.LD_MMA"` NLopt's and
`"optimistix.BFGS"` that of optimistix; `"ipopt"` is Ipopt. What a solver cannot do (bounds, constraints) is
refused; most of them would ignore it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._describe import did_you_mean
from chainrule._errors import InputError, missing_dependency
from chainrule.optimize._evaluation import Evaluation, Limits, Point, StoppedError


@dataclass(frozen=True)
class Answer:
    """What a solver says.

    Attributes:
        x: the point it ended at; `None` when it was stopped.
        success: whether it says that this is a solution.
        message: its words.
        raw: its own result object.
    """

    x: np.ndarray | None
    success: bool
    message: str
    raw: Any


@dataclass(frozen=True)
class Method:
    """What a method of minimisation can do.

    Attributes:
        uses: `"value"`, `"gradient"` or `"hvp"`: the highest derivative that it asks for.
        bounds: whether it keeps bounds.
        constraints: whether it keeps constraints.
    """

    uses: str = "gradient"
    bounds: bool = False
    constraints: bool = False


SCIPY_METHODS: Mapping[str, Method] = {
    "L-BFGS-B": Method(bounds=True),
    "SLSQP": Method(bounds=True, constraints=True),
    "trust-constr": Method(bounds=True, constraints=True),
    "TNC": Method(bounds=True),
    "BFGS": Method(),
    "CG": Method(),
    "Newton-CG": Method("hvp"),
    "trust-ncg": Method("hvp"),
    "trust-krylov": Method("hvp"),
    "Nelder-Mead": Method("value", bounds=True),
    "Powell": Method("value", bounds=True),
    "COBYLA": Method("value", bounds=True, constraints=True),
    "COBYQA": Method("value", bounds=True, constraints=True),
}
LEAST_SQUARES_METHODS: Mapping[str, Method] = {
    "trf": Method(bounds=True),
    "dogbox": Method(bounds=True),
    "lm": Method(),
}


def find_method(name: str, known: Mapping[str, Method], packages: Mapping[str, Method]) -> Method:
    """What a method can do.

    Args:
        name: of the method.
        known: the methods of scipy.
        packages: prefix → what the methods of another package can do.

    Raises:
        InputError: there is no such method (`bad_option`).
    """
    prefix = str(name).partition(".")[0]
    if name in known:
        return known[name]
    if prefix in packages and ("." in str(name)) != (prefix == "ipopt"):
        return packages[prefix]
    others = ", ".join(each if each == "ipopt" else f"{each}.…" for each in packages)
    raise InputError(
        f"There is no method {name!r}; there are {', '.join(known)} of scipy, and {others}."
        f"{did_you_mean(name, known)}",
        code="bad_option",
    )


def check_method(name: str, method: Method, *, has_bounds: bool, has_constraints: bool) -> None:
    """Refuse what a method would ignore.

    Raises:
        InputError: it takes no bounds, or no constraints (`bad_option`).
    """
    for wanted, can, what in (
        (has_bounds, method.bounds, "bounds"),
        (has_constraints, method.constraints, "constraints"),
    ):
        if wanted and not can:
            able = ", ".join(each for each, m in SCIPY_METHODS.items() if getattr(m, what))
            hint = " Pass bounds=None to leave them out." if what == "bounds" else ""
            raise InputError(
                f"The method {name!r} takes no {what}; {able} do.{hint}", code="bad_option"
            )


def solve(evaluation: Evaluation, solver: Callable[[Evaluation], Answer]) -> Answer:
    """Run a solver; when the run is stopped from inside, the answer says why."""
    with evaluation.running():
        try:
            return solver(evaluation)
        except StoppedError as stopped:
            return Answer(None, False, f"Stopped: {stopped}.", None)


def scipy_minimize(
    evaluation: Evaluation,
    name: str,
    *,
    hvp: Callable[[Any, Any], Any] | None,
    tolerance: float | None,
    options: Mapping[str, Any],
) -> Answer:
    """One of scipy's methods."""
    from scipy.optimize import Bounds, NonlinearConstraint, minimize

    _refuse_misspelt(name, options)
    variables, limits = evaluation.variables, evaluation.limits
    method = SCIPY_METHODS[name]
    gradient = method.uses != "value"
    arguments: dict[str, Any] = {}
    if gradient:
        arguments["jac"] = lambda x: evaluation.at(x).gradient
    if hvp is not None:
        arguments["hessp"] = hvp
    if variables.has_bounds:
        arguments["bounds"] = Bounds(variables.lower, variables.upper)
    if limits is not None:
        # SLSQP wants equalities and inequalities apart.
        equal = (limits.lower == limits.upper) & (name == "SLSQP")
        arguments["constraints"] = [
            NonlinearConstraint(
                lambda x, rows=rows: evaluation.at(x).constraints[rows],
                limits.lower[rows],
                limits.upper[rows],
                **(
                    {"jac": lambda x, rows=rows: evaluation.at(x).jacobian[rows]}
                    if gradient
                    else {}
                ),
            )
            for rows in map(np.flatnonzero, (equal, ~equal))
            if rows.size
        ]
    raw = minimize(
        lambda x: evaluation.at(x).value,
        evaluation.start,
        method=name,
        tol=tolerance,
        options=dict(options),
        **arguments,
    )
    return _answer(name, raw)


def _refuse_misspelt(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that looks like one of a method's. scipy warns of the others and goes on."""
    from scipy.optimize import show_options

    text = show_options("minimize", name, disp=False)
    names = re.findall(r"^ *((?:\w+, )*\w+) *:", text, re.MULTILINE)
    known = {name for line in names for name in line.split(", ")}
    for option in options:
        if option not in known and (advice := did_you_mean(option, known)):
            raise InputError(f"{name} has no option {option}.{advice}", code="bad_option")


def scipy_least_squares(
    evaluation: Evaluation, name: str, *, tolerance: float | None, options: Mapping[str, Any]
) -> Answer:
    """scipy's least squares; residuals and Jacobian are those of the evaluation."""
    from scipy.optimize import least_squares

    variables = evaluation.variables
    fixed = np.flatnonzero(variables.lower == variables.upper)
    if fixed.size:
        raise InputError(
            "This method needs lower bounds below the upper ones; the bounds of "
            f"{variables.name(fixed[0])} are {variables.lower[fixed[0]]:g} and "
            f"{variables.upper[fixed[0]]:g}. Pass what does not vary by `functools.partial`.",
            code="bad_bounds",
        )
    limits = (variables.lower, variables.upper) if variables.has_bounds else (-np.inf, np.inf)
    tolerances = {} if tolerance is None else dict.fromkeys(("ftol", "xtol", "gtol"), tolerance)
    raw = least_squares(
        lambda x: evaluation.at(x).constraints,
        evaluation.start,
        jac=lambda x: evaluation.at(x).jacobian,
        bounds=limits,
        method=name,
        **{**tolerances, **options},
    )
    return _answer(name, raw)


def _answer(name: str, raw: Any) -> Answer:
    """What a method of scipy says. Some of them say it in capitals."""
    words = str(raw.message).strip().rstrip(".")
    words = words.lower() if words.isupper() else words
    verdict = "Converged" if raw.success else "Not converged"
    message = f"{verdict}. {name} says: {words.removeprefix('convergence: ')}."
    return Answer(np.asarray(raw.x, float), bool(raw.success), message, raw)


def nlopt_minimize(
    evaluation: Evaluation, name: str, *, tolerance: float | None, options: Mapping[str, Any]
) -> Answer:
    """One of NLopt's algorithms; options are the names of its setters without `set_`."""
    nlopt = installed("nlopt", "nlopt")
    algorithm = getattr(nlopt, name.partition(".")[2], None)
    if not isinstance(algorithm, int):
        raise InputError(f"NLopt has no algorithm {name!r}.", code="bad_option")
    solver = nlopt.opt(algorithm, evaluation.start.size)
    solver.set_lower_bounds(evaluation.variables.lower)
    solver.set_upper_bounds(evaluation.variables.upper)
    evaluate = _Remembering(evaluation)

    def objective(x: np.ndarray, gradient: np.ndarray) -> float:
        point = evaluate(x)
        if gradient.size:
            gradient[:] = point.gradient
        return point.value

    solver.set_min_objective(objective)
    try:
        _add_constraints(solver, evaluate, evaluation.limits)
    except nlopt.invalid_argument:
        raise InputError(
            f"The method {name!r} takes no equality constraints, or no constraints at all; nlopt.LD_SLSQP "
            "and nlopt.LN_COBYLA do.",
            code="bad_option",
        ) from None
    solver.set_xtol_rel(tolerance or 1e-8)
    solver.set_ftol_rel(tolerance or 1e-12)
    for option, value in options.items():
        if not hasattr(solver, f"set_{option}"):
            raise InputError(f"NLopt has no option {option!r} (`set_{option}`).", code="bad_option")
        getattr(solver, f"set_{option}")(value)
    try:
        x = solver.optimize(evaluation.start)
    except nlopt.invalid_argument:
        raise InputError(
            f"NLopt refuses this problem for {name!r}. Some of its algorithms need bounds of all "
            "variables, or more than one variable.",
            code="bad_option",
        ) from None
    except Exception as error:
        if evaluate.error is not None:
            raise evaluate.error from None
        reason = f"NLopt: {type(error).__name__} {solver.get_errmsg() or ''}".strip()
        return Answer(None, False, reason, solver.last_optimize_result())
    status = solver.last_optimize_result()
    words = {1: "success", 2: "stopval", 3: "ftol", 4: "xtol", 5: "maxeval", 6: "maxtime"}
    return Answer(
        np.asarray(x, float), status in (1, 3, 4), f"NLopt: {words.get(status, status)}", status
    )


class _Remembering:
    """The evaluation of points, and the first error in it, which NLopt may replace by one of its own."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.error: BaseException | None = None

    def __call__(self, x: np.ndarray) -> Point:
        try:
            return self._evaluation.at(x)
        except BaseException as error:
            self.error = self.error or error
            raise


def _add_constraints(solver: Any, evaluate: _Remembering, limits: Limits | None) -> None:
    if limits is None:
        return
    equal = limits.lower == limits.upper
    # NLopt knows c ≤ 0 and c = 0: signs and shifts make them of lower and upper bounds.
    sides = (
        (solver.add_equality_mconstraint, equal, 1.0, limits.upper),
        (solver.add_inequality_mconstraint, ~equal & np.isfinite(limits.upper), 1.0, limits.upper),
        (solver.add_inequality_mconstraint, ~equal & np.isfinite(limits.lower), -1.0, limits.lower),
    )
    for add, rows, sign, bound in sides:
        if rows.any():
            add(_mconstraint(evaluate, rows, sign, bound), np.full(int(rows.sum()), 1e-8))


def _mconstraint(
    evaluate: _Remembering, rows: np.ndarray, sign: float, bound: np.ndarray
) -> Callable[..., None]:
    def constraint(result: np.ndarray, x: np.ndarray, gradient: np.ndarray) -> None:
        point = evaluate(x)
        result[:] = sign * (point.constraints - bound)[rows]
        if gradient.size:
            # l ≤ c becomes l - c ≤ 0, whose derivative is -∂c/∂x: the sign belongs to the value and to the
            # gradient.
            gradient[:] = sign * np.asarray(point.jacobian)[rows]

    return constraint


def optimistix_solver(
    name: str, kind: str, tolerance: float | None, options: Mapping[str, Any]
) -> Any:
    """A solver object of optimistix.

    Raises:
        InputError: optimistix has no such solver (`bad_option`).
    """
    optx = installed("optimistix", "optimize")
    base = optx.AbstractMinimiser if kind == "minimise" else optx.AbstractLeastSquaresSolver
    solver = getattr(optx, name.partition(".")[2], None)
    if not (isinstance(solver, type) and issubclass(solver, base)):
        known = [
            each
            for each, value in vars(optx).items()
            if isinstance(value, type)
            and issubclass(value, base)
            and not each.startswith("Abstract")
        ]
        raise InputError(
            f"optimistix has no solver {name!r} for this; it has {', '.join(sorted(known))}.",
            code="bad_option",
        )
    rtol = tolerance or 1e-8
    return solver(rtol=rtol, atol=rtol, **options)


def optimistix_answer(
    name: str,
    kind: str,
    function: Callable[[Any], Any],
    evaluation: Evaluation,
    *,
    tolerance: float | None,
    options: Mapping[str, Any],
) -> Answer:
    """A solver of optimistix, step by step, so that the run can be followed and stopped.

    A step is one compiled program. What it evaluates is handed out while it runs, and looked at after it: a
    callback of the user's may call JAX, which waits for the program.
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from chainrule._jaxpr import enable_x64
    from chainrule.bridge import component_errors

    optx = installed("optimistix", "optimize")
    solver = optimistix_solver(name, kind, tolerance, options)
    evaluation.at(evaluation.start)  # refuses a start without a value
    seen: list[tuple[Any, Any]] = []

    def followed(y: Any, _: Any) -> tuple[Any, None]:
        found = function(y)
        value = found if kind == "minimise" else 0.5 * jnp.sum(found**2)
        jax.debug.callback(lambda *pair: seen.append(pair), y, value)
        return found, None

    with component_errors(), enable_x64(True):
        y = jnp.asarray(evaluation.start)
        shape = jax.eval_shape(function, y)
        given: dict[str, Any] = {
            "fn": followed, "args": None, "options": {}, "tags": frozenset(),
        }  # fmt: skip
        state = solver.init(y=y, f_struct=shape, aux_struct=None, **given)
        step, terminate = (
            eqx.filter_jit(eqx.Partial(each, **given)) for each in (solver.step, solver.terminate)
        )
        steps, aux = 0, None
        done, result = terminate(y=y, state=state)
        while not done and result == optx.RESULTS.successful:
            y, state, aux = step(y=y, state=state)
            done, result = terminate(y=y, state=state)
            steps += 1
            jax.effects_barrier()
            while seen:
                evaluation.note(*map(np.asarray, seen.pop(0)))
            if not np.isfinite(y).all():
                result = optx.RESULTS.nonfinite
        y, aux, statistics = solver.postprocess(y=y, aux=aux, state=state, result=result, **given)
    success = bool(result == optx.RESULTS.successful)
    words = str(optx.RESULTS[result]) or "optimistix: success"
    statistics = {"num_steps": steps, **statistics}
    raw = optx.Solution(value=y, result=result, aux=aux, stats=statistics, state=state)
    return Answer(np.asarray(y, float), success, words, raw)


def installed(module: str, extra: str) -> Any:
    """A package that a method needs.

    Raises:
        CapabilityError: it is not installed (`missing_dependency`).
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_dependency("This method needs", module, f"'chainrule[{extra}]'") from error
