"""Train models written as ordinary mutable Python objects, through every JAX transformation.

Positional arguments are pure values, keyword arguments are tracked: a change made to a parameter inside a
transformed function is there after the call, models are not returned, and several references to one parameter
are one parameter.

The modules, in the order in which to read them:

    _frames         where the values of parameters are while a transformed function runs
    _values         what a parameter may hold, and when one value can replace another
    _snapshots      equality, snapshots and copies of what is not an array
    _nodes          what parameters, modules and the containers in them have in common
    _params         parameters, and their arithmetic
    _module         modules, and the lists, dictionaries and tuples inside them
    _walk           one walk: which parameters a tree holds, where, and its structure
    _random         generators of random keys
    _masks          which parameters, by kind, attribute, path or predicate
    _call           the protocol of a call: collect, run purely, commit
    _jit            the same for programs that are kept
    _derivatives    grad, jvp, vjp, custom_vjp, checkpoint and the like
    _precision      computing in another precision
    _mapping        vmap, shard_map
    _control_flow   scan, map, fori_loop, while_loop, cond, switch
    _optim          optax on the parameters of a model
    _checkpoint     save and load
    _tree_tools     values out of a tree and into it; sharing
    _summary        a table of parameters; how a model prints
    _errors         what can go wrong
    layers          equinox layers with parameters inside
    internal        what other packages of this project use
"""

from chainrule.stateful import layers
from chainrule.stateful._call import eval_shape
from chainrule.stateful._checkpoint import Checkpoints, LoadReport, load, save
from chainrule.stateful._control_flow import (
    cond,
    fori_loop,
    map,
    scan,
    switch,
    while_loop,
)
from chainrule.stateful._derivatives import (
    checkpoint,
    custom_jvp,
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from chainrule.stateful._errors import CheckpointError, GradientError, TrackingError
from chainrule.stateful._jit import jit
from chainrule.stateful._mapping import shard_map, vmap
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
from chainrule.stateful._precision import precision
from chainrule.stateful._random import RKG, RandomKeyGenerator, RKGState
from chainrule.stateful._summary import summary
from chainrule.stateful._tree_tools import (
    clone,
    frozen,
    get,
    get_values,
    set_,
    set_values,
    shared,
    tree_extract,
    tree_inject,
    tree_ref,
    tree_unref,
)

__all__ = [
    "RKG",
    "BaseParam",
    "CheckpointError",
    "Checkpoints",
    "DynamicParam",
    "GradientError",
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
    "StaticParam",
    "TrackingError",
    "checkpoint",
    "clone",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "eval_shape",
    "fori_loop",
    "frozen",
    "get",
    "get_values",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "layers",
    "linearize",
    "load",
    "map",
    "precision",
    "save",
    "scan",
    "set_",
    "set_values",
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
