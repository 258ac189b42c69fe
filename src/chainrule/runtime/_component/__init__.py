"""Components: from a file, a function or an executable to validated endpoints.

    load_component, component, from_command      three ways to make one
        → Definition                             what the author gave
        → LocalComponent                         endpoints, capabilities, OpenAPI document

The way of a call: `LocalComponent.call` → `_endpoints` → `_schemas` (validate) → `_author` (run) →
`_schemas` or `_results` (validate) → `_plain`. Names are loaded when first used: the command line starts
faster that way.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.runtime._component._capabilities import ENDPOINTS, Capability
    from chainrule.runtime._component._command import from_command
    from chainrule.runtime._component._definition import Batching, Definition
    from chainrule.runtime._component._function import component
    from chainrule.runtime._component._load import load_component
    from chainrule.runtime._component._local import LocalComponent

__all__ = [
    "ENDPOINTS",
    "Batching",
    "Capability",
    "Definition",
    "LocalComponent",
    "component",
    "from_command",
    "load_component",
]

_HOMES = {
    "ENDPOINTS": "_capabilities",
    "Batching": "_definition",
    "Capability": "_capabilities",
    "Definition": "_definition",
    "LocalComponent": "_local",
    "component": "_function",
    "from_command": "_command",
    "load_component": "_load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
