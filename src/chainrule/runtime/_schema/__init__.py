"""Typed arrays: what an array field declares, and how values are held to it."""

from chainrule.runtime._schema._array import (
    Array,
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
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    array_type,
    is_array_type,
    is_differentiable,
)
from chainrule.runtime._schema._dtypes import (
    describe_array,
    describe_value,
    number_kind,
    rounding_unit,
)
from chainrule.runtime._schema._leaves import array_leaves, differentiable_leaves
from chainrule.runtime._schema._shape_dtype import ShapeDType
from chainrule.runtime._schema._spec import ArraySpec
from chainrule.runtime._schema._validate import build_validator

__all__ = [
    "Array",
    "ArraySpec",
    "BFloat16",
    "Bool",
    "Complex64",
    "Complex128",
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
    "array_leaves",
    "array_type",
    "build_validator",
    "describe_array",
    "describe_value",
    "differentiable_leaves",
    "is_array_type",
    "is_differentiable",
    "number_kind",
    "rounding_unit",
]
