"""The kinds of parameters in a predictive network, and the masks that tell them apart.

values    `VodeParam`: what the nodes hold, one per sample
caches    `VodeParam.Cache`: what a forward pass leaves in the nodes, thrown away after each step
weights   every other trainable parameter, one for all samples
"""

from __future__ import annotations

from typing import Any, ClassVar

from chainrule.stateful import M, Param, ParamCache, ParamDict, tree_extract
from chainrule.stateful._masks import TRAINABLE

__all__ = ["FREE", "STATES", "WEIGHTS", "VodeCache", "VodeParam", "clear"]


class VodeCache(ParamDict, ParamCache):
    """What a node was told during a forward pass: its prediction `u` and slots of the user."""

    __slots__ = ()


class VodeParam(Param):
    """A value that belongs to one sample. Frozen, it is clamped: inference leaves it alone."""

    __slots__ = ()
    Cache: ClassVar[type[VodeCache]] = VodeCache


STATES = M((VodeParam, VodeCache))
"""What exists once per sample: values and caches. `STATES.to((None, 0))` is the mask for `vmap`."""

FREE = M(VodeParam).hasnot(frozen=True)
"""The values that inference may change."""

WEIGHTS = TRAINABLE - M(VodeParam)
"""What learning may change: every trainable parameter that is not a value of a node."""


def clear(tree: Any, select: Any) -> None:
    """Set the selected parameters of a tree to `None`."""
    for param in tree_extract(tree, select):
        if param.value is not None:
            param.set(None)
