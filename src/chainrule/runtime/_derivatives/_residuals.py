"""What a forward pass kept, found again by the content of its inputs.

An entry is looked up by a digest of the inputs and then compared with them byte for byte, so a collision
costs a comparison and never returns another point's gradient. Because equality decides, the digest need
not read all of a large array: it samples at most a mebibyte of each, in bounded time.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from chainrule._errors import InputError
from chainrule._lru_cache import LRUCache
from chainrule.runtime._content_store import SharedFolder

logger = logging.getLogger(__name__)

WHOLE_BYTES = 1 << 20
"""Arrays up to this size are digested whole."""
BLOCK_BYTES = 1 << 12
"""Larger ones in blocks of this size, `WHOLE_BYTES` in total, spread evenly."""
COMPARE_BYTES = 1 << 22
"""Comparison works in pieces that fit the cache, and ends at the first difference."""
DEFAULT_MAX_BYTES = 1 << 30


def _bytes(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def content_digest(arrays: Sequence[Any]) -> bytes:
    """A digest of dtypes, shapes and (a sample of) the bytes of some arrays."""
    digest = xxhash.xxh3_128()
    for array in map(np.asarray, arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        content = _bytes(array)
        if content.size <= WHOLE_BYTES:
            digest.update(content.data)
            continue
        count = WHOLE_BYTES // BLOCK_BYTES
        for start in np.linspace(0, content.size - BLOCK_BYTES, count, dtype=np.int64):
            digest.update(content[start : start + BLOCK_BYTES].data)
    return digest.digest()


def same_content(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of arrays agree in dtype, shape and every byte (so NaN equals itself)."""
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: Any, right: Any) -> bool:
    if left is right and not isinstance(left, np.ndarray):
        return True
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    a, b = _bytes(left), _bytes(right)
    return all(
        np.array_equal(*_words(a[i : i + COMPARE_BYTES], b[i : i + COMPARE_BYTES]))
        for i in range(0, a.size, COMPARE_BYTES)
    )


def _words(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Eight bytes at a time where the length allows it: eight times fewer comparisons.
    return (a.view(np.uint64), b.view(np.uint64)) if a.size % 8 == 0 else (a, b)


def own(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Arrays that nobody else can change: NumPy arrays are copied, immutable ones are shared."""
    return tuple(np.array(a) if isinstance(a, (np.ndarray, np.generic)) else a for a in arrays)


@dataclass(frozen=True)
class _Entry:
    arrays: tuple[Any, ...]
    residuals: Any
    nbytes: int


class ResidualCache:
    """The last few forward passes, bounded by number and by bytes. Safe between threads.

    Args:
        max_entries: how many forward passes are kept; 0 keeps none.
        max_bytes: the sum over entries of inputs and residuals.
        only_if_it_pays: let the recipe time each program once and leave out those for which keeping
            residuals costs more than the forward pass it saves.

    Attributes:
        shared: where other processes of the same component find what this one keeps, if there are any.
    """

    shared: SharedFolder | None = None

    def __init__(
        self,
        max_entries: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        only_if_it_pays: bool = False,
    ) -> None:
        self.max_entries = max_entries
        self.only_if_it_pays = only_if_it_pays
        self._entries: LRUCache[Hashable, _Entry] = LRUCache(
            max_entries, max_bytes=max_bytes, size_of=lambda entry: entry.nbytes
        )
        self._verdicts: LRUCache[Hashable, bool] = LRUCache(1024)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, program: Hashable, arrays: Sequence[Any]) -> Any | None:
        """The residuals of a program at these inputs, or `None`."""
        if not len(self._entries):
            return None
        entry = self._entries.get((program, content_digest(arrays)))
        return entry.residuals if entry and same_content(entry.arrays, arrays) else None

    def keep(self, program: Hashable, arrays: tuple[Any, ...], residuals: Any, nbytes: int) -> None:
        """Remember residuals under the inputs; `arrays` must be owned (see `own`)."""
        size = nbytes + sum(array.nbytes for array in arrays)
        entry = _Entry(arrays, residuals, size)
        self._entries.put((program, content_digest(arrays)), entry)

    def verdict(self, program: Hashable) -> bool | None:
        """Whether residuals of this program are kept; `None` before that was decided."""
        return self._verdicts.get(program)

    def decide(self, program: Hashable, keeps: bool, reason: str) -> None:
        """Settle whether residuals of this program are kept, and say so in the log."""
        self._verdicts.put(program, keeps)
        logger.info("VJP residuals are %s: %s", "kept" if keeps else "not kept", reason)


_current = ResidualCache(0)


def set_jax_vjp_cache_size(
    size: int, *, max_bytes: int = DEFAULT_MAX_BYTES, only_if_it_pays: bool = False
) -> None:
    """Keep the backward functions of the last `size` calls of `jax_apply`.

    A `jax_vjp` with the same inputs then skips its forward pass. Off (0) by default. The previous cache
    is dropped.

    Args:
        size: how many calls are remembered; 0 turns it off.
        max_bytes: bound on the memory of inputs and residuals together.
        only_if_it_pays: time every program once and keep residuals only where that is a gain.

    Raises:
        InputError: a size or a bound that is no integer ≥ 0 (`bad_cache_size`).
    """
    for name, bound in (("size", size), ("max_bytes", max_bytes)):
        if not isinstance(bound, int) or bound < 0:
            raise InputError(
                f"{name} must be an integer of 0 or more; found {bound!r}.", code="bad_cache_size"
            )
    global _current
    _current = ResidualCache(size, max_bytes=max_bytes, only_if_it_pays=only_if_it_pays)


def current_residual_cache() -> ResidualCache:
    """The cache in force."""
    return _current
