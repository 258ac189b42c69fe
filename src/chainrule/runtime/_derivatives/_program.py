"""A component's `apply` as a function of a few leaves, evaluated at many points.

Values go through the input schema again at every point, so that an author's validators (and the fields
they compute) see what a real caller would send. The schema also decides the precision: a point is offered
in float64, and where the schema narrows it the point is rounded first, so that the step that is divided by
is the step that was really taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from chainrule._errors import InputError
from chainrule._trees import set_at_path
from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._own_arrays import own_copy
from chainrule.runtime._schema import describe_array, number_kind

IN_FLIGHT = 64
"""Points handed to an executor and not yet answered; each holds a copy of the perturbed leaves."""


class Program:
    """`apply_fn` narrowed to some input and output paths.

    Args:
        apply_fn: function of the inputs, returning a model or a mapping.
        inputs: a validated model, or nested mappings.
        input_paths: the leaves that vary, in canonical order.
        output_paths: the leaves that are looked at, in canonical order.
        keep_precision: offer points in each leaf's own dtype instead of float64; for inputs whose
            schema is out of sight, in a component that would round them by itself.
        validate: raises `InputError` for inputs that the program refuses; for inputs that are not a model,
            which validates itself.
    """

    def __init__(
        self,
        apply_fn: Callable[[Any], Any],
        inputs: Any,
        input_paths: tuple[str, ...],
        output_paths: tuple[str, ...],
        *,
        keep_precision: bool = False,
        validate: Callable[[Any], Any] | None = None,
    ) -> None:
        self._keep_precision = keep_precision
        self._validate_plain = validate
        self.apply_fn = apply_fn
        self.inputs = inputs
        self.output_paths = output_paths
        given = read_arrays(inputs, input_paths)
        for path, array in given.items():
            _require_real(array, path)
        self.precision = {path: array.dtype for path, array in given.items()}
        self.base = {path: array.astype(np.float64) for path, array in given.items()}
        self.layout = Layout.of(self.base)
        self.origin = self.layout.join(self.base)

    @cached_property
    def _dumped(self) -> Any:
        return self.inputs.model_dump() if _is_model(self.inputs) else self.inputs

    @cached_property
    def _kept(self) -> dict[str, np.dtype]:
        """The dtype that the schema makes of a float64 value at each path."""
        if self._keep_precision:
            return self.precision
        offered = self._validate(self.base)
        return {path: a.dtype for path, a in read_arrays(offered, self.layout.paths).items()}

    def _validate(self, values: Mapping[str, np.ndarray]) -> Any:
        tree = set_at_path(self._dumped, values)
        if not _is_model(self.inputs):
            return own_copy(tree)
        return type(self.inputs).model_validate(own_copy(tree), context={"own": True})

    def round(self, point: np.ndarray) -> np.ndarray:
        """The nearest point that the input schema can hold, in float64."""
        if all(dtype == np.float64 for dtype in self._kept.values()):
            return point
        parts = self.layout.split(point)
        rounded = {path: part.astype(self._kept[path]) for path, part in parts.items()}
        return self.layout.join(rounded)

    def allows(self, point: np.ndarray) -> bool:
        """Whether the input schema accepts a point; plain inputs without a schema may be anything."""
        if self._validate_plain is None and not _is_model(self.inputs):
            return True
        try:
            inputs = self.inputs_at(point)
            if self._validate_plain is not None:
                self._validate_plain(inputs)
        except (ValidationError, InputError):
            return False
        return True

    def inputs_at(self, point: np.ndarray) -> Any:
        """The inputs with a point (real, or complex for the complex step) at the varying leaves.

        Every call gets arrays of its own, so a program that works in place cannot spoil the next one.
        """
        values = self.layout.split(point)
        if np.iscomplexobj(point):
            # No schema of real numbers lets a complex one pass: the author's code gets it directly.
            return own_copy(set_at_path(self.inputs, values))
        kept = {path: value.astype(self._kept[path]) for path, value in values.items()}
        return self._validate(kept)


def _is_model(tree: Any) -> bool:
    """Whether inputs are a pydantic model rather than plain nested data."""
    return hasattr(type(tree), "model_validate")


def _require_real(array: np.ndarray, path: str) -> None:
    if number_kind(array.dtype) != "f":
        raise InputError(
            f"Finite differences need real floating-point inputs; {path!r} is {describe_array(array)}. "
            "Leave it out of the differentiated inputs.",
            code="path_not_differentiable",
            path=path,
        )


def _evaluate(
    apply_fn: Callable[[Any], Any], inputs: Any, output_paths: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """One evaluation. A module-level function of plain arguments, so that a process pool can run it."""
    outputs = read_arrays(apply_fn(inputs), output_paths)
    # Copied: a program may hand out the same buffer at every call, and differences need two of them.
    return {path: np.array(output) for path, output in outputs.items()}


def evaluate_all(
    program: Program, points: Iterable[np.ndarray], executor: Executor | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """The selected outputs at every point, in order.

    Args:
        program: what to evaluate.
        points: where, as long vectors of `program.layout`.
        executor: anything with `submit`; without one the points are evaluated one after the other.
    """
    if executor is None:
        for point in points:
            yield _evaluate(program.apply_fn, program.inputs_at(point), program.output_paths)
        return
    pending: deque[Future[dict[str, np.ndarray]]] = deque()
    try:
        for point in points:
            arguments = (program.apply_fn, program.inputs_at(point), program.output_paths)
            pending.append(executor.submit(_evaluate, *arguments))
            if len(pending) >= IN_FLIGHT:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # After a failure there is no use for the rest.
        for future in pending:
            future.cancel()
