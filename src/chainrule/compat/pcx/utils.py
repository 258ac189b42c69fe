"""Masks, optimisers, checkpoints and steps."""

from chainrule.compat.pcx._checkpoints import load_params, save_params
from chainrule.compat.pcx._masks import M, M_has, M_hasnot, M_is
from chainrule.compat.pcx._optim import Optim
from chainrule.compat.pcx._optim_tree import OptimTree
from chainrule.compat.pcx._step import step

__all__ = [
    "M",
    "M_has",
    "M_hasnot",
    "M_is",
    "Optim",
    "OptimTree",
    "load_params",
    "save_params",
    "step",
]
