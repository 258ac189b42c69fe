"""Masks, optimisers, checkpoints and steps."""

from __future__ import annotations

from typing import Any

from chainrule.compat.pcx._checkpoints import load_params, save_params
from chainrule.compat.pcx._optim import Optim
from chainrule.predictive import step
from chainrule.stateful import M, Mask

__all__ = ["M", "M_has", "M_hasnot", "M_is", "Optim", "load_params", "save_params", "step"]


def M_is(*masks: Any) -> Mask:  # noqa: N802 - the ancestor's name
    """What all masks select."""
    combined = M()
    for mask in masks:
        combined = combined & mask
    return combined


def M_has(mask: Any, **attributes: Any) -> Mask:  # noqa: N802
    """What a mask selects and has these attributes."""
    return M(mask).has(**attributes)


def M_hasnot(mask: Any, **attributes: Any) -> Mask:  # noqa: N802
    """What a mask selects and does not have these attributes."""
    return M(mask).hasnot(**attributes)
