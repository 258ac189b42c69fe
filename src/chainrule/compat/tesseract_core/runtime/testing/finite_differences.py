"""`check_gradients` as the ancestor does it: drawn input elements, one row of a Jacobian for each.

The native check (`chainrule.runtime.testing.check_gradients`) is stronger: it chooses its steps, stays within
the bounds of a schema, and also looks at Taylor remainders and at the adjoint identity. Programs written for
the ancestor count what it visits, so here the same elements are visited for the same arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from chainrule._codec import SparseArray
from chainrule._progress import track
from chainrule._trees import expand_pattern, get_at_path, set_at_path
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.internal import Subject

__all__ = ["GradientCheckResult", "check_gradients"]

_ATOL = 1e-8
_ENDPOINTS = ("jacobian", "jacobian_vector_product", "vector_jacobian_product")
_Index = tuple[int, ...]


class GradientCheckResult(NamedTuple):
    """One failure.

    Attributes:
        in_path: the input.
        out_path: the output.
        idx: the element of the input.
        grad_val: the derivatives of the output's elements by it, as the endpoint gives them.
        ref_val: the same as finite differences give them.
        exception: what was raised, as text.
    """

    in_path: str
    out_path: str
    idx: _Index
    grad_val: Any
    ref_val: Any
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
    """Compare derivative endpoints with central differences.

    Args:
        api_module: the module, or a component.
        inputs: the body of an `apply` request.
        input_paths: look at these inputs only.
        output_paths: look at these outputs only.
        base_dir: the folder that files in the inputs are relative to.
        endpoints: look at these endpoints only; by default at those that the author wrote.
        max_evals: about how many input elements to draw, with replacement and in proportion to the sizes of
            the inputs; scalars, and one element of every array, are always among them.
        max_output_samples: bound on the output elements that vector-Jacobian products are asked for.
        eps: the step, or one per input path.
        rtol: allowed relative error.
        seed: of the drawn elements.
        show_progress: show a bar when it takes long.

    Yields:
        `(endpoint, failures, number of rows compared)`.

    Raises:
        ValueError: there is no such endpoint or path, or a step is missing.
    """
    if max_output_samples is not None and max_output_samples <= 0:
        raise ValueError(f"max_output_samples must be greater than 0; found {max_output_samples}.")
    component = load_component(api_module)
    if base_dir is not None:
        component = component.configured(input_path=base_dir)
    wanted = _choose_endpoints(component, endpoints)
    subject = Subject(component, inputs, input_paths or None, output_paths or None)
    point = _Point(component, subject, eps)
    # Two generators with one seed, as there: how many outputs are drawn has no influence on the inputs.
    draws, output_draws = np.random.RandomState(seed), np.random.RandomState(seed)
    for endpoint in wanted:
        elements = _draw_elements(point, max_evals, draws)
        rows = _Rows(point, endpoint, max_output_samples, output_draws)
        entries = [(path, out, index) for path, index in elements for out in point.output_paths]
        tracked = track(entries, f"Checking {endpoint}", len(entries), show=show_progress)
        found = [_compare(rows, entry, rtol) for entry in tracked]
        yield endpoint, [failure for failure in found if failure is not None], len(entries)


def _choose_endpoints(component: LocalComponent, asked: Collection[str] | None) -> Sequence[str]:
    offered = [name for name in _ENDPOINTS if name in component.available_endpoints]
    unknown = [name for name in asked or () if name not in offered]
    if unknown:
        raise ValueError(
            f"Endpoint {unknown[0]} not found in {component.name}; it has {', '.join(offered)}."
        )
    written = [name for name in offered if component.capabilities[name].status == "native"]
    if not (asked or written):
        raise ValueError(f"No gradient endpoints found in {component.name}.")
    return list(asked or written)


class _Point:
    """A component at one point, with the paths that are looked at in the order of its schemas.

    Attributes:
        arrays: the inputs by path.
        outputs: the outputs by path.
    """

    def __init__(
        self, component: LocalComponent, subject: Subject, eps: float | Mapping[str, float]
    ) -> None:
        self._subject = subject
        ordered = {
            "in": _expanded(component.differentiable_inputs, subject.inputs),
            "out": _expanded(component.differentiable_outputs, subject.outputs),
        }
        self.input_paths = [path for path in ordered["in"] if path in subject.input_paths]
        self.output_paths = [path for path in ordered["out"] if path in subject.output_paths]
        self.arrays = {p: np.asarray(get_at_path(subject.inputs, p)) for p in self.input_paths}
        self.outputs = {p: np.asarray(get_at_path(subject.outputs, p)) for p in self.output_paths}
        self._steps = dict(eps) if isinstance(eps, Mapping) else dict.fromkeys(self.arrays, eps)
        self._differences: dict[tuple[str, _Index], dict[str, np.ndarray]] = {}
        for said, paths in (
            ("has no step for", self.arrays.keys() - self._steps.keys()),
            (
                "has steps for inputs that are not looked at:",
                self._steps.keys() - self.arrays.keys(),
            ),
        ):
            if paths:
                raise ValueError(f"eps {said} {', '.join(sorted(paths))}.")

    def differences(self, path: str, index: _Index) -> dict[str, np.ndarray]:
        """Central differences of all outputs by one input element."""
        key = (path, index)
        if key not in self._differences:
            step = self._steps[path]
            above, below = (self._moved(path, index, h) for h in (step, -step))
            self._differences[key] = {
                out: (above[out] - below[out]) / (2 * step) for out in self.output_paths
            }
        return self._differences[key]

    def _moved(self, path: str, index: _Index, step: float) -> dict[str, np.ndarray]:
        moved = self.arrays[path].copy()
        moved[index] += step
        outputs = self._subject.apply(set_at_path(self._subject.inputs, {path: moved}))
        return {out: np.asarray(get_at_path(outputs, out)) for out in self.output_paths}

    def ask(self, endpoint: str, path: str, out: str, *vector: Mapping[str, Any]) -> Any:
        """The answer of a derivative endpoint for one input and one output."""
        function = getattr(self._subject.component, endpoint)
        return function(self._subject.inputs, {path}, {out}, *vector)


def _expanded(patterns: Mapping[str, Any], tree: Any) -> list[str]:
    return [path for pattern in patterns for path in expand_pattern(pattern, tree)]


def _draw_elements(
    point: _Point, max_evals: int, draws: np.random.RandomState
) -> list[tuple[str, _Index]]:
    """Input elements, those of an array as often as its share of all elements says."""
    total = sum(array.size for array in point.arrays.values())
    elements: list[tuple[str, _Index]] = []
    for path, array in point.arrays.items():
        if array.ndim == 0:
            elements.append((path, ()))
        elif array.size:
            count = max(1, int(max_evals * array.size / total))
            elements += [(path, i) for i in _draw(array.shape, count, draws, replace=True)]
    return elements


def _draw(
    shape: _Index, count: int, draws: np.random.RandomState, *, replace: bool
) -> list[_Index]:
    flat = draws.choice(int(np.prod(shape)), size=count, replace=replace)
    return [tuple(map(int, index)) for index in zip(*np.unravel_index(flat, shape), strict=True)]


class _Rows:
    """The derivatives of an output by one input element, as an endpoint gives them and as differences do."""

    def __init__(
        self,
        point: _Point,
        endpoint: str,
        max_output_samples: int | None,
        draws: np.random.RandomState,
    ) -> None:
        self._point, self._endpoint = point, endpoint
        self._limit, self._draws = max_output_samples, draws
        self._kept: dict[Any, Any] = {}

    @cached_property
    def _sampled(self) -> dict[tuple[str, str], list[_Index] | None]:
        """The output elements to ask vector-Jacobian products for; `None` stands for all of them."""
        is_bounded = self._endpoint == "vector_jacobian_product" and self._limit is not None
        return {
            (path, out): _draw(y.shape, self._limit, self._draws, replace=False)
            if is_bounded and self._limit is not None and self._limit < y.size
            else None
            for path in self._point.arrays
            for out, y in self._point.outputs.items()
        }

    def expected(self, path: str, out: str, index: _Index) -> np.ndarray:
        """By differences."""
        row = self._point.differences(path, index)[out]
        sampled = self._sampled[path, out]
        return row if sampled is None else np.array([row[element] for element in sampled])

    def found(self, path: str, out: str, index: _Index) -> np.ndarray:
        """By the endpoint."""
        point, array = self._point, self._point.arrays[path]
        if self._endpoint == "jacobian":
            block = self._once(("jacobian", path, out), lambda: self._block(path, out))
            return block[(..., *index)]
        if self._endpoint == "jacobian_vector_product":
            tangent = _unit(array, index)
            answer = self._once(
                (path, out, index), lambda: point.ask(self._endpoint, path, out, {path: tangent})
            )
            return np.asarray(answer[out])
        sweep = self._once(("vjp", path, out), lambda: self._sweep(path, out))
        return np.array([gradient[index] for gradient in sweep]).reshape(
            self.expected(path, out, index).shape
        )

    def _block(self, path: str, out: str) -> np.ndarray:
        block = self._point.ask(self._endpoint, path, out)[out][path]
        return block.todense() if isinstance(block, SparseArray) else np.asarray(block)

    def _sweep(self, path: str, out: str) -> list[np.ndarray]:
        """One vector-Jacobian product for each output element; it answers for every input element."""
        y, sampled = self._point.outputs[out], self._sampled[path, out]
        elements = list(np.ndindex(y.shape)) if sampled is None else sampled
        answers = (self._point.ask(self._endpoint, path, out, {out: _unit(y, e)}) for e in elements)
        return [np.asarray(answer[path]) for answer in answers]

    def _once(self, key: Any, ask: Any) -> Any:
        """What was asked before, failures included."""
        if key not in self._kept:
            try:
                self._kept[key] = ask()
            except Exception as error:
                self._kept[key] = error
        if isinstance(self._kept[key], Exception):
            raise self._kept[key]
        return self._kept[key]


def _unit(array: np.ndarray, index: _Index) -> np.ndarray:
    vector = np.zeros_like(array)
    vector[index] = 1
    return vector


def _compare(
    rows: _Rows, entry: tuple[str, str, _Index], rtol: float
) -> GradientCheckResult | None:
    path, out, index = entry
    try:
        expected, found = rows.expected(path, out, index), rows.found(path, out, index)
    except Exception as error:
        cause = error.__cause__ or error
        return GradientCheckResult(path, out, index, None, None, f"{type(cause).__name__}: {cause}")
    if np.allclose(expected, found, atol=_ATOL, rtol=rtol):
        return None
    return GradientCheckResult(path, out, index, found, expected, None)
