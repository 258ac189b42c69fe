"""Reading and writing arrays at the positions that axes describe.

`read` gathers: for every iteration of a loop nest, the entry that given axes point at.
`spread` scatters: an array that holds, at the positions the axes point at, the entries of a value.
Both choose slices, reshapes, pads and masks, which compilers fuse, and index arrays only where they must.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule.elimination._axes import Axis, Table, positions


def read(value: Any, axes: Sequence[Axis], sizes: Mapping[int, int]) -> tuple[Any, tuple[int, ...]]:
    """`value[axes(t)]` over the variables t that occur, and these variables in the result's order."""
    walked = [v for axis in axes for v in axis.variables]
    if len(walked) == len(set(walked)) and all(map(_is_plain, axes)):
        return _read_plain(value, axes, sizes)
    variables = tuple(dict.fromkeys(walked))
    indices = tuple(positions(axis, variables, sizes) for axis in axes)
    return value[indices], variables


def _is_plain(axis: Axis) -> bool:
    """Whether a slice and a reshape can read the axis."""
    return len(axis.weights) <= 1 or all(isinstance(w, int) and w > 0 for _, w in axis.weights)


def _read_plain(
    value: Any, axes: Sequence[Axis], sizes: Mapping[int, int]
) -> tuple[Any, tuple[int, ...]]:
    variables: list[int] = []
    shape: list[int] = []
    for position, axis in enumerate(axes):
        digits = sorted(axis.weights, key=lambda item: -item[1] if isinstance(item[1], int) else 0)
        variables += [v for v, _ in digits]
        shape += [sizes[v] for v, _ in digits]
        value = _read_axis(value, position, axis, sizes)
    return (value if value.shape == tuple(shape) else value.reshape(shape)), tuple(variables)


def _read_axis(value: Any, position: int, axis: Axis, sizes: Mapping[int, int]) -> Any:
    """One axis of the value at the positions of `axis`; a fixed position leaves an axis of length 1."""
    if len(axis.weights) == 1:
        variable, weight = axis.weights[0]
        count = sizes[variable]
        if isinstance(weight, Table):
            return jnp.take(value, axis.offset + weight.array, axis=position)
        if weight < 0:
            last = axis.offset + weight * (count - 1)
            kept = _slice(value, position, last, count, -weight)
            return lax.rev(kept, (position,))
        return _slice(value, position, axis.offset, count, weight)
    return _slice(value, position, axis.offset, math.prod(sizes[v] for v in axis.variables), 1)


def _slice(value: Any, position: int, start: int, count: int, stride: int) -> Any:
    if start == 0 and stride == 1 and count == value.shape[position]:
        return value
    return lax.slice_in_dim(value, start, start + stride * (count - 1) + 1, stride, position)


def spread(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
) -> Any:
    """An array of `shape` with `Σ_t value[t_stored] · [position = axes(t)]`."""
    homes = _homes(axes, sizes)
    if homes is None:
        return _scatter(value, stored, axes, sizes, shape)
    return _spread_masked(value, stored, axes, sizes, shape, homes)


def _homes(axes: Sequence[Axis], sizes: Mapping[int, int]) -> dict[int, int] | None:
    """For every variable an axis that it walks alone, forwards, without gaps; `None` if one has none."""
    homes: dict[int, int] = {}
    for position, axis in enumerate(axes):
        if axis.stride == 1 and axis.variables[0] not in homes:
            homes[axis.variables[0]] = position
    everything = {v for axis in axes for v in axis.variables}
    has_tables = any(isinstance(w, Table) for axis in axes for _, w in axis.weights)
    return homes if everything == set(homes) and not has_tables else None


def _spread_masked(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
    homes: Mapping[int, int],
) -> Any:
    """Lay the value along the homes, mask the axes that repeat a variable, pad to the full shape."""
    rank = len(axes)
    home_of = {position: v for v, position in homes.items()}
    extents = [1] * rank
    for position, axis in enumerate(axes):
        if position in home_of:
            extents[position] = sizes[home_of[position]]
        elif axis.weights:
            extents[position] = shape[position]
    order = sorted(stored, key=homes.__getitem__)
    value = value.transpose([list(stored).index(v) for v in order])
    value = lax.broadcast_in_dim(value, extents, [homes[v] for v in order])
    for position, axis in enumerate(axes):
        if axis.weights and position not in home_of:
            value = jnp.where(_mask(position, axis, extents, homes), value, 0)
    padding = [
        (0, 0, 0) if axis.weights and position not in home_of
        else (axis.offset, shape[position] - extents[position] - axis.offset, 0)
        for position, axis in enumerate(axes)
    ]  # fmt: skip
    if all(pad == (0, 0, 0) for pad in padding):
        return value
    return lax.pad(value, jnp.zeros((), value.dtype), padding)


def _mask(position: int, axis: Axis, extents: Sequence[int], homes: Mapping[int, int]) -> Any:
    involved = sorted({position, *(homes[v] for v in axis.variables)})
    local = [extents[p] if p in involved else 1 for p in range(len(extents))]

    def index(p: int) -> Any:
        return lax.broadcasted_iota(np.int32, local, p)

    wanted = axis.offset
    for variable, weight in axis.weights:
        wanted = wanted + weight * index(homes[variable])
    return index(position) == wanted


def _scatter(
    value: Any,
    stored: Sequence[int],
    axes: Sequence[Axis],
    sizes: Mapping[int, int],
    shape: Sequence[int],
) -> Any:
    variables = sorted({v for axis in axes for v in axis.variables})
    grid = [sizes[v] for v in variables]
    order = sorted(range(len(stored)), key=lambda k: stored[k])
    value = lax.broadcast_in_dim(
        value.transpose(order), grid, [variables.index(stored[k]) for k in order]
    )
    indices = tuple(np.broadcast_to(positions(a, variables, sizes), grid) for a in axes)
    return jnp.zeros(shape, value.dtype).at[indices].add(value)
