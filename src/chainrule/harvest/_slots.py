"""Leaves of a pytree, told apart: arrays, which JAX carries, and everything else, which is remembered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, eq=False)
class Slot:
    """What fills a leaf: the next array, or content that is no array (a string, a function, `None`).

    Slots are part of an equation's parameters, which JAX hashes and compares, and the content may have no
    hash. So text is compared by its value, and all other content by identity.
    """

    is_operand: bool
    content: Any = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slot) or self.is_operand != other.is_operand:
            return False
        is_text = isinstance(self.content, str) and isinstance(other.content, str)
        return self.content == other.content if is_text else self.content is other.content

    def __hash__(self) -> int:
        return hash((self.is_operand, type(self.content)))

    @staticmethod
    def of(leaf: Any) -> Slot:
        """The slot of a leaf."""
        return _OPERAND if is_array(leaf) else Slot(False, leaf)


_OPERAND = Slot(True)
NOTHING = Slot(False)


def fill(slots: Iterable[Slot], arrays: Iterable[Any]) -> list[Any]:
    """The leaves, with the arrays put in their slots."""
    remaining = iter(arrays)
    return [next(remaining) if slot.is_operand else slot.content for slot in slots]


def is_array(leaf: Any) -> bool:
    """Whether JAX can carry a leaf: arrays, NumPy values and numbers."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, (jax.Array, bool, int, float, complex))
