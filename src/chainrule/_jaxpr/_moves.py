"""Primitives that only move elements, on NumPy arrays.

Applied to labels of elements they say where every element goes: in a proof about places
(`_derivative_pattern`), and where a program is taken apart into scalars (native kernels). Applied to integers
that are known they say what an index is. `None` stands for an index that is not known, and for a result that
cannot be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn


def move(eqn: JaxprEqn, *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of an equation of `MOVES`."""
    found = MOVES[eqn.primitive.name](eqn, *arrays)
    return list(found) if eqn.primitive.multiple_results else [found]


def _broadcast_in_dim(eqn: JaxprEqn, array: np.ndarray) -> np.ndarray:
    shape = [1] * len(eqn.params["shape"])
    for axis, length in zip(eqn.params["broadcast_dimensions"], array.shape, strict=True):
        shape[axis] = length
    return np.broadcast_to(array.reshape(shape), eqn.params["shape"])


def _reshape(eqn: JaxprEqn, array: np.ndarray) -> np.ndarray:
    order = eqn.params.get("dimensions")
    return (array if order is None else array.transpose(order)).reshape(eqn.params["new_sizes"])


def _with_other_axes(eqn: JaxprEqn, array: np.ndarray) -> np.ndarray:
    """Axes of length one come or go."""
    return array.reshape(eqn.outvars[0].aval.shape)  # type: ignore[attr-defined]


def _slice(eqn: JaxprEqn, array: np.ndarray) -> np.ndarray:
    limits = zip(
        eqn.params["start_indices"],
        eqn.params["limit_indices"],
        eqn.params["strides"] or (1,) * array.ndim,
        strict=True,
    )
    return array[tuple(slice(*limit) for limit in limits)]


def _split(eqn: JaxprEqn, array: np.ndarray) -> list[np.ndarray]:
    return np.split(array, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])


MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _with_other_axes,
    "expand_dims": _with_other_axes,
    "transpose": lambda eqn, array: array.transpose(eqn.params["permutation"]),
    "slice": _slice,
    "rev": lambda eqn, array: np.flip(array, eqn.params["dimensions"]),
    "tile": lambda eqn, array: np.tile(array, eqn.params["reps"]),
    "concatenate": lambda eqn, *arrays: np.concatenate(arrays, eqn.params["dimension"]),
    "stack": lambda eqn, *arrays: np.stack(arrays, eqn.params["axis"]),
    "split": _split,
    "unstack": lambda eqn, array: np.moveaxis(array, eqn.params["axis"], 0),
    "copy": lambda eqn, array: array,
    "copy_p": lambda eqn, array: array,
}
"""Primitive → its results, from the equation and its operands."""


