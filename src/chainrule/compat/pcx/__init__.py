"""pcx (formerly pcax) on Chainrule: modules, parameters and random keys.

Modules, in reading order:

    core                 parameters, modules, random keys, trees of them
    functional           the transformations
    nn                   layers
    predictive_coding    value nodes and energies
    utils                masks, optimisers, checkpoints, `step`
    _trees               trees like a model with something else for its parameters: masks, gradients
"""

from chainrule.compat.pcx import core, functional, nn, predictive_coding, utils
from chainrule.compat.pcx.core import (
    RKG,
    BaseModule,
    BaseParam,
    Module,
    Param,
    ParamCache,
    ParamDict,
    RandomKeyGenerator,
    get,
    set,
    static,
    tree_apply,
    tree_extract,
    tree_inject,
    tree_ref,
    tree_unref,
)

__all__ = [
    "RKG",
    "BaseModule",
    "BaseParam",
    "Module",
    "Param",
    "ParamCache",
    "ParamDict",
    "RandomKeyGenerator",
    "core",
    "functional",
    "get",
    "nn",
    "predictive_coding",
    "set",
    "static",
    "tree_apply",
    "tree_extract",
    "tree_inject",
    "tree_ref",
    "tree_unref",
    "utils",
]
