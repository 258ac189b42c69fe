"""Package a program as a typed, differentiable component.

    types         Array, Differentiable, ShapeDType, Float64, Int32, …
    components    component, load_component, from_command → LocalComponent
    settings      ComponentConfig, Limits, Grants
    in a call     progress, WithResiduals
    data          SparseArray; decode_body and encode_body turn trees with arrays into bytes

Names are loaded when they are first used; nothing here imports JAX or torch. Recipes for frameworks are in
`jax_recipes` and `torch_recipes`, files and logging in `experimental`, checks in `testing`.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule._codec import Grants, Limits, SparseArray, decode_body, encode_body
    from chainrule.runtime._component import (
        Capability,
        LocalComponent,
        component,
        from_command,
        load_component,
    )
    from chainrule.runtime._config import ComponentConfig
    from chainrule.runtime._progress import progress
    from chainrule.runtime._residuals import WithResiduals
    from chainrule.runtime._schema import (
        Array,
        ArraySpec,
        BFloat16,
        Bool,
        Complex64,
        Complex128,
        Differentiable,
        Float16,
        Float32,
        Float64,
        Int8,
        Int16,
        Int32,
        Int64,
        ShapeDType,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
    )

__all__ = [
    "Array",
    "ArraySpec",
    "BFloat16",
    "Bool",
    "Capability",
    "Complex64",
    "Complex128",
    "ComponentConfig",
    "Differentiable",
    "Float16",
    "Float32",
    "Float64",
    "Grants",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Limits",
    "LocalComponent",
    "ShapeDType",
    "SparseArray",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "WithResiduals",
    "component",
    "decode_body",
    "encode_body",
    "from_command",
    "load_component",
    "progress",
]

_COMPONENTS = ("Capability", "LocalComponent", "component", "from_command", "load_component")
_CODECS = ("Grants", "Limits", "SparseArray", "decode_body", "encode_body")
_HOMES = {
    **dict.fromkeys(__all__, "chainrule.runtime._schema"),
    **dict.fromkeys(_COMPONENTS, "chainrule.runtime._component"),
    **dict.fromkeys(_CODECS, "chainrule._codec"),
    "ComponentConfig": "chainrule.runtime._config",
    "WithResiduals": "chainrule.runtime._residuals",
    "progress": "chainrule.runtime._progress",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chainrule.runtime' has no attribute {name!r}")
    value = getattr(_importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
