"""The kinds of parameters in a predictive network, their masks, and the statuses of a network.

values    `VodeParam`: what the nodes hold, one per sample
caches    `VodeParam.Cache`: what a forward pass leaves in the nodes, thrown away after each step
weights   every other trainable parameter, one for all samples
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from chainrule.stateful import M, Param, ParamCache, ParamDict, tree_extract
from chainrule.stateful.internal import TRAINABLE


class STATUS:
    """Common statuses. A status is any string, or `None`; these are the ones the library uses itself.

    Attributes:
        NONE: nothing in particular; rules see it as the empty string.
        ALL: not a status but a pattern, for rules that hold in every one.
        INIT: the forward pass that gives every node its first value.
        INFERENCE: values move, to lower the energy.
        LEARNING: weights move, to lower the energy.
    """

    NONE: Final = None
    ALL: Final = ".*"
    INIT: Final = "init"
    INFERENCE: Final = "inference"
    LEARNING: Final = "learning"


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
