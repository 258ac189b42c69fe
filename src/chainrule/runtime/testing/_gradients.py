"""Checking a component's derivatives against its own `apply`, and against each other.

The tests:
    pointwise   sampled entries of the Jacobian against central differences
    taylor      φ(h) = ⟨u, f(x + h v)⟩ minus its linear part must vanish like h²; a wrong derivative leaves
                a remainder of order h, whatever the accuracy of any single difference
    adjoint     ⟨u, J v⟩ = ⟨Jᵀ u, v⟩: JVP, VJP and the Jacobian must agree on this number
    curvature   vᵀ H v of a Hessian-vector product against differences of the VJP
    shapes      abstract evaluation against the shapes and dtypes of the real result
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from chainrule._errors import CapabilityError, InputError
from chainrule.runtime._derivatives._kinds import (
    DERIVATIVES,
    FIRST_ORDER,
    HVP,
    JACOBIAN,
    JVP,
    VALUE_AND_VJP,
    VJP,
    DerivativeKind,
)
from chainrule.runtime._derivatives._products import contract
from chainrule.runtime._derivatives._second_order import hvp_from_vjp
from chainrule.runtime._derivatives._stencils import Eps
from chainrule.runtime.testing._entries import entries_of
from chainrule.runtime.testing._references import Samples, make_samples
from chainrule.runtime.testing._report import Check, GradientReport, Mismatch
from chainrule.runtime.testing._shapes import check_shapes
from chainrule.runtime.testing._subject import Differentiable, Subject
from chainrule.runtime.testing._taylor import Direction, check_taylor

__all__ = ["check_gradients"]

ATOL = 1e-8
ABSTRACT_EVAL = "abstract_eval"


def check_gradients(
    component: Differentiable,
    payload: Mapping[str, Any],
    *,
    input_paths: Collection[str] | None = None,
    output_paths: Collection[str] | None = None,
    endpoints: Collection[str] | None = None,
    max_evals: int = 1000,
    max_output_samples: int | None = None,
    eps: Eps = "auto",
    rtol: float = 0.1,
    seed: int | None = 0,
    show_progress: bool = True,
) -> GradientReport:
    """Test every derivative endpoint of a component at one point.

    Args:
        component: anything with the endpoint methods: in this process or behind a client.
        payload: the body of an `apply` request, `{"inputs": ...}`.
        input_paths: look at these inputs only.
        output_paths: look at these outputs only.
        endpoints: test these endpoints only; by default all derivative endpoints and `abstract_eval`.
        max_evals: bound on the evaluations for pointwise differences; elements are sampled beyond it.
        max_output_samples: bound on the output elements compared (each costs a VJP call).
        eps: the step: a number, one per input path, or `"auto"`.
        rtol: how far an entry may be off, relative to the difference; endpoints must agree with each
            other a hundred times better.
        seed: of the sampling and of the random directions.
        show_progress: show a bar on a terminal when it takes longer than two seconds.

    Returns:
        A report; `report.passed` says whether all is well, printing it with rich shows a table.

    Raises:
        InputError: the payload is no request body, a path is not differentiable, an endpoint asked
            for does not exist, or nothing could be compared within the bounds (`bad_option`). What an
            endpoint raises is a failed check, not an exception.
        CapabilityError: the component has no derivative endpoint.
    """
    _require_bounds(max_evals=max_evals, max_output_samples=max_output_samples, rtol=rtol)
    wanted = _choose_endpoints(component.available_endpoints, endpoints)
    subject = Subject(component, payload, input_paths, output_paths)
    generator = np.random.default_rng(seed)
    samples = make_samples(
        subject,
        generator,
        eps=eps,
        max_evals=max_evals,
        max_output_samples=max_output_samples,
        show_progress=show_progress,
    )
    direction = Direction.random(subject, generator)
    kinds = [kind for kind in FIRST_ORDER if kind.endpoint in wanted]
    checks = list(_check_derivatives(subject, samples, direction, kinds, rtol))
    if VALUE_AND_VJP.endpoint in wanted:
        checks.append(_check_value_and_vjp(subject, direction))
    if HVP.endpoint in wanted and VJP.endpoint in component.available_endpoints:
        checks.append(_check_curvature(subject, direction, rtol))
    if ABSTRACT_EVAL in wanted:
        checks.append(check_shapes(subject))
    return GradientReport(tuple(checks))


def _require_bounds(*, max_evals: int, max_output_samples: int | None, rtol: float) -> None:
    """Refuse bounds within which nothing is compared, or nothing can be right."""
    samples = 1 if max_output_samples is None else max_output_samples
    for name, value, least in (
        ("max_evals", max_evals, 1),
        ("max_output_samples", samples, 1),
        ("rtol", rtol, 0),
    ):
        if not value >= least:
            raise InputError(f"{name} must be {least} or more; found {value}.", code="bad_option")


def _choose_endpoints(available: Collection[str], asked: Collection[str] | None) -> set[str]:
    """What to test: never nothing, for a check of nothing would pass."""
    testable = [*(kind.endpoint for kind in DERIVATIVES), ABSTRACT_EVAL]
    chosen = set(testable) & set(available) if asked is None else set(asked)
    unknown = sorted(chosen - (set(testable) & set(available)))
    if unknown:
        raise InputError(
            f"The component has no endpoints {unknown} that could be checked; it has "
            f"{sorted(set(testable) & set(available))}.",
            code="endpoint_missing",
        )
    if not chosen - {ABSTRACT_EVAL} and asked is None:
        raise CapabilityError(
            "The component has no derivative endpoint, so there is no gradient to check.",
            code="nothing_to_check",
        )
    return chosen


def _check_derivatives(
    subject: Subject,
    samples: Samples,
    direction: Direction,
    kinds: list[DerivativeKind],
    rtol: float,
) -> Iterator[Check]:
    slopes: dict[str, float] = {}
    for kind in kinds:
        try:
            pointwise = _pointwise(kind, subject, samples, rtol)
            slopes[kind.short] = _slope(kind, subject, direction)
        except Exception as error:
            yield Check.raised(kind.endpoint, "pointwise", error)
            continue
        yield pointwise
        yield check_taylor(kind.endpoint, direction, slopes[kind.short])
    if len(slopes) > 1:
        yield _adjoint(slopes, direction, rtol)


def _pointwise(kind: DerivativeKind, subject: Subject, samples: Samples, rtol: float) -> Check:
    found = entries_of(kind, subject, samples)
    expected = samples.values
    wrong = ~(np.abs(found - expected) <= ATOL + samples.noise + rtol * np.abs(expected))
    mismatches = sorted(
        (_mismatch(samples, found, row, column) for row, column in np.argwhere(wrong)),
        key=lambda m: -m.error if np.isfinite(m.error) else -np.inf,
    )
    worst = np.max(np.abs(found - expected), initial=0.0)
    summary = f"{len(mismatches)} of {found.size} entries differ; largest difference {worst:.3g}"
    return Check(kind.endpoint, "pointwise", not mismatches, found.size, summary, tuple(mismatches))


def _mismatch(samples: Samples, found: np.ndarray, row: int, column: int) -> Mismatch:
    out_path, out_index = samples.rows.locate(int(samples.row_ids[row]))
    in_path, in_index = samples.columns.locate(int(samples.column_ids[column]))
    values = float(found[row, column]), float(samples.values[row, column])
    return Mismatch(in_path, out_path, in_index, out_index, *values)


def _slope(kind: DerivativeKind, subject: Subject, direction: Direction) -> float:
    """⟨u, J v⟩ as this endpoint sees it."""
    if kind is JACOBIAN:
        blocks = subject.differentiate(kind.endpoint)
        pushed = {
            out: sum(
                contract(JVP, row[p], v, input_rank=np.ndim(v), path=p, batched=False)
                for p, v in direction.tangent.items()
            )
            for out, row in blocks.items()
        }
        return direction.weigh(pushed)
    if kind is VJP:
        return _along(subject.differentiate(kind.endpoint, direction.cotangent), direction)
    return direction.weigh(subject.differentiate(kind.endpoint, direction.tangent))


def _along(gradient: Mapping[str, Any], direction: Direction) -> float:
    return sum(float(np.vdot(v, gradient[p])) for p, v in direction.tangent.items())


def _adjoint(slopes: Mapping[str, float], direction: Direction, rtol: float) -> Check:
    spread = max(slopes.values()) - min(slopes.values())
    scale = max(abs(slope) for slope in slopes.values())
    allowed = rtol / 100 * scale + direction.noise
    values = ", ".join(f"{name} {slope:.6g}" for name, slope in slopes.items())
    summary = f"⟨u, J v⟩ is {values}"
    return Check("all derivatives", "adjoint", bool(spread <= allowed), len(slopes), summary)


def _check_value_and_vjp(subject: Subject, direction: Direction) -> Check:
    endpoint = VALUE_AND_VJP.endpoint
    try:
        found = subject.differentiate(endpoint, direction.cotangent)
        slope = _along(found["gradient"], direction)
    except Exception as error:
        return Check.raised(endpoint, "taylor", error)
    return check_taylor(endpoint, direction, slope)


def _check_curvature(subject: Subject, direction: Direction, rtol: float) -> Check:
    vectors = (direction.cotangent, direction.tangent)
    try:
        found = subject.differentiate(HVP.endpoint, *vectors)
        paths = (subject.input_paths, subject.output_paths)
        vjp = getattr(subject.component, VJP.endpoint)
        expected = hvp_from_vjp(vjp, subject.inputs, *paths, *vectors)
    except Exception as error:
        return Check.raised(HVP.endpoint, "curvature", error)
    # ⟨v, H v⟩ alone could cancel; its terms cannot.
    terms = [
        (v * np.asarray(found[path]), v * expected[path]) for path, v in direction.tangent.items()
    ]
    difference = sum(float(np.sum(np.abs(a - b))) for a, b in terms)
    scale = sum(float(np.sum(np.abs(b))) for _, b in terms)
    allowed = ATOL + rtol * scale + direction.noise / np.sqrt(direction.unit)
    summary = f"H v differs by {difference:.3g} of {scale:.3g}"
    return Check(HVP.endpoint, "curvature", bool(difference <= allowed), len(terms), summary)
