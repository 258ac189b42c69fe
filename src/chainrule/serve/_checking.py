"""`check_gradients` over HTTP: one call on one worker, with a bound on what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chainrule._errors import InputError
from chainrule.runtime.internal import DERIVATIVES, ENDPOINTS, LocalComponent, progress, unheard

CHECK_GRADIENTS = "check_gradients"
"""The endpoint's name."""


class _Request(BaseModel):
    """What a caller may ask for; the bounds keep one check from being a thousand calls."""

    model_config = ConfigDict(extra="forbid")

    inputs: Any
    input_paths: list[str] | None = None
    output_paths: list[str] | None = None
    endpoints: list[str] | None = None
    max_evals: int = Field(200, ge=10, le=1000)
    max_output_samples: int = Field(20, ge=1, le=200)
    rtol: float = Field(0.1, gt=0, lt=1)
    seed: int = 0


def can_check(endpoints: list[str]) -> bool:
    """Whether a component with these endpoints has a derivative to check."""
    return any(kind.endpoint in endpoints for kind in DERIVATIVES)


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


def run_check(component: LocalComponent, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Check the derivatives of a component at the inputs of a request.

    Raises:
        InputError: the request asks for something else, or for too much.
    """
    from chainrule.runtime.testing import check_gradients

    try:
        request = _Request.model_validate(payload)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InputError(
            f"This is not a gradient check: {problems[0]['msg']}.",
            code="invalid_input",
            details={"problems": problems},
        ) from None
    options = request.model_dump(exclude={"inputs"})
    counted = _Counted(component, request.max_evals)
    report = check_gradients(counted, {"inputs": request.inputs}, show_progress=False, **options)
    return report.to_dict()
