"""Regression tests: the file format, and a run of one test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel

from chainrule.runtime import load_component
from chainrule.runtime.testing import RegressionResult, run_test
from chainrule.runtime.testing import RegressionSpec as TestSpec

__all__ = [
    "TestCliConfig",
    "TestOutputSchema",
    "TestSpec",
    "make_test_endpoint",
    "outcome",
    "regress_test_case",
]


class TestCliConfig(BaseModel):
    """How the ancestor's command line mounts files for a test: `cli_config` of a test."""

    __test__ = False  # pytest would take the class for a test because of its name

    input_path: str | None = None
    volume_mounts: list[str] | None = None
    user: str | None = None


class TestOutputSchema(BaseModel):
    """The outcome of one test."""

    __test__ = False  # pytest would take the class for a test because of its name

    status: Literal["passed", "failed", "error"]
    message: str
    endpoint: str


def regress_test_case(
    api_module: ModuleType | Any,
    endpoint_functions: Mapping[str, Callable[..., Any]] | None,
    test_spec: TestSpec | Mapping[str, Any],
    *,
    base_dir: Path | None = None,
    threshold: int = 100,
) -> TestOutputSchema:
    """Run one regression test of a module.

    Args:
        api_module: the module, or a component.
        endpoint_functions: accepted; a component knows its endpoints.
        test_spec: the test.
        base_dir: the folder that files in the payload are relative to.
        threshold: accepted; messages never list data.
    """
    component = load_component(api_module)
    if base_dir is not None:
        component = component.configured(input_path=base_dir)
    return outcome(run_test(component, test_spec))


def outcome(result: RegressionResult) -> TestOutputSchema:
    """The outcome of a native test: of one that passes there is nothing to say."""
    message = "" if result.passed else result.message
    return TestOutputSchema(status=result.status, message=message, endpoint=result.endpoint)


def make_test_endpoint(
    api_module: ModuleType | Any, endpoints: Sequence[Callable[..., Any]]
) -> Callable[[TestSpec], TestOutputSchema]:
    """A function that runs one test of a module.

    Args:
        api_module: the module, or a component.
        endpoints: accepted; a component knows its endpoints.
    """

    def test(payload: TestSpec) -> TestOutputSchema:
        """Run one regression test."""
        return regress_test_case(api_module, None, payload)

    return test
