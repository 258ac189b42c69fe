"""Named arrays as one long vector, and back.

Derivative code thinks in matrices: rows are output elements, columns are input elements. Users think in
paths. A `Layout` is the border between the two: it says where the elements of each path lie in the vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chainrule._errors import ComponentError, InputError, PathError
from chainrule._trees import get_at_path
from chainrule.runtime._schema import describe_array, number_kind


def canonical(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths once each, sorted: the same selection is the same tuple whatever set it came in."""
    return tuple(sorted({paths} if isinstance(paths, str) else set(paths)))


def read_arrays(tree: Any, paths: Iterable[str]) -> dict[str, np.ndarray]:
    """The numeric leaves at some paths as NumPy arrays.

    Raises:
        PathError: nothing there, or something that is not numeric.
    """
    return {path: _numeric(get_at_path(tree, path), path) for path in paths}


def _numeric(leaf: Any, path: str) -> np.ndarray:
    array = None if leaf is None else np.asarray(leaf)
    if array is None or number_kind(array.dtype) not in "biufc":
        raise PathError(
            f"Expected a numeric array at {path!r} to differentiate, found {describe_array(leaf)}. "
            "Leave this path out, or give it a value.",
            code="path_not_differentiable",
            path=path,
        )
    return array


def answered(result: Any, path: str, who: str) -> Any:
    """What an author's endpoint returned for a path.

    Raises:
        ComponentError: nothing (`bad_output`).
    """
    if not isinstance(result, Mapping) or path not in result:
        found = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        raise ComponentError(
            f"Expected an entry for {path!r} from the {who}; found {found}.",
            code="bad_output",
            path=path,
        )
    return result[path]


def check_keys(given: Mapping[str, Any], expected: Iterable[str], argument: str) -> None:
    """Hold the rule that a vector names exactly the selected paths.

    Raises:
        InputError: the message names what is missing and what is not expected.
    """
    missing = sorted(set(expected) - set(given))
    extra = sorted(set(given) - set(expected))
    if missing or extra:
        raise InputError(
            f"{argument} must have one entry per selected path: missing {missing or 'none'}, "
            f"unexpected {extra or 'none'}.",
            code="vector_keys_mismatch",
            details={"missing": missing, "unexpected": extra},
        )


def check_shape(
    found: tuple[int, ...], expected: tuple[int, ...], path: str, *, batched: bool = False
) -> None:
    """Hold the rule that a tangent or cotangent has the shape of its array, behind a batch if there is one.

    Raises:
        InputError: it has another shape, also one that would broadcast (`vector_shape_mismatch`).
    """
    if found[int(batched) :] != expected or len(found) != len(expected) + int(batched):
        raise InputError(
            f"The vector at {path!r} has shape {list(found)}, expected "
            f"{'[batch] + ' if batched else ''}{list(expected)}.",
            code="vector_shape_mismatch",
            path=path,
        )


def _flat(value: Any, shape: tuple[int, ...], path: str) -> np.ndarray:
    array = np.asarray(value)
    # Most arrays are right already, and this runs several times per evaluation of the program.
    if array.dtype != np.float64:
        array = array.astype(np.result_type(array, np.float64))
    check_shape(array.shape, shape, path)
    return array.ravel()


@dataclass(frozen=True)
class Layout:
    """Paths and shapes, in the order in which their elements lie in one long vector."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Layout:
        """The layout of named arrays, in the mapping's order."""
        return cls(tuple(arrays), tuple(tuple(np.shape(array)) for array in arrays.values()))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each path begins, and the end."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes], dtype=int)
        return (0, *map(int, ends))

    @property
    def size(self) -> int:
        """Number of elements of the long vector."""
        return self.offsets[-1]

    def slices(self) -> dict[str, slice]:
        """The part of the long vector that belongs to each path."""
        ends = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return {path: slice(*pair) for path, pair in zip(self.paths, ends, strict=True)}

    def locate(self, element: int) -> tuple[str, tuple[int, ...]]:
        """The path and index of one element of the long vector."""
        for (path, part), shape in zip(self.slices().items(), self.shapes, strict=True):
            if part.start <= element < part.stop:
                index = np.unravel_index(element - part.start, shape) if shape else ()
                return path, tuple(map(int, index))
        raise IndexError(element)

    def join(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """Named arrays as one vector in double precision.

        Raises:
            InputError: an array has another shape than its path (`vector_shape_mismatch`).
        """
        places = zip(self.paths, self.shapes, strict=True)
        parts = [_flat(arrays[path], shape, path) for path, shape in places]
        return np.concatenate(parts) if parts else np.zeros(0)

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector under their paths; leading axes are kept."""
        lead = vector.shape[:-1]
        return {
            path: vector[..., part].reshape((*lead, *shape))
            for (path, part), shape in zip(self.slices().items(), self.shapes, strict=True)
        }

    def split_matrix(self, matrix: np.ndarray, columns: Layout) -> dict[str, dict[str, np.ndarray]]:
        """A matrix (rows laid out by `self`) as `{row path: {column path: block}}`."""
        return {
            row: {
                column: matrix[rows, part].reshape(row_shape + column_shape)
                for (column, part), column_shape in zip(
                    columns.slices().items(), columns.shapes, strict=True
                )
            }
            for (row, rows), row_shape in zip(self.slices().items(), self.shapes, strict=True)
        }
