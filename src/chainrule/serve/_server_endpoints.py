"""The endpoints that a server adds to those of a component, for its page and for callers without Python.

    check_gradients   every derivative against finite differences, with a bound on its cost
    minimize          the inputs for which one number made of an output is smallest, within the bounds of the
                      schema
    plot              the author's own plots of a result

Each takes a component, the body of a request and the run that files belong to. Each reports its progress,
and ends with the job that it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chainrule._endpoints import ENDPOINTS, VJP, DerivativeKind
from chainrule._errors import InputError
from chainrule._progress import unheard
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime import LocalComponent, progress
from chainrule.runtime.internal import Document, Layout, Leaf, Run

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


def added_endpoints(component: LocalComponent) -> list[str]:
    """What a server adds to the endpoints of a component."""
    has = component.available_endpoints
    offered = {
        "check_gradients": any(isinstance(ENDPOINTS.get(name), DerivativeKind) for name in has),
        "minimize": VJP.endpoint in has and find_spec("scipy") is not None,
        "plot": component.has_plot,
    }
    return [name for name in ADDED if offered[name]]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inputs: Any


R = TypeVar("R", bound=_Request)


def _read(kind: type[R], payload: Mapping[str, Any], name: str) -> R:
    try:
        return kind.model_validate(payload)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InputError(
            f"This is not {name}: {problems[0]['msg']}.",
            code="invalid_input",
            details={"problems": problems},
        ) from None


class _CheckRequest(_Request):
    """What a caller may ask for; the bounds keep one check from being a thousand calls."""

    input_paths: list[str] | None = None
    output_paths: list[str] | None = None
    endpoints: list[str] | None = None
    max_evals: int = Field(200, ge=10, le=1000)
    max_output_samples: int = Field(20, ge=1, le=200)
    rtol: float = Field(0.1, gt=0, lt=1)
    seed: int = 0


class _Counted:
    """A component that says how much of a budget its calls have spent."""

    def __init__(self, component: LocalComponent, budget: int) -> None:
        self._component = component
        self._budget = budget
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._component, name)
        return partial(self._call, value) if name in ENDPOINTS else value

    def _call(self, endpoint: Callable[..., Any], *args: Any) -> Any:
        self._count += 1
        progress(min(self._count / self._budget, 1.0), f"{self._count} calls")
        with unheard():
            return endpoint(*args)


def check_gradients(
    component: LocalComponent, payload: Mapping[str, Any], run: Run
) -> dict[str, Any]:
    """Check the derivatives of a component at the inputs of a request.

    Raises:
        InputError: the request asks for something else, or for too much.
    """
    from chainrule.runtime.testing import check_gradients

    request = _read(_CheckRequest, payload, "a gradient check")
    options = request.model_dump(exclude={"inputs"})
    counted = _Counted(component, request.max_evals)
    report = check_gradients(counted, {"inputs": request.inputs}, show_progress=False, **options)
    return report.to_dict()


class _MinimizeRequest(_Request):
    """One number made of an output, and the inputs that vary."""

    objective: str
    reduction: Literal["sum", "mean"] = "sum"
    maximize: bool = False
    free: list[str] = Field(min_length=1)
    max_evaluations: int = Field(100, ge=1, le=10_000)


_ZERO_GRADIENT = 1e-5
"""The largest element of a gradient that counts as zero."""


class _SpentError(Exception):
    """The evaluations that were allowed are made."""


class _Objective:
    """The number and its gradient as scipy wants them; remembers every value and the best point.

    With φ(x) = ⟨w, y(x)⟩, where w is one for a sum and one over the size for a mean, the gradient is one
    vector-Jacobian product with w. A maximum of φ is a minimum of −φ.
    """

    def __init__(
        self, component: LocalComponent, request: _MinimizeRequest, tree: Any, leaves: list[Leaf]
    ) -> None:
        self._component = component
        self._request = request
        self._tree = tree
        self._leaves = leaves
        self.layout = Layout(
            tuple(leaf.path for leaf in leaves), tuple(leaf.shape for leaf in leaves)
        )
        self.history: list[float] = []
        self.best: tuple[float, np.ndarray] = (math.inf, np.zeros(0))

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        request, path = self._request, self._request.objective
        if len(self.history) >= request.max_evaluations:
            raise _SpentError
        inputs = set_at_path(self._tree, self.arrays(x))
        with unheard():
            output = self._output(self._component.call("apply", {"inputs": inputs}))
            weights = np.ones_like(output) / (output.size if request.reduction == "mean" else 1)
            body = {
                "inputs": inputs,
                "vjp_inputs": list(self.layout.paths),
                "vjp_outputs": [path],
                "cotangent_vector": {path: weights},
            }
            slopes = self._component.call(VJP.endpoint, body)
        value, gradient = float(np.sum(weights * output)), self.layout.join(slopes)
        self._note(value, x)
        sign = -1.0 if request.maximize else 1.0
        return sign * value, sign * np.asarray(gradient, float)

    def arrays(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Path → array of a point."""
        parts = self.layout.split(x)
        return {leaf.path: np.asarray(parts[leaf.path], leaf.dtype) for leaf in self._leaves}

    def _output(self, outputs: Any) -> np.ndarray:
        path = self._request.objective
        try:
            found = np.asarray(get_at_path(outputs, path))
        except (LookupError, TypeError, AttributeError):
            found = np.asarray(None)
        if found.dtype.kind != "f" or not found.size:
            raise InputError(
                f"{path!r} is no output with real numbers, so it cannot be minimised.",
                code="bad_objective",
                path=path,
            )
        return found

    def _note(self, value: float, x: np.ndarray) -> None:
        self.history.append(value)
        cost = -value if self._request.maximize else value
        # NaN is below nothing, so a point without a value is never the best one.
        if cost < self.best[0]:
            self.best = (cost, x.copy())
        count = len(self.history)
        progress(count / self._request.max_evaluations, f"evaluation {count}: {value:.9g}")


