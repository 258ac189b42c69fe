"""Reference values for a gradient check: differences of `apply` at sampled elements and directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._derivatives._program import Program
from chainrule.runtime._derivatives._sampler import Sampler
from chainrule.runtime._derivatives._stencils import STENCILS, Eps, coarsest
from chainrule.runtime._schema import rounding_unit
from chainrule.runtime.testing._subject import Subject

__all__ = ["Samples", "make_samples", "unit_roundoff"]


@dataclass(frozen=True)
class Samples:
    """Part of the Jacobian by central differences.

    Attributes:
        rows: layout of all output elements.
        columns: layout of all input elements.
        row_ids: the output elements looked at.
        column_ids: the input elements looked at.
        values: `matrix[row_ids][:, column_ids]`.
        noise: how much of each value may be rounding error, same shape.
    """

    rows: Layout
    columns: Layout
    row_ids: np.ndarray
    column_ids: np.ndarray
    values: np.ndarray
    noise: np.ndarray


def make_samples(
    subject: Subject,
    generator: np.random.Generator,
    *,
    eps: Eps,
    max_evals: int,
    max_output_samples: int | None,
    show_progress: bool,
) -> Samples:
    """Difference the component at sampled input elements.

    Args:
        subject: the component.
        generator: picks the elements where there are too many.
        eps: the step, as in `finite_difference_jacobian`.
        max_evals: bound on the evaluations of `apply`.
        max_output_samples: bound on the output elements compared; `max_evals` unless given.
        show_progress: whether long work shows a bar.
    """
    program = Program(
        subject.component.apply,
        subject.inputs,
        subject.input_paths,
        subject.output_paths,
        keep_precision=True,
    )
    sampler = Sampler(program, STENCILS["central"], show_progress=show_progress)
    outputs = read_arrays(subject.outputs, subject.output_paths)
    rows, columns = Layout.of(outputs), program.layout
    column_ids = _pick(generator, columns, max(1, max_evals // 2))
    row_ids = _pick(generator, rows, max_output_samples or max_evals)
    steps = sampler.steps(eps)
    magnitude = np.abs(rows.join(outputs)[row_ids])
    unit = unit_roundoff(*program.precision.values(), *(a.dtype for a in outputs.values()))
    moves = [np.where(np.arange(steps.size) == i, steps, 0.0) for i in column_ids]
    values = np.zeros((row_ids.size, column_ids.size))
    noise = np.zeros_like(values)
    for k, [(change, moved)] in enumerate(sampler.differences(moves)):
        span = moved[column_ids[k]]
        values[:, k] = change[row_ids] / span
        noise[:, k] = 8 * unit * magnitude / abs(span)
    return Samples(rows, columns, row_ids, column_ids, values, noise)


def unit_roundoff(*dtypes: np.dtype) -> float:
    """The largest relative rounding unit of some dtypes."""
    return rounding_unit(coarsest(*dtypes))


def _pick(generator: np.random.Generator, layout: Layout, limit: int) -> np.ndarray:
    """Some elements, all when they are few; every path gets at least one where the limit allows."""
    if layout.size <= limit:
        return np.arange(layout.size)
    parts = [part for part in layout.slices().values() if part.stop > part.start]
    first = [int(generator.integers(part.start, part.stop)) for part in parts][:limit]
    others = np.setdiff1d(np.arange(layout.size), first)
    more = generator.choice(others, size=limit - len(first), replace=False)
    return np.sort(np.concatenate([first, more]).astype(np.int64))
