"""Typed arrays: what an array field declares, and how values are checked against it. In reading order:

_spec          ArraySpec and Bounds: what a field declares; names of dtypes
_problems      the reasons for which a value is refused, one function each
_validation    decode or convert, check the shape, cast
_leaves        the arrays of a model by pattern; named dimensions
_array         the annotations: Array, Differentiable, Float64, …, ShapeDType
_json_schema   the JSON schema of an array field
_plain         models as plain data
"""

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
    ShapeDType,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    array_type,
    is_array_type,
    is_differentiable,
)
from chainrule.runtime._schema._leaves import (
    array_leaves,
    bounded,
    differentiable_leaves,
    dimension_check,
    with_dimension_check,
)
from chainrule.runtime._schema._spec import ArraySpec, Bounds, number_kind, rounding_unit
from chainrule.runtime._schema._validation import build_validator

__all__ = [
    "Array",
    "ArraySpec",
    "BFloat16",
    "Bool",
    "Bounds",
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
    "bounded",
    "build_validator",
    "differentiable_leaves",
    "dimension_check",
    "is_array_type",
    "is_differentiable",
    "number_kind",
    "rounding_unit",
    "with_dimension_check",
]
