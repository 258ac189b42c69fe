"""`check_gradients` as the ancestor returns it: endpoint by endpoint, with lists of failures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from chainrule.runtime import load_component
from chainrule.runtime.testing import Check, GradientReport
from chainrule.runtime.testing import check_gradients as native_check_gradients

__all__ = ["GradientCheckResult", "check_gradients", "results_by_endpoint"]

_FEWEST = 10  # evaluations that a native check makes
_ENDPOINTS = ("jacobian", "jacobian_vector_product", "vector_jacobian_product")


class GradientCheckResult(NamedTuple):
    """One failure.

    Attributes:
        in_path: the input; empty when the failure is not about one entry.
        out_path: the output.
        idx: element of the input, then of the output.
        grad_val: what the endpoint says.
        ref_val: what finite differences say.
        exception: what was raised, or the property that does not hold, as text.
    """

    in_path: str
    out_path: str
    idx: tuple[int, ...]
    grad_val: float | None
    ref_val: float | None
    exception: str | None


def check_gradients(
    api_module: ModuleType | Any,
    inputs: Mapping[str, Any],
    *,
    input_paths: Collection[str] | None = None,
    output_paths: Collection[str] | None = None,
    base_dir: Path | None = None,
    endpoints: Collection[str] | None = None,
    max_evals: int = 1000,
    max_output_samples: int | None = None,
    eps: float | Mapping[str, float] = 1e-4,
    rtol: float = 0.1,
    seed: int | None = None,
    show_progress: bool = True,
) -> Iterator[tuple[str, list[GradientCheckResult], int]]:
    """Compare derivative endpoints with finite differences.

    Args:
        api_module: the module, or a component.
        inputs: the body of an `apply` request.
        input_paths: look at these inputs only.
        output_paths: look at these outputs only.
        base_dir: the folder that files in the inputs are relative to.
        endpoints: look at these endpoints only.
        max_evals: bound on the evaluations; at least ten are made.
        max_output_samples: bound on the output elements.
        eps: the step, or one per input path.
        rtol: allowed relative error.
        seed: of the sampled elements.
        show_progress: show a bar when it takes long.

    Yields:
        `(endpoint, failures, number of checks)`.
    """
    component = load_component(api_module)
    if base_dir is not None:
        component = component.configured(input_path=base_dir)
    wanted = endpoints or [name for name in _ENDPOINTS if name in component.available_endpoints]
    report = native_check_gradients(
        component,
        inputs,
        input_paths=input_paths,
        output_paths=output_paths,
        endpoints=wanted,
        max_evals=max(max_evals, _FEWEST),
        max_output_samples=max_output_samples,
        eps=eps,
        rtol=rtol,
        seed=seed,
        show_progress=show_progress,
    )
    yield from results_by_endpoint(report)


def results_by_endpoint(
    report: GradientReport,
) -> Iterator[tuple[str, list[GradientCheckResult], int]]:
    """The report of a native check, endpoint by endpoint; checks across endpoints only when they fail."""
    for endpoint in dict.fromkeys(check.endpoint for check in report.checks):
        checks = [check for check in report.checks if check.endpoint == endpoint]
        failures = [failure for check in checks for failure in _failures(check)]
        if failures or endpoint in _ENDPOINTS:
            yield endpoint, failures, sum(check.count for check in checks)


def _failures(check: Check) -> Iterator[GradientCheckResult]:
    for m in check.mismatches:
        index = (*m.input_index, *m.output_index)
        yield GradientCheckResult(m.input_path, m.output_path, index, m.found, m.expected, None)
    if not check.passed and not check.mismatches:
        summary = f"{check.test}: {check.summary}"
        yield GradientCheckResult("", "", (), None, None, summary)
