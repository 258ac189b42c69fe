"""The types of schemas, those that `runtime` does not export included. See `chainrule.compat._mirror`."""

from __future__ import annotations

from typing import Any, NoReturn

from chainrule.compat._mirror import mirror
from chainrule.runtime import internal

ALLOWED_DTYPE_NAMES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
)  # fmt: skip
"""The dtypes that the ancestor knows."""

ArrayFlags = internal.ArrayFlags


class _OfArrayTypes(type):
    def __subclasscheck__(cls, candidate: Any) -> bool:
        return internal.is_array_type(candidate)


class PydanticArrayAnnotation(metaclass=_OfArrayTypes):
    """The class of which every `Array[…]` is a subclass; the declaration of an array type is its `spec`."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("An array type is a declaration; it has no instances.")


__getattr__, __dir__ = mirror(
    "tesseract_core.runtime.schema_types",
    "ALLOWED_DTYPE_NAMES",
    "ArrayFlags",
    "PydanticArrayAnnotation",
)
