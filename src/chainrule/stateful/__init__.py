"""Train models written as ordinary mutable Python objects, through every JAX transformation.

Positional arguments are pure values, keyword arguments are tracked: a change made to a parameter inside a
transformed function is there after the call, nobody returns models, and several references to one parameter
are one parameter.
"""

from chainrule.stateful import layers
from chainrule.stateful._branches import Cond, Switch, cond, switch
from chainrule.stateful._checkpoint import LoadReport, load, save
from chainrule.stateful._custom_vjp import CustomVjp, custom_vjp
from chainrule.stateful._errors import CheckpointError, GradientError, TrackingError
from chainrule.stateful._eval_shape import eval_shape
from chainrule.stateful._grad import (
    Grad,
    Hessian,
    Jacfwd,
    Jacrev,
    ValueAndGrad,
    grad,
    hessian,
    jacfwd,
    jacrev,
    value_and_grad,
)
from chainrule.stateful._jit import Jit, jit
from chainrule.stateful._linear import jvp, linearize, vjp
from chainrule.stateful._loops import Scan, WhileLoop, scan, while_loop
from chainrule.stateful._masks import M, Mask
from chainrule.stateful._module import Mode, Module
from chainrule.stateful._optim import Optim, OptimState
from chainrule.stateful._params import (
    BaseParam,
    DynamicParam,
    Param,
    ParamCache,
    ParamDict,
    StaticParam,
    static,
)
from chainrule.stateful._random import RKG, RandomKeyGenerator, RKGState
from chainrule.stateful._rematerialise import Checkpoint, checkpoint
from chainrule.stateful._sharding import ShardMap, shard_map
from chainrule.stateful._summary import Summary, summary
from chainrule.stateful._transformation import Transformation
from chainrule.stateful._tree_tools import (
    frozen,
    get,
    set_,
    shared,
    tree_extract,
    tree_inject,
    tree_ref,
    tree_unref,
)
from chainrule.stateful._vmap import Vmap, vmap

__all__ = [
    "RKG",
    "BaseParam",
    "Checkpoint",
    "CheckpointError",
    "Cond",
    "CustomVjp",
    "DynamicParam",
    "Grad",
    "GradientError",
    "Hessian",
    "Jacfwd",
    "Jacrev",
    "Jit",
    "LoadReport",
    "M",
    "Mask",
    "Mode",
    "Module",
    "Optim",
    "OptimState",
    "Param",
    "ParamCache",
    "ParamDict",
    "RKGState",
    "RandomKeyGenerator",
    "Scan",
    "ShardMap",
    "StaticParam",
    "Summary",
    "Switch",
    "TrackingError",
    "Transformation",
    "ValueAndGrad",
    "Vmap",
    "WhileLoop",
    "checkpoint",
    "cond",
    "custom_vjp",
    "eval_shape",
    "frozen",
    "get",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "layers",
    "linearize",
    "load",
    "save",
    "scan",
    "set_",
    "shard_map",
    "shared",
    "static",
    "summary",
    "switch",
    "tree_extract",
    "tree_inject",
    "tree_ref",
    "tree_unref",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
