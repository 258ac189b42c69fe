"""A name for the content of nested data: equal names, equal data, in every process and on every machine.

Arrays are hashed whole, with a cryptographic hash: nobody compares afterwards. A file counts by its path,
size and time of change. Data whose content cannot be seen (a lazy sequence, an object of the author's) has no
name, and whatever is kept under names is then not kept.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from datetime import date, time, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from pydantic import BaseModel

from chainrule._codec import SparseArray
from chainrule._trees import is_arraylike

_PLAIN = (str, int, float, complex, bool, bytes, type(None), date, time, timedelta, UUID)


def content_name(*trees: Any) -> str | None:
    """The name of some trees together, or `None` when one of them cannot be named.

    Example:
        >>> content_name({"x": np.ones(2)}) == content_name({"x": np.ones(2)})
        True
        >>> content_name({"x": object()}) is None
        True
    """
    digest = hashlib.blake2b(digest_size=20)
    return digest.hexdigest() if all(_add(digest, tree) for tree in trees) else None


def _add(digest: Any, node: Any) -> bool:
    """Hash a node and what is below it; whether that was possible."""
    if isinstance(node, BaseModel):
        node = {name: getattr(node, name) for name in type(node).model_fields}
    if isinstance(node, Mapping):
        items = sorted(((str(key), value) for key, value in node.items()), key=itemgetter(0))
        digest.update(f"{{{len(items)}:".encode())
        return all(_add(digest, key) and _add(digest, value) for key, value in items)
    if isinstance(node, (list, tuple)):
        digest.update(f"[{len(node)}:".encode())
        return all(_add(digest, item) for item in node)
    parts = _parts(node)
    for part in parts or ():
        digest.update(f"{len(part)}:".encode())
        digest.update(part)
    return parts is not None


def _parts(leaf: Any) -> list[Any] | None:
    """What a leaf's content is made of; every part has a length and is hashed."""
    if isinstance(leaf, _PLAIN):
        return [type(leaf).__name__.encode(), repr(leaf).encode()]
    if is_arraylike(leaf):
        array = np.asarray(leaf)
        kind = f"{array.dtype.name}{array.shape}".encode()
        if array.dtype.hasobject:
            return None
        return [b"array", kind, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
    if isinstance(leaf, SparseArray):
        parts = [_parts(part) for part in (leaf.indices, leaf.values)]
        return [b"sparse", repr(leaf.shape).encode(), *(p for part in parts for p in part or ())]
    if isinstance(leaf, enum.Enum):
        return [b"enum", repr(leaf.value).encode()]
    if isinstance(leaf, Path):
        return _file_parts(leaf)
    return None


def _file_parts(path: Path) -> list[Any] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return [b"file", str(path).encode(), f"{facts.st_size}:{facts.st_mtime_ns}".encode()]
