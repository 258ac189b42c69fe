"""Checking a component's derivatives against its own `apply`, and against each other.

The tests:
    pointwise   sampled entries of the Jacobian against central differences
    taylor      φ(h) = ⟨u, f(x + h v)⟩ minus its linear part must vanish like h²; a wrong derivative leaves
                a remainder of order h, also where single differences are inaccurate
    adjoint     ⟨u, J v⟩ = ⟨Jᵀ u, v⟩: JVP, VJP and the Jacobian must agree on this number
    curvature   vᵀ H v of a Hessian-vector product against differences of the VJP
    shapes      abstract evaluation against the shapes and dtypes of the real result

Evaluations are counted. An endpoint that Chainrule derives may run the author's code once per element, so
calls have prices: the component says how often each of its endpoints runs the author's code. What the
author wrote is tested first; what is derived from it gets what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from chainrule._codec import SparseArray
from chainrule._describe import did_you_mean
from chainrule._endpoints import (
    DERIVATIVES,
    FIRST_ORDER,
    HVP,
    JACOBIAN,
    JVP,
    VALUE_AND_VJP,
    VJP,
    DerivativeKind,
    to_abstract,
)
from chainrule._errors import CapabilityError, InputError
from chainrule._paths import join_path
from chainrule._trees import (
    flatten_with_paths,
    get_at_path,
    is_arraylike,
    iterate_leaves,
)
from chainrule.runtime._component._definition import NATIVE, Capability
from chainrule.runtime._derivatives._layout import Layout, contract
from chainrule.runtime._derivatives._stencils import Eps
from chainrule.runtime.testing._report import Check, GradientReport, LeftOut, Mismatch
from chainrule.runtime.testing._samples import (
    STEPS,
    Direction,
    Samples,
    check_taylor,
    make_samples,
)
from chainrule.runtime.testing._subject import Differentiable, Subject

# For derivatives that are zero, where a relative tolerance allows nothing.
ATOL = 1e-8
ABSTRACT_EVAL = "abstract_eval"
MIN_EVALS = 10
"""The outputs, the Taylor test, differences of one element, and a few calls of an endpoint."""
CURVATURE_CALLS = 3
"""VJPs that a Hessian-vector product is compared with."""


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

    The endpoints that the author wrote are tested first. A call of an endpoint that is derived from another
    one counts as many evaluations as it makes of the author's code.

    Args:
        component: anything with the endpoint methods: in this process or behind a client.
        payload: the inputs, or the body of an `apply` request, `{"inputs": ...}`.
        input_paths: look at these inputs only.
        output_paths: look at these outputs only.
        endpoints: test these endpoints only; by default all derivative endpoints and `abstract_eval`.
        max_evals: bound on the evaluations of the author's code, 10 or more. Elements are sampled within
            it, and `report.left_out` says what was not tested.
        max_output_samples: bound on the output elements compared (each costs a VJP call).
        eps: the step: a number, one per input path, or `"auto"`.
        rtol: how far an entry may be off, relative to the difference; endpoints must agree with each
            other a hundred times better.
        seed: of the sampling and of the random directions.
        show_progress: show a bar on a terminal when it takes longer than two seconds.

    Returns:
        A report; `report.passed` says whether all is well, printing it with rich shows a table.

    Raises:
        InputError: the payload is not a dictionary, a path is not differentiable, an endpoint asked
            for does not exist, or nothing could be compared within the bounds (`bad_option`). What an
            endpoint raises is a failed check, not an exception.
        CapabilityError: the component has no derivative endpoint.
    """
    _require_bounds(max_evals=max_evals, max_output_samples=max_output_samples, rtol=rtol)
    wanted = _choose_endpoints(component.available_endpoints, endpoints)
    subject = Subject(component, payload, input_paths, output_paths)
    examination = _Examination(subject, wanted, max_evals, rtol)
    generator = np.random.default_rng(seed)
    direction = Direction.random(subject, generator, max_evals=max_evals)
    max_columns, spare = examination.columns()
    samples = make_samples(
        subject,
        generator,
        eps=eps,
        max_columns=max_columns,
        spare=spare,
        max_rows=max_output_samples or max_evals,
        show_progress=show_progress,
    )
    checks = list(examination.run(samples, direction))
    if not checks:
        raise InputError(
            f"Within max_evals={max_evals} nothing can be compared: "
            f"{'; '.join(f'{each.endpoint}: {each.reason}' for each in examination.left_out)}.",
            code="bad_option",
        )
    if ABSTRACT_EVAL in wanted:
        checks.append(check_shapes(subject))
    return GradientReport(tuple(checks), tuple(examination.left_out))