def pad(array: np.ndarray, filling: Any, config: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """`lax.pad`: margins may be negative, and there may be gaps between elements."""
    lengths = [
        low + high + n + max(0, n - 1) * gap
        for (low, high, gap), n in zip(config, array.shape, strict=True)
    ]
    # On a canvas with room for all, of which the margins that are negative are then cut off.
    before = [max(0, low) for low, _, _ in config]
    cut = [max(0, -low) for low, _, _ in config]
    spans = [n + max(0, n - 1) * gap for (_, _, gap), n in zip(config, array.shape, strict=True)]
    canvas = np.full(
        [
            max(0, b + s + max(0, high))
            for b, s, (_, high, _) in zip(before, spans, config, strict=True)
        ],
        filling,
        array.dtype,
    )
    places = tuple(
        slice(b, b + s, gap + 1) for b, s, (_, _, gap) in zip(before, spans, config, strict=True)
    )
    canvas[places] = array
    return canvas[tuple(slice(c, c + max(0, n)) for c, n in zip(cut, lengths, strict=True))]


def clamped_start(start: Any, length: int, size: int) -> int:
    """Where a slice of `size` begins that was asked to begin at `start` of `length`."""
    return int(min(max(int(start), 0), length - size))


class Windows:
    """The places in an array that a `gather` reads, or a `scatter` writes, at known indices.

    Both name a window per index vector. An axis of the array is a window axis (the window extends along
    it), a collapsed axis (length one in the window), or a batching axis (its index is that of an axis of
    the indices).

    Args:
        shape: of the array.
        indices: integers; the last axis holds index vectors.
        sizes: of a window, per axis of the array.
        indexed: the axes of the array that the entries of an index vector are for.
        collapsed: the axes of the array that no window has.
        batching: pairs (axis of the array, axis of the indices).
        window_axes: where the axes of the windows are in the other array.
        mode: what happens at indices outside: `"clip"`, `"drop"` or, where that is not defined, `"promise"`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        indices: np.ndarray,
        sizes: Sequence[int],
        *,
        indexed: Sequence[int],
        collapsed: Sequence[int],
        batching: Sequence[tuple[int, int]],
        window_axes: Sequence[int],
        mode: str,
    ) -> None:
        if indices.dtype.kind == "u":  # one that is too large must not become negative
            indices = np.minimum(indices, np.iinfo(np.int32).max)
        self._indices = indices.astype(np.int64)
        self._shape, self._sizes, self._mode = tuple(shape), tuple(sizes), mode
        self._indexed, self._batching = tuple(indexed), tuple(batching)
        absent = {*collapsed, *(axis for axis, _ in batching)}
        self._window = [axis for axis in range(len(shape)) if axis not in absent]
        self._window_axes = tuple(window_axes)

    def places(self) -> np.ndarray | None:
        """Per element of the other array its flat place in this one, -1 for none; `None` if undefined."""
        outer = self._indices.shape[:-1]
        rank = len(outer) + len(self._window)
        place = np.zeros([1] * rank, np.int64)
        inside = np.ones([1] * rank, bool)
        for axis, length in enumerate(self._shape):
            start = self._starts(axis, outer).reshape((*outer, *[1] * len(self._window)))
            most = length - self._sizes[axis]
            if self._mode == "clip":
                start = np.clip(start, 0, most)
            elif self._mode == "promise" and not np.all((start >= 0) & (start <= most)):
                return None
            offset = np.zeros([1] * rank, np.int64)
            if axis in self._window:
                position = len(outer) + self._window.index(axis)
                offset = np.arange(self._sizes[axis]).reshape(
                    [-1 if k == position else 1 for k in range(rank)]
                )
            index = start + offset
            # JAX drops a window that is partly outside. Here the rest of it counts as read or written, too.
            inside = inside & (index >= 0) & (index < length)
            # The flat place by Horner's rule, axis after axis. What is outside is marked in `inside`;
            # clipping only keeps its place a number that does no harm.
            place = place * length + np.clip(index, 0, length)
        full = [*outer, *(self._sizes[axis] for axis in self._window)]
        found = np.broadcast_to(np.where(inside, place, -1), full)
        return np.moveaxis(found, range(len(outer), rank), self._window_axes)

    def _starts(self, axis: int, outer: tuple[int, ...]) -> np.ndarray:
        if axis in self._indexed:
            return self._indices[..., self._indexed.index(axis)]
        for own, theirs in self._batching:
            if own == axis:
                shape = [-1 if k == theirs else 1 for k in range(len(outer))]
                return np.broadcast_to(np.arange(self._shape[axis]).reshape(shape), outer)
        return np.zeros(outer, np.int64)


def gather_windows(eqn: JaxprEqn, indices: np.ndarray) -> Windows:
    """The places that a `gather` reads."""
    dims = eqn.params["dimension_numbers"]
    return Windows(
        eqn.invars[0].aval.shape,  # type: ignore[attr-defined]
        indices,
        eqn.params["slice_sizes"],
        indexed=dims.start_index_map,
        collapsed=dims.collapsed_slice_dims,
        batching=list(
            zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
        ),
        window_axes=dims.offset_dims,
        mode=_mode(eqn),
    )


def scatter_windows(eqn: JaxprEqn, indices: np.ndarray) -> Windows:
    """The places that a `scatter` writes to."""
    dims = eqn.params["dimension_numbers"]
    operand, _, updates = (atom.aval.shape for atom in eqn.invars)  # type: ignore[attr-defined]
    absent = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    lengths = iter(updates[axis] for axis in dims.update_window_dims)
    sizes = [1 if axis in absent else next(lengths) for axis in range(len(operand))]
    return Windows(
        operand,
        indices,
        sizes,
        indexed=dims.scatter_dims_to_operand_dims,
        collapsed=dims.inserted_window_dims,
        batching=list(
            zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)
        ),
        window_axes=dims.update_window_dims,
        mode=_mode(eqn),
    )


def _mode(eqn: JaxprEqn) -> str:
    name = str(eqn.params["mode"]).rpartition(".")[2].lower()
    return {"clip": "clip", "fill_or_drop": "drop"}.get(name, "promise")


def fold(eqn: JaxprEqn, operands: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The value of an equation on integers and booleans that are known; `None` if it cannot be told.

    Floating-point arithmetic is left alone: XLA may round differently, and an index must be right.
    """
    if len(eqn.outvars) != 1:
        return None
    aval: Any = eqn.outvars[0].aval
    if not is_discrete(aval) or math.prod(aval.shape) > _MOST_KNOWN:
        return None
    if eqn.primitive.name == "iota":
        length = np.arange(aval.shape[eqn.params["dimension"]]).astype(aval.dtype)
        shape = [-1 if k == eqn.params["dimension"] else 1 for k in range(len(aval.shape))]
        return np.broadcast_to(length.reshape(shape), aval.shape)
    values = [value for value in operands if value is not None]
    if not values or len(values) < len(operands):
        return None
    if eqn.primitive.name in MOVES:
        return move(eqn, *values)[0]
    rule = _ARITHMETIC.get(eqn.primitive.name)
    with np.errstate(all="ignore"):
        found = None if rule is None else rule(*values)
    return None if found is None else np.asarray(found).astype(aval.dtype)


_MOST_KNOWN = 1_000_000
"""Larger arrays of indices are not computed."""


def is_discrete(aval: Any) -> bool:
    """Whether an array holds integers or booleans."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "iub"


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Towards zero, as XLA divides."""
    if np.any(b == 0):
        return None
    exact = np.floor_divide(a, b)
    # `floor_divide` rounds down. For a negative quotient that is not exact, towards zero is one more.
    return exact + ((exact < 0) & (exact * b != a))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return None if np.any(b == 0) else np.fmod(a, b)


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    which = np.broadcast_to(which, cases[0].shape)
    return np.select([which.astype(int) == k for k in range(len(cases))], cases)


_ARITHMETIC: dict[str, Callable[..., np.ndarray | None]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "rem": _remainder,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "select_n": _select,
    "convert_element_type": lambda x: x,
}
