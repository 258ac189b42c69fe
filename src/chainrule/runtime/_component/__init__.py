"""Components: from a file, a function or an executable to validated endpoints.

    load_component, component, from_command      three ways to make one
        → Definition                             what the author gave
        → LocalComponent                         endpoints, capabilities, OpenAPI document

The way of a call: `LocalComponent.call` → `_endpoints` → `_schemas` (validate) → `_author` (run) →
`_schemas` or `_results` (validate) → `_plain`.
"""

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