class _Examination:
    """The tests of some endpoints within a budget.

    Attributes:
        left_out: the tests that the budget does not allow.
    """

    def __init__(self, subject: Subject, endpoints: set[str], max_evals: int, rtol: float) -> None:
        self.left_out: list[LeftOut] = []
        self._subject = subject
        self._rtol = rtol
        self._max_evals = max_evals
        self._spent = 0
        self._prices = Prices(subject.component, subject.size)
        self._kinds = [kind for kind in DERIVATIVES if kind.endpoint in endpoints]
        if VJP.endpoint not in subject.component.available_endpoints and HVP in self._kinds:
            self._kinds.remove(HVP)  # there is nothing to compare it with

    def columns(self) -> tuple[int, int]:
        """For how many input elements to take differences, and how many evaluations are to spare then."""
        # Where the author wrote no derivative (finite differences), those that are derived are all there is.
        first = self._native() or self._kinds
        wishes: dict[Any, int] = {kind: self._wish(kind) for kind in first}
        wishes["differences"] = 2 * self._subject.size[0]
        # Asking whether there is room on both sides is an evaluation where no schema is here to say.
        asking = 0 if self._subject.has_schema else 2
        grants = share(wishes, self._left - asking)
        spare = self._left - asking - sum(grants.values())
        if asking:  # once more for every step that becomes longer
            spare //= 4
        return max(1, grants["differences"] // 2), max(0, spare)

    def run(self, samples: Samples, direction: Direction) -> Iterator[Check]:
        """Test the author's endpoints, then those that follow from them."""
        slopes: dict[str, float] = {}
        derived = [kind for kind in self._kinds if kind not in self._native()]
        for kinds in (self._native(), sorted(derived, key=self._wish)):
            grants = share({kind: self._wish(kind) for kind in kinds}, self._left)
            for kind in kinds:
                if kind in FIRST_ORDER:
                    yield from self._first_order(kind, samples, direction, grants[kind], slopes)
                else:
                    yield from self._other(kind, direction, grants[kind])
        if len(slopes) > 1:
            yield _adjoint(slopes, direction, self._rtol)

    def _native(self) -> list[DerivativeKind]:
        return [kind for kind in self._kinds if self._prices.is_native(kind.endpoint)]

    @property
    def _left(self) -> int:
        return self._max_evals - self._spent - self._subject.evaluations

    def _wish(self, kind: DerivativeKind) -> int:
        """The evaluations for all tests of an endpoint."""
        n, m = self._subject.size
        calls = {JVP: n + 1, VJP: m + 1}.get(kind, 1)
        return calls * self._prices.of(kind.endpoint) + self._reference(kind)

    def _reference(self, kind: DerivativeKind) -> int:
        """The evaluations for what an endpoint is compared with, beside the differences of `apply`."""
        return CURVATURE_CALLS * self._prices.of(VJP.endpoint) if kind is HVP else 0

    def _first_order(
        self,
        kind: DerivativeKind,
        samples: Samples,
        direction: Direction,
        granted: int,
        slopes: dict[str, float],
    ) -> Iterator[Check]:
        price = self._prices.of(kind.endpoint)
        calls = granted // price
        if not calls:
            self._leave_out(kind, "taylor, pointwise", price, granted)
            return
        answers = Answers(kind, self._subject)
        part = samples
        if kind is JVP:
            part = samples.part(max_rows=samples.row_ids.size, max_columns=calls - 1)
        elif kind is VJP:
            part = samples.part(max_rows=calls - 1, max_columns=samples.column_ids.size)
        try:
            slopes[kind.short] = answers.slope(direction)
            self._spent += price
            found = answers.entries(part) if part.values.size else None
            asked = {JVP: part.column_ids.size, VJP: part.row_ids.size}.get(kind, 0)
            self._spent += price * asked
        except Exception as error:
            slopes.pop(kind.short, None)
            yield Check.raised(kind.endpoint, "pointwise", error)
            return
        if found is None:
            self._leave_out(kind, "pointwise", 2 * price, granted)
        else:
            yield _pointwise(kind, found, part, self._rtol)
        yield check_taylor(kind.endpoint, direction, slopes[kind.short])

    def _other(self, kind: DerivativeKind, direction: Direction, granted: int) -> Iterator[Check]:
        test, check = (
            ("curvature", _check_curvature) if kind is HVP else ("taylor", _check_value_and_vjp)
        )
        price = self._prices.of(kind.endpoint) + self._reference(kind)
        if granted < price:
            self._leave_out(kind, test, price, granted)
            return
        self._spent += price
        found = check(self._subject, direction, self._rtol)
        if isinstance(found.error, CapabilityError):
            # The component says that it does not have this derivative. That is not a failure.
            self.left_out.append(LeftOut(kind.endpoint, test, found.error.message))
        else:
            yield found

    def _leave_out(self, kind: DerivativeKind, test: str, price: int, granted: int) -> None:
        reason = (
            f"takes {price} evaluations of the component's code; {granted} of "
            f"max_evals={self._max_evals} are left for it"
        )
        self.left_out.append(LeftOut(kind.endpoint, test, reason))


def _require_bounds(*, max_evals: int, max_output_samples: int | None, rtol: float) -> None:
    """Refuse bounds within which nothing is compared, or nothing can be right."""
    samples = 1 if max_output_samples is None else max_output_samples
    for name, value, least in (
        ("max_evals", max_evals, MIN_EVALS),
        ("max_output_samples", samples, 1),
        ("rtol", rtol, 0),
    ):
        if not value >= least:
            raise InputError(f"{name} must be {least} or more; found {value}.", code="bad_option")


def _choose_endpoints(available: Collection[str], asked: Collection[str] | None) -> set[str]:
    """What to test. It is never empty, because a check of nothing would pass."""
    testable = [*(kind.endpoint for kind in DERIVATIVES), ABSTRACT_EVAL]
    chosen = set(testable) & set(available) if asked is None else set(asked)
    unknown = sorted(chosen - (set(testable) & set(available)))
    if unknown:
        raise InputError(
            f"The component has no endpoints {unknown} that could be checked; it has "
            f"{sorted(set(testable) & set(available))}.{did_you_mean(unknown[0], testable)}",
            code="endpoint_missing",
        )
    if not chosen - {ABSTRACT_EVAL} and asked is None:
        raise CapabilityError(
            "The component has no derivative endpoint, so there is no gradient to check. Define one, "
            'or take differences with `@component(derivatives="finite")`; inputs and outputs to '
            "differentiate are marked in the schema, for example `x: Differentiable[Float64]`.",
            code="nothing_to_check",
        )
    return chosen


def _pointwise(kind: DerivativeKind, found: np.ndarray, samples: Samples, rtol: float) -> Check:
    expected, noise = samples.values, ATOL + samples.noise
    wrong = ~(np.abs(found - expected) <= noise + rtol * np.abs(expected))
    mismatches = sorted(
        (_mismatch(samples, found, row, column) for row, column in np.argwhere(wrong)),
        key=lambda m: -m.error if np.isfinite(m.error) else -np.inf,
    )
    parts = [
        f"{len(mismatches)} of {found.size} entries differ",
        f"largest relative difference {_largest_relative(found, expected, noise):.2g}",
        *_guesses(found, samples, wrong, noise),
    ]
    return Check(
        kind.endpoint,
        "pointwise",
        not mismatches,
        found.size,
        "; ".join(parts),
        tuple(mismatches),
        entries=tuple(zip(found.ravel().tolist(), expected.ravel().tolist(), strict=True)),
    )


def _largest_relative(found: np.ndarray, expected: np.ndarray, noise: np.ndarray) -> float:
    """Over the entries that are larger than the rounding of differences; others have no digits to compare."""
    size = np.maximum(np.abs(found), np.abs(expected))
    is_large = ~(size <= 10 * noise)
    relative = np.abs(found - expected)[is_large] / size[is_large]
    return float(np.max(relative, initial=0.0))


def _guesses(
    found: np.ndarray, samples: Samples, wrong: np.ndarray, noise: np.ndarray
) -> Iterator[str]:
    """What is probably wrong: inputs all of whose derivatives are off by one and the same factor."""
    paths = np.array([samples.columns.locate(int(column))[0] for column in samples.column_ids])
    for path in dict.fromkeys(paths[wrong.any(axis=0)]):
        here = (paths == path) & (np.abs(samples.values) > 10 * noise)
        if not here.any() or not wrong[here].all():
            continue
        factors = found[here] / samples.values[here]
        factor = float(np.median(factors))
        if np.all(np.abs(factors - factor) <= 0.02 * max(abs(factor), 0.1)):
            times = f"are {factor:.3g} times what they should be"
            yield f"all entries of `{path}` {_FACTORS.get(round(factor, 1), times)}"


_FACTORS = {
    0.0: "are zero",
    -1.0: "have the wrong sign",
    2.0: "are twice what they should be",
    0.5: "are half of what they should be",
}


def _mismatch(samples: Samples, found: np.ndarray, row: int, column: int) -> Mismatch:
    out_path, out_index = samples.rows.locate(int(samples.row_ids[row]))
    in_path, in_index = samples.columns.locate(int(samples.column_ids[column]))
    values = float(found[row, column]), float(samples.values[row, column])
    return Mismatch(in_path, out_path, in_index, out_index, *values)


def _adjoint(slopes: Mapping[str, float], direction: Direction, rtol: float) -> Check:
    spread = max(slopes.values()) - min(slopes.values())
    scale = max(abs(slope) for slope in slopes.values())
    allowed = rtol / 100 * scale + direction.noise
    values = ", ".join(f"{name} {slope:.6g}" for name, slope in slopes.items())
    summary = f"⟨u, J v⟩ is {values}"
    return Check("all derivatives", "adjoint", bool(spread <= allowed), len(slopes), summary)


def _check_value_and_vjp(subject: Subject, direction: Direction, rtol: float) -> Check:
    endpoint = VALUE_AND_VJP.endpoint
    try:
        found = subject.differentiate(endpoint, direction.cotangent)
        slope = direction.along(found["gradient"])
    except Exception as error:
        return Check.raised(endpoint, "taylor", error)
    return check_taylor(endpoint, direction, slope)


def _check_curvature(subject: Subject, direction: Direction, rtol: float) -> Check:
    vectors = (direction.cotangent, direction.tangent)
    try:
        found = subject.differentiate(HVP.endpoint, *vectors)
        expected = _differenced_vjp(subject, direction)
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


def _differenced_vjp(subject: Subject, direction: Direction) -> dict[str, np.ndarray]:
    """H v from the VJP at x, x + h v and x + 2h v: the direction leads away from bounds, −v may not."""
    # Long enough for a VJP that is itself a difference, and short enough to be within the room for v.
    h = np.clip(direction.unit ** (1 / 3), STEPS.min(), STEPS.max() / 2)
    here, near, far = (
        subject.differentiate(VJP.endpoint, direction.cotangent, at=direction.point(subject, k * h))
        for k in range(CURVATURE_CALLS)
    )
    return {
        path: (4 * np.asarray(near[path]) - 3 * np.asarray(here[path]) - np.asarray(far[path]))
        / (2 * h)
        for path in direction.tangent
    }


K = TypeVar("K")


def share(wishes: Mapping[K, int], available: int) -> dict[K, int]:
    """Divide a number fairly: small wishes are granted, large ones get equal parts of the rest."""
    granted = {}
    by_size = sorted(wishes, key=lambda key: wishes[key])
    for position, key in enumerate(by_size):
        granted[key] = min(wishes[key], max(available, 0) // (len(by_size) - position))
        available -= granted[key]
    return granted


class Prices:
    """What a call of each endpoint costs, in evaluations of the author's code.

    Args:
        component: its `capabilities` have the costs; without them every call counts as one.
        size: the numbers of input and output elements looked at.
    """

    def __init__(self, component: Any, size: tuple[int, int]) -> None:
        self._capabilities: Mapping[str, Capability] = getattr(component, "capabilities", {})
        self._size = size

    def of(self, endpoint: str) -> int:
        """The price of one call."""
        return max(1, self._capabilities.get(endpoint, NATIVE).cost.at(*self._size))

    def is_native(self, endpoint: str) -> bool:
        """Whether the author wrote this endpoint."""
        return self._capabilities.get(endpoint, NATIVE).status == "native"


class Answers:
    """A first-order derivative endpoint of a component at one point.

    Args:
        kind: which endpoint.
        subject: the component.
    """

    def __init__(self, kind: DerivativeKind, subject: Subject) -> None:
        self._kind = kind
        self._subject = subject

    def slope(self, direction: Direction) -> float:
        """⟨u, J v⟩, from one call."""
        if self._kind is JACOBIAN:
            pushed = {
                out: sum(
                    contract(JVP, row[p], v, input_rank=np.ndim(v), path=p, batched=False)
                    for p, v in direction.tangent.items()
                )
                for out, row in self._jacobian.items()
            }
            return direction.weigh(pushed)
        if self._kind is VJP:
            return direction.along(self._ask(direction.cotangent))
        return direction.weigh(self._ask(direction.tangent))

    def entries(self, samples: Samples) -> np.ndarray:
        """`matrix[row_ids][:, column_ids]` from the Jacobian, a JVP per column or a VJP per row."""
        rows, columns = samples.row_ids, samples.column_ids
        if self._kind is JACOBIAN:
            return _matrix(self._jacobian, samples)[np.ix_(rows, columns)]
        given, asked, answer = (
            (samples.columns, columns, samples.rows)
            if self._kind is JVP
            else (samples.rows, rows, samples.columns)
        )
        dtypes = self._subject.dtypes("inputs" if self._kind is JVP else "outputs")
        vectors = [
            answer.join(self._ask(_unit_vector(given, dtypes, element))) for element in asked
        ]
        matrix = np.array(vectors).reshape(len(asked), answer.size)
        return matrix[:, rows].T if self._kind is JVP else matrix[:, columns]

    @cached_property
    def _jacobian(self) -> Any:
        return self._subject.differentiate(self._kind.endpoint)

    def _ask(self, vector: Mapping[str, Any]) -> Any:
        return self._subject.differentiate(self._kind.endpoint, vector)


def _unit_vector(layout: Layout, dtypes: Mapping[str, np.dtype], element: int) -> dict[str, Any]:
    vector = np.zeros(layout.size)
    vector[element] = 1.0
    return {path: part.astype(dtypes[path]) for path, part in layout.split(vector).items()}


def _matrix(blocks: Any, samples: Samples) -> np.ndarray:
    def dense(block: Any) -> np.ndarray:
        return block.todense() if isinstance(block, SparseArray) else np.asarray(block)

    shape = (samples.rows.size, samples.columns.size)
    matrix = np.zeros(shape)
    for out_path, rows in samples.rows.slices().items():
        for in_path, columns in samples.columns.slices().items():
            part = matrix[rows, columns]
            part[...] = dense(blocks[out_path][in_path]).reshape(part.shape)
    return matrix


def check_shapes(subject: Subject) -> Check:
    """Whether `abstract_eval` gives the shape and dtype of every array that `apply` returns."""
    real = {
        path: _facts(leaf)
        for path, leaf in flatten_with_paths(subject.outputs).items()
        if is_arraylike(leaf)
    }
    try:
        abstract = _avals(subject.component.abstract_eval(to_abstract(subject.inputs)))
    except Exception as error:
        return Check.raised("abstract_eval", "shapes", error)
    wrong = [
        f"{path}: abstract_eval gives {abstract.get(path, 'nothing')}, apply {facts}"
        for path, facts in real.items()
        if abstract.get(path) != facts
    ]
    summary = "; ".join(wrong) or "shapes and dtypes equal those of apply"
    return Check("abstract_eval", "shapes", not wrong, len(real), summary)


def _facts(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _avals(tree: Any) -> dict[str, str]:
    """Path → facts of every abstract array: a node with just `shape` and `dtype`."""
    found: dict[str, str] = {}
    for segments, _ in iterate_leaves(tree):
        if segments[-1:] == ("dtype",):
            path = join_path(*segments[:-1])
            node = get_at_path(tree, path)
            found[path] = f"{node['dtype']}{list(node['shape'])}"
    return found