def minimize(component: LocalComponent, payload: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Minimise a number made of an output, from the inputs of a request.

    The bounds are those of the schema. The method is L-BFGS-B.

    Raises:
        InputError: the request is not one, a path is unknown, or the number is not finite at the start.
    """
    from scipy import optimize

    request = _read(_MinimizeRequest, payload, "a request to minimise")
    tree = component.read_inputs({"inputs": request.inputs})
    known = {leaf.path: leaf for leaf in Document(component.openapi_schema).leaves("inputs", tree)}
    unknown = [path for path in request.free if path not in known]
    if unknown:
        raise InputError(
            f"{component.name} has no differentiable input {unknown[0]!r} here; it has "
            f"{', '.join(known)}.",
            code="path_unknown",
            path=unknown[0],
        )
    leaves = [known[path] for path in dict.fromkeys(request.free)]
    objective = _Objective(component, request, tree, leaves)
    start = np.concatenate(
        [np.ravel(get_at_path(tree, leaf.path)).astype(float) for leaf in leaves]
    )
    lower, upper = (
        np.concatenate([np.full(leaf.size, getattr(leaf, side)) for leaf in leaves])
        for side in ("lower", "upper")
    )
    try:
        found = optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=optimize.Bounds(lower, upper),
            options={
                "gtol": _ZERO_GRADIENT,
                "maxiter": request.max_evaluations,
                "maxfun": request.max_evaluations,
            },
        )
        success, message = bool(found.success), _outcome(found, lower, upper, request)
    except _SpentError:
        success, message = False, _stopped(request)
    if not math.isfinite(objective.best[0]):
        raise InputError(
            f"{request.objective} is not finite at the start, so nothing can be minimised.",
            code="bad_start",
        )
    value = -objective.best[0] if request.maximize else objective.best[0]
    return {
        "inputs": objective.arrays(objective.best[1]),
        "value": value,
        "history": np.array(objective.history),
        "success": success,
        "message": message,
    }


def _stopped(request: _MinimizeRequest) -> str:
    return f"Stopped at the limit of {request.max_evaluations} evaluations."


def _outcome(
    found: OptimizeResult, lower: np.ndarray, upper: np.ndarray, request: _MinimizeRequest
) -> str:
    """Why L-BFGS-B ended, in words; its own are those of its Fortran code."""
    if found.status == 1:
        return _stopped(request)
    if found.status != 0:
        return "Stopped: no better value was found along the gradient. Check the gradients."
    # At an optimum within bounds, a step against the gradient leads out of them or is zero.
    step = found.x - np.clip(found.x - found.jac, lower, upper)
    if np.max(np.abs(step)) <= _ZERO_GRADIENT:
        return "Converged: the gradient is zero, except where a bound holds an input."
    return "Converged: the value no longer changes."


class _PlotRequest(_Request):
    """A result that a caller gives back."""

    outputs: Any


def plot(component: LocalComponent, payload: Mapping[str, Any], run: Run) -> dict[str, str]:
    """The author's plots of a result: title → HTML."""
    request = _read(_PlotRequest, payload, "a result to plot")
    return component.plot(request.inputs, request.outputs, run=run)


ADDED: dict[str, Callable[[LocalComponent, Mapping[str, Any], Run], Any]] = {
    "check_gradients": check_gradients,
    "minimize": minimize,
    "plot": plot,
}
"""Name → what answers it."""

WITHOUT_ARRAYS = ("check_gradients", "plot")
"""Those whose answers are plain JSON."""
