"""What a network is doing: the word that decides which rules of its nodes apply."""

from __future__ import annotations

from typing import Final

__all__ = ["STATUS"]


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
