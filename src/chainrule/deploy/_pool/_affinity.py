"""A gradient goes where its forward pass ran: that replica still has what it needs.

Replicas find residuals by the content of the inputs, so this is a hint and never a promise: a wrong or
forgotten hint costs a forward pass, no more.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from pydantic import BaseModel

from chainrule._lru_cache import LRUCache
from chainrule._trees import is_arraylike
from chainrule.runtime.internal import content_digest

FORWARD = frozenset({"apply"})
BACKWARD = frozenset({"vector_jacobian_product"})
_REMEMBERED = 4096


def fingerprint(tree: Any) -> bytes:
    """A digest of nested data: structure, values, and (a bounded sample of) the bytes of arrays."""
    arrays: list[np.ndarray] = []
    text = repr(_outline(tree, arrays))
    return xxhash.xxh3_128_digest(text.encode()) + content_digest(arrays)


def _outline(node: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(node, BaseModel):
        node = dict(node)
    if isinstance(node, Mapping):
        return {key: _outline(value, arrays) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_outline(item, arrays) for item in node]
    if is_arraylike(node):
        arrays.append(np.asarray(node))
        return "array"
    return node


class Affinity:
    """Which replica ran the forward pass of which inputs. Safe between threads."""

    def __init__(self) -> None:
        self._homes: LRUCache[bytes, str] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def home(self, endpoint: str, point: bytes | None) -> str | None:
        """The replica that a call should go to; `None` when any will do."""
        if endpoint not in BACKWARD or point is None:
            return None
        found = self._homes.get(point)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return found

    def note(self, endpoint: str, point: bytes | None, replica: str) -> None:
        """A replica has answered a call."""
        if endpoint in FORWARD and point is not None:
            self._homes.put(point, replica)

    def concerns(self, endpoint: str) -> bool:
        """Whether it matters where this endpoint runs."""
        return endpoint in FORWARD or endpoint in BACKWARD

    @property
    def counts(self) -> dict[str, int]:
        """How many gradients found their forward pass, and how many did not."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses}
