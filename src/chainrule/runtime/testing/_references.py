"""Reference values for a gradient check: differences of `apply` at sampled elements and directions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._derivatives._sampler import Sampler, find_room
from chainrule.runtime._derivatives._stencils import STENCILS, Eps, coarsest
from chainrule.runtime._schema import rounding_unit
from chainrule.runtime.testing._subject import Subject


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

    def part(self, *, max_rows: int, max_columns: int) -> Samples:
        """Fewer rows and columns, spread over those that are looked at."""
        rows = _spread(self.row_ids.size, max_rows)
        columns = _spread(self.column_ids.size, max_columns)
        return replace(
            self,
            row_ids=self.row_ids[rows],
            column_ids=self.column_ids[columns],
            values=self.values[np.ix_(rows, columns)],
            noise=self.noise[np.ix_(rows, columns)],
        )


def make_samples(
    subject: Subject,
    generator: np.random.Generator,
    *,
    eps: Eps,
    max_columns: int,
    max_rows: int,
    show_progress: bool,
) -> Samples:
    """Difference the component at sampled input elements, with two evaluations for each.

    Args:
        subject: the component.
        generator: picks the elements where there are too many.
        eps: the step, as in `finite_difference_jacobian`.
        max_columns: bound on the input elements looked at.
        max_rows: bound on the output elements looked at.
        show_progress: whether long work shows a bar.
    """
    program = subject.program()
    outputs = read_arrays(subject.outputs, subject.output_paths)
    sampler = Sampler(program, STENCILS["central"], eps, base=outputs, show_progress=show_progress)
    rows, columns = Layout.of(outputs), program.layout
    column_ids = _pick(generator, columns, max_columns)
    row_ids = _pick(generator, rows, max_rows)
    magnitude = np.abs(rows.join(outputs)[row_ids])
    unit = unit_roundoff(*program.precision.values(), *(a.dtype for a in outputs.values()))
    looked_at = np.isin(np.arange(columns.size), column_ids)
    room = find_room(program, sampler.stencil, np.where(looked_at, sampler.steps, 0.0))
    moves = [np.where(np.arange(columns.size) == i, room.steps, 0.0) for i in column_ids]
    one_sided = [bool(room.one_sided[i]) for i in column_ids]
    values = np.zeros((row_ids.size, column_ids.size))
    noise = np.zeros_like(values)
    for k, found in enumerate(sampler.differences(moves, one_sided)):
        for weight, change, moved in found:
            span = moved[column_ids[k]]
            values[:, k] += weight * change[row_ids] / span
            noise[:, k] += abs(8 * weight * unit / span) * magnitude
    return Samples(rows, columns, row_ids, column_ids, values, noise)


def unit_roundoff(*dtypes: np.dtype) -> float:
    """The largest relative rounding unit of some dtypes."""
    return rounding_unit(coarsest(*dtypes))


def _spread(size: int, limit: int) -> np.ndarray:
    count = min(size, limit)
    return np.linspace(0, size - 1, count).astype(np.int64) if count > 1 else np.arange(count)


def _pick(generator: np.random.Generator, layout: Layout, limit: int) -> np.ndarray:
    """Some elements, all when they are few; every path gets at least one where the limit allows."""
    if layout.size <= limit:
        return np.arange(layout.size)
    parts = [part for part in layout.slices().values() if part.stop > part.start]
    first = [int(generator.integers(part.start, part.stop)) for part in parts][:limit]
    others = np.setdiff1d(np.arange(layout.size), first)
    more = generator.choice(others, size=limit - len(first), replace=False)
    return np.sort(np.concatenate([first, more]).astype(np.int64))
