"""Use components inside JAX as if they were `jax.numpy` functions.

    apply_component      call a component, in this process or far away, under any transformation
    from_callable        the same for NumPy, SciPy or C code that is not a component
    component_errors     the exceptions of components themselves, also out of compiled programs
    PrecisionWarning     a component computes in 64 bits and JAX holds 32

How it is made, from the outside in: `_apply` takes the inputs apart and decides between `_inline` (JAX
components become part of the program) and `_primitive` (everything else is a call of the host). The rules of
the primitive, `_differentiate` and `_batching`, rearrange `_requests`; `_host` carries them out, by the
`_routes` that a `_target` offers. The parts below `_apply` that do not need JAX are shared with
`chainrule.torch`.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "PrecisionWarning": "chainrule.bridge._types",
    "apply_component": "chainrule.bridge._apply",
    "component_errors": "chainrule.bridge._failures",
    "from_callable": "chainrule.bridge._apply",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chainrule.bridge' has no attribute {name!r}")
    value = getattr(_importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
