"""`ShapeDType`: an array without its data, for abstract evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from . import _problems
from ._array import is_array_type
from ._dtypes import castable_dtypes, describe_type
from ._spec import ArraySpec, make_spec
from ._validate import check_shape

__all__ = ["ShapeDType"]

DTypeName = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128", "bfloat16",
]  # fmt: skip


class ShapeDType(BaseModel):
    """The shape and dtype of an array that need not exist.

    Other keys are ignored, so an encoded array can stand for its own shape. `ShapeDType[shape, dtype]`
    is the type whose values fit that declaration; their dtype becomes the declared one when it can be
    cast.

    Example:
        >>> ShapeDType(shape=(2, 3), dtype="float32")
        ShapeDType(shape=(2, 3), dtype='float32')
    """

    model_config = ConfigDict(extra="ignore", from_attributes=True, frozen=True)

    shape: tuple[NonNegativeInt, ...]
    dtype: DTypeName

    def __class_getitem__(cls, key: Any) -> Any:
        spec = key.spec if is_array_type(key) else make_spec(*key)
        return Annotated[cls, _Fits(spec)]


class _Fits:
    """Annotation metadata: the shape and dtype fit a declaration."""

    def __init__(self, spec: ArraySpec) -> None:
        self.spec = spec

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._fit, handler(source))

    def _fit(self, value: ShapeDType, info: ValidationInfo) -> ShapeDType:
        found = describe_type(value.shape, value.dtype)
        check_shape(self.spec, value.shape, found, strict=True)
        wanted = self.spec.dtype
        if wanted is None or wanted == value.dtype:
            return value
        if value.dtype not in castable_dtypes(wanted) and value.dtype != "bfloat16":
            raise _problems.dtype_mismatch(wanted, value.dtype, value.shape)
        return value.model_copy(update={"dtype": wanted})
