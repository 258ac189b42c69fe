"""Inputs of a simulation over time.

A table has rows (time, values). Between two rows continuous inputs are interpolated linearly, and others keep
the value of the earlier row. A time that occurs twice is a jump. Before the first row and after the last one
their values hold.

Within an interval between two rows an input is u(t) = (1 − w) u₀ + w u₁, with w = (t − t₀)/(t₁ − t₀): linear
in the table, so products with its derivative distribute a vector to two rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._fmi._description import Variable


class Table:
    """The inputs of one simulation.

    Args:
        variables: all inputs of the FMU.
        columns: field → one value per row, and `time`; `None` for inputs that keep their start values.

    Raises:
        InputError: times fall, or there is no row; an input has no value.
    """

    def __init__(self, variables: Sequence[Variable], columns: Mapping[str, Any] | None) -> None:
        given = {} if columns is None else {k: v for k, v in columns.items() if v is not None}
        self.time = np.asarray(given.pop("time", np.zeros(1)), float)
        rises = np.isfinite(self.time).all() and np.all(np.diff(self.time) >= 0)
        if self.time.size == 0 or not rises:
            raise InputError(
                "Expected inputs.time to be one or more numbers that do not fall.",
                path="inputs.time",
            )
        self._constant = {v.field: v.start for v in variables if v.field not in given}
        lacking = [field for field, start in self._constant.items() if start is None]
        if lacking:
            raise InputError(
                f"The input {lacking[0]} has no start value: give it in the table of inputs.",
                path=f"inputs.{lacking[0]}",
            )
        self._columns = {v: given[v.field] for v in variables if v.field in given}
        self.moving = [v for v in self._columns if v.continuous]

    def knots(self) -> np.ndarray:
        """Times at which the inputs have a corner or a jump."""
        return np.unique(self.time)

    def is_jump(self, time: float) -> bool:
        """Whether an input jumps at a time."""
        if np.count_nonzero(self.time == time) > 1:
            return True
        return time in self.time[1:] and any(not v.continuous for v in self._columns)

    def interval(self, time: float) -> int:
        """The row that begins the interval in which a time lies; the later one at a row."""
        return int(np.clip(np.searchsorted(self.time, time, "right") - 1, 0, self.time.size - 1))

    def at(self, time: float, interval: int) -> dict[str, Any]:
        """The inputs at a time, on the line of an interval."""
        if not self._columns:
            return self._constant
        next_row, weight = self._weight(time, interval)
        found = dict(self._constant)
        for variable, column in self._columns.items():
            value = column[interval]
            if variable.continuous and weight:
                value = (1 - weight) * value + weight * column[next_row]
            found[variable.field] = value
        return found

    def _weight(self, time: float, interval: int) -> tuple[int, float]:
        next_row = min(interval + 1, self.time.size - 1)
        # Zero before a jump's second row and behind the last row, where the value of the row itself holds.
        length = self.time[next_row] - self.time[interval]
        if length == 0:
            return next_row, 0.0
        return next_row, float(np.clip((time - self.time[interval]) / length, 0, 1))

    def tangent(
        self, tangents: Mapping[str, np.ndarray], time: float, interval: int
    ) -> list[np.ndarray]:
        """The change of the inputs at a time, for a change of columns."""
        next_row, weight = self._weight(time, interval)
        return [(1 - weight) * c[interval] + weight * c[next_row] for c in tangents.values()]

    def add_cotangent(
        self,
        gradients: Mapping[str, np.ndarray],
        cotangents: Sequence[np.ndarray],
        time: float,
        interval: int,
    ) -> None:
        """Add the cotangents of inputs at a time to those of the columns."""
        next_row, weight = self._weight(time, interval)
        for column, cotangent in zip(gradients.values(), cotangents, strict=True):
            shaped = cotangent.reshape(column.shape[1:])
            column[interval] += (1 - weight) * shaped
            column[next_row] += weight * shaped
