"""What a `tesseract_api.py` imports: `tesseract_core.runtime` on Chainrule's types.

The public modules have the ancestor's names. `_main` is the command line `chainrule-tesseract-runtime`; the
modules that only pass on the names of a native one use `chainrule.compat._mirror`.
"""

from chainrule.runtime import (
    Array,
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
    "Differentiable",
    "Float16",
    "Float32",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "ShapeDType",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
]
