"""pcx (formerly pcax) on Chainrule: modules, parameters and random keys.

`functional` has the transformations, `nn` layers, `utils` masks, optimisers and checkpoints, and
`predictive_coding` value nodes and energies.
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
