"""What other packages of this project use of `bridge`; no promise to users."""

from chainrule.bridge._calculus import (
    Vectors,
    check_inputs,
    differentiable,
    make_call,
    not_differentiable,
    open_call,
    pushed_forward,
)
from chainrule.bridge._component_target import as_target
from chainrule.bridge._host import Batch, Call, host_call
from chainrule.bridge._inputs import take_inputs_apart
from chainrule.bridge._requests import apply_request
from chainrule.bridge._site import find_site
from chainrule.bridge._target import Options, VmapMethod
from chainrule.bridge._types import ArrayType, is_inexact, warn_if_narrowed

__all__ = [
    "ArrayType",
    "Batch",
    "Call",
    "Options",
    "Vectors",
    "VmapMethod",
    "apply_request",
    "as_target",
    "check_inputs",
    "differentiable",
    "find_site",
    "host_call",
    "is_inexact",
    "make_call",
    "not_differentiable",
    "open_call",
    "pushed_forward",
    "take_inputs_apart",
    "warn_if_narrowed",
]
