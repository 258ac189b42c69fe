"""What other packages of this project use of `bridge`; no promise to users. Importing it does not import JAX.

Call          a call of a component: `push_forward` and `pull_back` are the calls of its derivatives
Framework     what the bridge has to know about a framework's arrays
Options       what the caller of `apply_component` decides
VmapMethod    how `vmap` is done
as_target     what a component says about its inputs and endpoints
host_call     runs a call on NumPy arrays: `host_call(call).evaluate(arrays)`
is_inexact    whether arrays of a dtype can carry derivatives
prepare_call  a component and inputs → a call, its operands, and what builds the tree of outputs
"""

from chainrule.bridge._component_target import as_target
from chainrule.bridge._host import host_call
from chainrule.bridge._inputs import Framework, prepare_call
from chainrule.bridge._requests import Call
from chainrule.bridge._target import Options, VmapMethod
from chainrule.bridge._types import is_inexact

__all__ = [
    "Call",
    "Framework",
    "Options",
    "VmapMethod",
    "as_target",
    "host_call",
    "is_inexact",
    "prepare_call",
]
