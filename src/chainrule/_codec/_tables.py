"""Many small arrays of one dtype and shape: the rows of one table, written and read in one go.

Of a thousand small arrays, what Python does for each of them takes longer than all their bytes. The
functions here answer `None` whenever something differs; the caller then takes the arrays one by one, and
that road says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

MANY = 16
"""From this number on it pays to look whether arrays are alike."""

_dtype_and_shape = attrgetter("dtype", "shape")
_content = itemgetter("$array")


def table_of(arrays: Sequence[Any], alignment: int) -> np.ndarray[Any, Any] | None:
    """The bytes of arrays that are alike, one per row, with zeros up to a multiple of `alignment`."""
    first, count = arrays[0], len(arrays)
    if set(map(type, arrays)) != {np.ndarray} or first.ndim == 0 or first.nbytes == 0:
        return None
    if list(map(_dtype_and_shape, arrays)).count(_dtype_and_shape(first)) != count:
        return None
    table = np.zeros((count, first.nbytes + -first.nbytes % alignment), np.uint8)
    table[:, : first.nbytes] = np.concatenate(arrays).reshape(count, -1).view(np.uint8)
    return table


def common_layout(nodes: Sequence[Any]) -> tuple[str, list[int], range, int] | None:
    """Dtype name, shape, offsets and bytes of nodes `$array` that tell only their offsets apart.

    The numbers are integers, and the offsets grow in equal steps; nothing else has been checked.
    """
    try:
        contents = list(map(_content, nodes))
        names, shapes, offsets, sizes = zip(*contents, strict=True)
        numbers = chain(offsets, sizes, chain.from_iterable(shapes))
        # Types as well: `true` and `1.0` equal 1.
        if set(map(type, chain(contents, shapes))) != {list} or set(map(type, numbers)) != {int}:
            return None
    except (KeyError, TypeError, ValueError):
        return None
    name, shape, start, nbytes = contents[0]
    count, step = len(contents), offsets[1] - start
    steps = range(start, start + count * step, step or 1)
    alike = names.count(name) == shapes.count(shape) == sizes.count(nbytes) == count
    if not alike or offsets != tuple(steps) or sum(map(len, nodes)) != count:
        return None
    return name, shape, steps, nbytes


def rows_in(
    data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], offsets: range
) -> list[np.ndarray[Any, Any]]:
    """Arrays of one shape and dtype, which lie in `data` at the given offsets, without a copy."""
    within = np.empty(shape, dtype).strides
    table = np.ndarray((len(offsets), *shape), dtype, data, offsets.start, (offsets.step, *within))
    return list(table)
