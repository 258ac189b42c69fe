"""Ipopt by way of CasADi, which brings it in its wheel.

Objective and constraints are one Callback, and their derivatives another; both read the evaluation. An
exception inside a Callback would be turned into text and lost: it is kept, the solver gets NaN until it gives
up, and then the exception is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import casadi
from chainrule.optimize._evaluation import Evaluation, Point
from chainrule.optimize._solvers import Answer


class _Failure:
    """The first exception of a run."""

    error: BaseException | None = None


class _Callback(casadi.Callback):
    """A function of the variables that reads one evaluation."""

    def __init__(
        self,
        name: str,
        evaluation: Evaluation,
        failure: _Failure,
        read: Callable[[Point], list[Any]],
        sizes: tuple[list[Any], list[Any]],
        derivative: _Callback | None = None,
    ) -> None:
        casadi.Callback.__init__(self)
        self._evaluation = evaluation
        self._failure = failure
        self._read = read
        self._sizes = sizes
        self._derivative = derivative
        self.construct(name, {})

    def get_n_in(self) -> int:
        """Number of arguments."""
        return len(self._sizes[0])

    def get_n_out(self) -> int:
        """Number of results."""
        return len(self._sizes[1])

    def get_sparsity_in(self, i: int) -> Any:
        """Shape of an argument."""
        return self._sizes[0][i]

    def get_sparsity_out(self, i: int) -> Any:
        """Shape of a result."""
        return self._sizes[1][i]

    def has_jacobian(self) -> bool:
        """Whether there is a derivative."""
        return self._derivative is not None

    def get_jacobian(self, name: str, names_in: Any, names_out: Any, options: Any) -> Any:
        """The derivative."""
        return self._derivative

    def eval(self, arguments: Any) -> list[Any]:
        """The results, or NaN after a failure."""
        if self._failure.error is None:
            try:
                point = self._evaluation.at(arguments[0].full().ravel())
                return [casadi.DM(part) for part in self._read(point)]
            except BaseException as error:
                self._failure.error = error
        # NaN at a trial point makes Ipopt shorten its step, again and again; it gives up after a bounded
        # number of cuts. No further evaluation is made meanwhile, because the first error stays.
        return [casadi.DM(np.full(each.shape, np.nan)) for each in self._sizes[1]]


def ipopt_minimize(
    evaluation: Evaluation, *, tolerance: float | None, options: Mapping[str, Any]
) -> Answer:
    """Ipopt with an approximate Hessian; options are Ipopt's own."""
    n = evaluation.start.size
    limits = evaluation.limits
    m = 0 if limits is None else limits.lower.size
    dense = casadi.Sparsity.dense
    failure = _Failure()

    def values(point: Point) -> list[Any]:
        return [point.value, np.zeros((0, 1)) if limits is None else point.constraints]

    def derivatives(point: Point) -> list[Any]:
        rows = np.zeros((0, n)) if limits is None else _dense(point.jacobian)
        return [point.gradient.reshape(1, n), rows.reshape(m, n)]

    results = [dense(1, 1), dense(m, 1)]
    derivative = _Callback(
        "derivatives", evaluation, failure, derivatives,
        ([dense(n, 1), *results], [dense(1, n), dense(m, n)]),
    )  # fmt: skip
    sizes = ([dense(n, 1)], results)
    function = _Callback("problem", evaluation, failure, values, sizes, derivative)
    x = casadi.MX.sym("x", n)
    f, g = function(x)
    settings: dict[str, Any] = {
        "hessian_approximation": "limited-memory", "print_level": 0, "sb": "yes", **options,
    }  # fmt: skip
    if tolerance is not None:
        settings["tol"] = tolerance
    solver = casadi.nlpsol(
        "solver",
        "ipopt",
        {"x": x, "f": f, "g": g},
        {"print_time": False, "ipopt": settings, "show_eval_warnings": False},
    )
    variables = evaluation.variables
    bounds = {"lbx": variables.lower, "ubx": variables.upper}
    if limits is not None:
        bounds |= {"lbg": limits.lower, "ubg": limits.upper}
    raw = solver(x0=evaluation.start, **bounds)
    if failure.error is not None:
        raise failure.error
    statistics = solver.stats()
    return Answer(
        raw["x"].full().ravel(), bool(statistics["success"]), str(statistics["return_status"]), raw
    )


def _dense(jacobian: Any) -> np.ndarray:
    return jacobian.toarray() if hasattr(jacobian, "toarray") else np.asarray(jacobian)
