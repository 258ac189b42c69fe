"""Package a program as a typed, differentiable component.

    types         Array, Differentiable, ShapeDType, Float64, Int32, …
    components    component, load_component, from_command, from_fmu, from_onnx → LocalComponent
    settings      ComponentConfig, Limits, Grants
    in a call     progress, WithResiduals
    data          SparseArray; decode_body and encode_body turn trees with arrays into bytes

Names are loaded when they are first used; nothing here imports JAX or torch. Recipes for frameworks are in
`jax_recipes` and `torch_recipes`, derivatives of any program in `derivatives`, files and logging in
`experimental`, checks in `testing`.

Modules, in reading order:

    _schema         array types for pydantic models
    _component      from a file, a function or an executable to validated endpoints
    _config         the settings of one component
    _fmi            FMUs as components
    _onnx           ONNX models as components
    _runs           one call: its folder, metrics and log
    _files          fields whose data is in files
    _references     fields that name another component
    _derivatives    a derivative endpoint from another, or from `apply`
    _residuals      what a forward pass leaves for its derivative
    _loaded         the parent of the packages in which component files run
    internal        what other packages of this project use
"""

from typing import TYPE_CHECKING

from chainrule._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from chainrule._codec import Grants, Limits, SparseArray, decode_body, encode_body
    from chainrule._progress import progress
    from chainrule.runtime._component._commands import from_command
    from chainrule.runtime._component._definition import Capability
    from chainrule.runtime._component._functions import component
    from chainrule.runtime._component._loading import load_component
    from chainrule.runtime._component._local import LocalComponent
    from chainrule.runtime._config import ComponentConfig
    from chainrule.runtime._fmi._open import from_fmu
    from chainrule.runtime._onnx._open import from_onnx
    from chainrule.runtime._residuals import WithResiduals
    from chainrule.runtime._schema import (
        Array,
        ArraySpec,
        BFloat16,
        Bool,
        Bounds,
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
    "Bounds",
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
    "from_fmu",
    "from_onnx",
    "load_component",
    "progress",
]

_COMPONENTS = "chainrule.runtime._component"
__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        **dict.fromkeys(__all__, "chainrule.runtime._schema"),
        **dict.fromkeys(
            ("Grants", "Limits", "SparseArray", "decode_body", "encode_body"), "chainrule._codec"
        ),
        "Capability": f"{_COMPONENTS}._definition",
        "ComponentConfig": "chainrule.runtime._config",
        "LocalComponent": f"{_COMPONENTS}._local",
        "WithResiduals": "chainrule.runtime._residuals",
        "component": f"{_COMPONENTS}._functions",
        "from_command": f"{_COMPONENTS}._commands",
        "from_fmu": "chainrule.runtime._fmi._open",
        "from_onnx": "chainrule.runtime._onnx._open",
        "load_component": f"{_COMPONENTS}._loading",
        "progress": "chainrule._progress",
    },
)
