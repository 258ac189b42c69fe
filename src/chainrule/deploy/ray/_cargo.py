"""Payloads on their way to an actor: plain data, NumPy arrays, and references that the actor's node fetches.

Ray passes arrays by reference and maps them where they are used, without a copy. A reference that a caller
puts into the inputs (`ray.put(array)`) goes along as an argument of its own, which Ray resolves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from pydantic import BaseModel

from chainrule._trees import is_arraylike
from chainrule.runtime.internal import to_plain


@dataclass(frozen=True)
class _Gap:
    """Where the value of a reference belongs."""

    number: int


def take_out(node: Any, references: list[Any]) -> Any:
    """The tree as it can be sent; references are appended to the list and leave a gap."""
    if type(node) is np.ndarray:
        return node
    if isinstance(node, ray.ObjectRef):
        references.append(node)
        return _Gap(len(references) - 1)
    if isinstance(node, BaseModel):
        return to_plain(node)
    if isinstance(node, Mapping):
        return {key: take_out(value, references) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [take_out(item, references) for item in node]
    # Arrays of NumPy's other classes stay what they are: a masked one is refused where it arrives.
    return np.asarray(node) if is_arraylike(node) and not isinstance(node, np.ndarray) else node


def fill_in(node: Any, values: tuple[Any, ...]) -> Any:
    """The tree with the values of its references."""
    if not values:
        return node
    if isinstance(node, _Gap):
        return values[node.number]
    if isinstance(node, dict):
        return {key: fill_in(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [fill_in(item, values) for item in node]
    return node
