"""Walking and rewriting jaxprs: one view of JAX programs for every package.

Vocabulary
    program      a `ClosedJaxpr`: equations, inputs, outputs, captured constants.
    equation     one application of a primitive.
    sub-program  a program in the parameters of a higher-order equation (`jit`, `scan`, `while`, `cond`,
                 `custom_jvp`, `custom_vjp`, `remat`, `shard_map`, `custom_linear_solve`, …), with the map
                 from its inputs and outputs to the equation's operands and results.
    atom         a variable or a literal.

Modules, in reading order
    _names               every name of JAX that is private or differs between versions
    _programs            sub-programs of an equation, all equations of a program, where an equation comes from
    _outside             calls that leave the program, and how to ask for their derivatives
    _evaluate            run a program equation by equation; trace; inline calls
    _extras              arrays that leave a rewritten program, and how loops fold them
    _rewrite             the rewriter: run a program with some equations replaced, at any depth
    _fence               values that XLA computes once
    _moves               primitives that only move elements, on NumPy arrays
    _sets                one set of numbers per element of an array
    _derivative_pattern  where a Jacobian can be non-zero, proved from the program
    _meshes              arrays and calls that are divided over devices
    call_frame           the layout of XLA's call frame
    _host_call           calls of the host out of compiled programs
    _device_call         calls that are handed the memory of a GPU
    _overlapping         independent calls of the host that run at the same time

Invariant: nothing outside this package imports `jax._src` or a name that differs between JAX versions
(`tests/_jaxpr/` fails loudly when JAX changes them).
"""

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var

from chainrule._jaxpr import call_frame
from chainrule._jaxpr._derivative_pattern import derivative_pattern
from chainrule._jaxpr._device_call import (
    hands_over_device_memory,
    lower_device_call,
)
from chainrule._jaxpr._evaluate import (
    CALLS,
    NOT_TRACEABLE,
    as_function,
    bind_equation,
    evaluate,
    inline_calls,
    trace,
    trace_avals,
)
from chainrule._jaxpr._extras import FOLDS, Extra, Fold, ring
from chainrule._jaxpr._fence import FENCE, fence
from chainrule._jaxpr._host_call import (
    ORDERED_EFFECT,
    is_exporting,
    lower_host_call,
    register_call,
    see_nans,
    uses_ffi,
)
from chainrule._jaxpr._meshes import (
    array_aval,
    as_type,
    divided_alike,
    divided_over_batch,
    has_mesh_in_type,
    varies,
    vary_alike,
)
from chainrule._jaxpr._moves import (
    MOVES,
    move,
    pad,
)
from chainrule._jaxpr._names import (
    CALLBACKS,
    NO_TRACE,
    DropVar,
    Effect,
    aval_of,
    capture_context,
    close_program,
    current_trace,
    enable_x64,
    hidden_batch_size,
    is_reference,
    is_staging,
    is_transforming,
    loop_input,
    name_stack_of,
    permit_effect,
    register_dead_code_rule,
    scan_layout,
    trace_state,
)
from chainrule._jaxpr._outside import (
    Dependence,
    Offer,
    OutsideCall,
    Products,
    outside_call_of,
    register_outside_call,
)
from chainrule._jaxpr._overlapping import (
    lower_overlapping,
)
from chainrule._jaxpr._programs import (
    SourceLocation,
    SubProgram,
    call_sites,
    component_of,
    component_scope,
    equations_inside,
    locate,
    plain_text,
    subprograms,
    walk,
)
from chainrule._jaxpr._rewrite import Rewriter

__all__ = [
    "CALLBACKS",
    "CALLS",
    "FENCE",
    "FOLDS",
    "MOVES",
    "NOT_TRACEABLE",
    "NO_TRACE",
    "ORDERED_EFFECT",
    "ClosedJaxpr",
    "Dependence",
    "DropVar",
    "Effect",
    "Extra",
    "Fold",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Offer",
    "OutsideCall",
    "Primitive",
    "Products",
    "Rewriter",
    "SourceLocation",
    "SubProgram",
    "Var",
    "array_aval",
    "as_function",
    "as_type",
    "aval_of",
    "bind_equation",
    "call_frame",
    "call_sites",
    "capture_context",
    "close_program",
    "component_of",
    "component_scope",
    "current_trace",
    "derivative_pattern",
    "divided_alike",
    "divided_over_batch",
    "enable_x64",
    "equations_inside",
    "evaluate",
    "fence",
    "hands_over_device_memory",
    "has_mesh_in_type",
    "hidden_batch_size",
    "inline_calls",
    "is_exporting",
    "is_reference",
    "is_staging",
    "is_transforming",
    "locate",
    "loop_input",
    "lower_device_call",
    "lower_host_call",
    "lower_overlapping",
    "move",
    "name_stack_of",
    "outside_call_of",
    "pad",
    "permit_effect",
    "plain_text",
    "register_call",
    "register_dead_code_rule",
    "register_outside_call",
    "ring",
    "scan_layout",
    "see_nans",
    "subprograms",
    "trace",
    "trace_avals",
    "trace_state",
    "uses_ffi",
    "varies",
    "vary_alike",
    "walk",
]
