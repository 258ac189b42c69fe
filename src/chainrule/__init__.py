"""Chainrule: one gradient over many programs.

The names most people need, loaded when they are first used so that `import chainrule` stays as cheap as
importing nothing. Each question has its own package: `chainrule.runtime` (package a program),
`chainrule.elimination` (cheap exact Jacobians), `chainrule.harvest` (look inside), `chainrule.stateful`
(train), `chainrule.bridge` (use components inside JAX), `chainrule.optimize` (optimise and couple them).
"""

from typing import TYPE_CHECKING

from chainrule._lazy import lazy_names as _lazy_names
from chainrule._registry import register as _register

if TYPE_CHECKING:
    from chainrule._errors import ChainruleError, ComponentError, InputError
    from chainrule.bridge import apply_component, component_errors, from_callable
    from chainrule.client import Component
    from chainrule.elimination import jacobian, plan_jacobian
    from chainrule.harvest import (
        grad_wrt,
        intermediate_stats,
        locate_nonfinite,
        plant,
        save_intermediates,
        sow,
    )
    from chainrule.optimize import fixed_point, least_squares, minimize
    from chainrule.runtime import component
    from chainrule.view import watch

__version__ = "0.1.0"

_HOMES = {
    "ChainruleError": "chainrule._errors",
    "Component": "chainrule.client",
    "ComponentError": "chainrule._errors",
    "InputError": "chainrule._errors",
    "apply_component": "chainrule.bridge",
    "component": "chainrule.runtime",
    "component_errors": "chainrule.bridge",
    "fixed_point": "chainrule.optimize",
    "from_callable": "chainrule.bridge",
    "grad_wrt": "chainrule.harvest",
    "intermediate_stats": "chainrule.harvest",
    "jacobian": "chainrule.elimination",
    "least_squares": "chainrule.optimize",
    "locate_nonfinite": "chainrule.harvest",
    "minimize": "chainrule.optimize",
    "plan_jacobian": "chainrule.elimination",
    "plant": "chainrule.harvest",
    "save_intermediates": "chainrule.harvest",
    "sow": "chainrule.harvest",
    "watch": "chainrule.view",
}

__all__ = [
    "ChainruleError",
    "Component",
    "ComponentError",
    "InputError",
    "__version__",
    "apply_component",
    "component",
    "component_errors",
    "fixed_point",
    "from_callable",
    "grad_wrt",
    "intermediate_stats",
    "jacobian",
    "least_squares",
    "locate_nonfinite",
    "minimize",
    "plan_jacobian",
    "plant",
    "save_intermediates",
    "sow",
    "watch",
]

# What packages of lower layers need from higher ones; see `_registry`.
_register(
    component="chainrule.client:Component",
    cluster_transport="chainrule.deploy.ray:attach",
    image_transport="chainrule.deploy.images:open_image",
    plan_picture="chainrule.view:plan",
    spy_picture="chainrule.view:spy",
    worker="chainrule.serve._worker",
)

__getattr__, __dir__ = _lazy_names(__name__, _HOMES, "__version__", extra="all")
