"""Regression tests as files: a call, and what must come of it.

    {"endpoint": "apply", "payload": {"inputs": ...}, "expected_outputs": ..., "rtol": 1e-5, "atol": 1e-8}

The files are those of Tesseract (`test_cases/test_*.json` beside the component). They run over whatever
the component is reached by.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from chainrule._codec import encode_array
from chainrule._errors import CapabilityError, InputError, TransportError
from chainrule._trees import is_arraylike
from chainrule.runtime.testing._compare import compare
from chainrule.runtime.testing._defaults import with_defaults
from chainrule.runtime.testing._exceptions import (
    describe_chain,
    exception_name,
    matches_exception,
)
from chainrule.runtime.testing._subject import decode_tree

logger = logging.getLogger(__name__)


class RegressionSpec(BaseModel):
    """One test: exactly one of `expected_outputs` and `expected_exception` is given.

    Attributes:
        endpoint: name of the endpoint, in snake case.
        payload: the whole body of the request.
        expected_outputs: what must come back; arrays encoded (then shape and dtype must be equal) or as
            plain lists (which say nothing about the dtype). Fields that have their default may be left out.
        expected_exception: name of the exception, a builtin or dotted.
        expected_exception_regex: must be found in its message.
        atol: allowed absolute difference of inexact values.
        rtol: allowed relative difference of inexact values.
        skip_output_path_checks: do not compare file paths.
        cli_config: how the peer's command line mounts files; kept, not interpreted here.
    """

    model_config = ConfigDict(extra="forbid")

    endpoint: str
    payload: dict[str, Any] = Field(default_factory=dict)
    expected_outputs: Any = None
    expected_exception: str | None = None
    expected_exception_regex: str | None = None
    atol: float = Field(default=1e-8, ge=0)
    rtol: float = Field(default=1e-5, ge=0)
    skip_output_path_checks: bool = False
    cli_config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_expectation(self) -> RegressionSpec:
        if (self.expected_outputs is None) == (self.expected_exception is None):
            raise ValueError("give exactly one of expected_outputs and expected_exception")
        if self.expected_exception_regex is not None and self.expected_exception is None:
            raise ValueError("expected_exception_regex needs expected_exception")
        return self


@dataclass(frozen=True)
class RegressionResult:
    """The outcome: `failed` is a wrong answer, `error` an exception that was not expected."""

    status: Literal["passed", "failed", "error"]
    message: str
    endpoint: str

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return self.status == "passed"


def find_tests(folder: str | Path) -> list[Path]:
    """The test files that belong to a component: `test_cases/test_*.json` in its folder."""
    return sorted(Path(folder).glob("test_cases/test_*.json"))


def run_test(
    component: Any, test: RegressionSpec | Mapping[str, Any] | str | Path
) -> RegressionResult:
    """Run one regression test.

    Args:
        component: anything with `call(endpoint, payload)`, or with the endpoints as methods.
        test: the test, as an object or as the path of its file.

    Returns:
        The outcome with every difference in the message; nothing is raised for a failing component.

    Raises:
        pydantic.ValidationError: the test itself is malformed.
    """
    spec = _read(test)
    if spec.endpoint not in component.available_endpoints:
        known = ", ".join(component.available_endpoints)
        return _failed(spec, f"the component has no endpoint {spec.endpoint!r}; it has {known}")
    try:
        result = call(component, spec.endpoint, spec.payload)
    except Exception as error:
        return _judge_exception(spec, error)
    if spec.expected_exception is not None:
        return _failed(spec, f"expected {spec.expected_exception}, but the call succeeded")
    differences = compare(
        decode_tree(result),
        with_defaults(component, spec.endpoint, decode_tree(spec.expected_outputs)),
        rtol=spec.rtol,
        atol=spec.atol,
        skip_paths=spec.skip_output_path_checks,
    )
    if differences:
        return _failed(spec, "\n".join(differences))
    return RegressionResult("passed", "all outputs are as expected", spec.endpoint)


def record(
    component: Any,
    endpoint: str,
    payload: Mapping[str, Any],
    *,
    path: str | Path | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    expect_exception: bool = False,
) -> dict[str, Any]:
    """Make a regression test of what a component answers now.

    Args:
        component: as in `run_test`.
        endpoint: which endpoint to call.
        payload: the whole body of the request.
        path: when given, the test is also written there as JSON.
        rtol: of the test.
        atol: of the test.
        expect_exception: record the exception that the call raises. Without it the exception is raised
            and no test is made, because a misspelled field would become the expected behaviour.

    Returns:
        The test, JSON-ready.

    Raises:
        InputError: an exception is expected, but the call succeeds (`exception_missing`).
        ChainruleError: what the call raises, unless it is expected. That the component has no such
            endpoint, or cannot be reached, is never recorded.
    """
    test: dict[str, Any] = {"endpoint": endpoint, "payload": _encode_tree(payload)}
    test |= _expectation(component, endpoint, payload, expect_exception)
    test |= {"rtol": rtol, "atol": atol}
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(test, indent=2) + "\n")
        logger.info("wrote %s", path)
    return test


def _expectation(
    component: Any, endpoint: str, payload: Mapping[str, Any], expect_exception: bool
) -> dict[str, Any]:
    try:
        outputs = _encode_tree(call(component, endpoint, payload))
    except (CapabilityError, TransportError):
        raise  # the component did not answer
    except Exception as error:
        if not expect_exception:
            raise
        return {"expected_exception": exception_name(error)}
    if expect_exception:
        raise InputError(
            f"{endpoint}: the call was expected to raise, but it succeeds; no test was recorded.",
            code="exception_missing",
        )
    return {"expected_outputs": outputs}


def call(component: Any, endpoint: str, payload: Mapping[str, Any]) -> Any:
    """Call an endpoint by name with the body of a request."""
    if hasattr(component, "call"):
        return component.call(endpoint, payload)
    return getattr(component, endpoint)(**payload)


def _read(test: RegressionSpec | Mapping[str, Any] | str | Path) -> RegressionSpec:
    if isinstance(test, (str, Path)):
        return RegressionSpec.model_validate_json(Path(test).read_bytes())
    return test if isinstance(test, RegressionSpec) else RegressionSpec.model_validate(test)


def _failed(spec: RegressionSpec, message: str) -> RegressionResult:
    return RegressionResult("failed", message, spec.endpoint)


def _judge_exception(spec: RegressionSpec, error: Exception) -> RegressionResult:
    if spec.expected_exception is None:
        return RegressionResult("error", describe_chain(error), spec.endpoint)
    if matches_exception(error, spec.expected_exception, spec.expected_exception_regex):
        return RegressionResult("passed", "raised as expected", spec.endpoint)
    wanted = spec.expected_exception
    if spec.expected_exception_regex is not None:
        wanted += f" matching {spec.expected_exception_regex!r}"
    return _failed(spec, f"expected {wanted}, got {describe_chain(error)}")


def _encode_tree(tree: Any) -> Any:
    if isinstance(tree, BaseModel):
        return _encode_tree(tree.model_dump())
    if isinstance(tree, Mapping):
        return {str(key): _encode_tree(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_encode_tree(value) for value in tree]
    if isinstance(tree, (set, frozenset)):
        return sorted(tree)
    if isinstance(tree, Path):
        return str(tree)
    return encode_array(np.asarray(tree)) if is_arraylike(tree) else tree
