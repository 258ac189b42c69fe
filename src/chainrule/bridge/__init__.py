"""Use components inside JAX as if they were `jax.numpy` functions.

    apply_component      call a component, in this process or far away, under any transformation
    from_callable        the same for NumPy, SciPy or C code that is not a component
    component_errors     the exceptions of components themselves, also out of compiled programs
    PrecisionWarning     a component computes in 64 bits and JAX holds 32

Modules, in reading order
    _apply             `apply_component` and `from_callable`
    _inputs            what of the inputs is an operand, and what is part of the program
    _target            the interface to something with endpoints; options of a call; callables; timings
    _component_target  components as targets: in this process, served, real Tesseracts
    _types             trees before their arrays exist: holes, shapes and dtypes, and how dtypes are converted
    _site              one target at one signature: a flat function from arrays to arrays
    _requests          what can be asked of a site, and the rules for derivatives
    _products          products with the Jacobian of a call that are asked for directly
    _primitive         the JAX primitive of a call, and its rules
    _inline            components written in JAX as part of the caller's program
    _host              running a call on the host: batches, threads, calls that overlap
    _routes            from a request to the endpoints of a target
    _failures          exceptions out of compiled programs
    _tagged            values that a component tags, from under a call

`_apply` decides between `_inline` (JAX components become part of the program) and `_primitive` (all others
are called on the host). All modules but `_apply`, `_primitive`, `_inline` and `_tagged` work without JAX:
`chainrule.torch` uses them by way of `internal`.
"""

from typing import TYPE_CHECKING

from chainrule._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from chainrule.bridge._apply import apply_component, from_callable
    from chainrule.bridge._failures import component_errors
    from chainrule.bridge._types import PrecisionWarning

__all__ = [
    "PrecisionWarning",
    "apply_component",
    "component_errors",
    "from_callable",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "PrecisionWarning": "chainrule.bridge._types",
        "apply_component": "chainrule.bridge._apply",
        "component_errors": "chainrule.bridge._failures",
        "from_callable": "chainrule.bridge._apply",
    },
)
