"""`ShapeDType`: an array without its data, for abstract evaluation."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, NonNegativeInt
from pydantic_core import CoreSchema, core_schema

from chainrule._errors import DefinitionError
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._coerce import coerce
from chainrule.runtime._schema._dtypes import castable_dtypes
from chainrule.runtime._schema._model_hooks import check_dimensions_of_model
from chainrule.runtime._schema._spec import ArraySpec, make_spec
from chainrule.runtime._schema._validate import check_shape

DTypeName = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128", "bfloat16",
]  # fmt: skip


class ShapeDType(BaseModel):
    """The shape and dtype of an array that need not exist.

    Other keys are ignored, so an encoded array can stand for its own shape; so can any object with
    `shape` and `dtype`. `ShapeDType[shape, dtype]` is the type whose values fit that declaration; their
    dtype becomes the declared one when it can be cast.

    Example:
        >>> ShapeDType(shape=(2, 3), dtype="float32")
        ShapeDType(shape=(2, 3), dtype='float32')
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    shape: tuple[NonNegativeInt, ...]
    dtype: DTypeName

    def __class_getitem__(cls, key: Any) -> Any:
        spec = getattr(key, "spec", None)
        if isinstance(spec, ArraySpec):
            return shape_type(spec)
        if not isinstance(key, tuple) or len(key) != 2:
            raise DefinitionError(
                f"ShapeDType[{key!r}] needs a shape and a dtype, for example "
                "ShapeDType[(3, None), Float64].",
                code="bad_array_type",
            )
        return shape_type(make_spec(*key))


class _ShapeOf:
    """Base of the types `ShapeDType[...]`: annotations whose values are `ShapeDType` objects."""

    spec: ClassVar[ArraySpec]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls.spec.dimension_names:
            check_dimensions_of_model(handler)
        return core_schema.chain_schema(
            [
                core_schema.no_info_plain_validator_function(_from_array),
                handler.generate_schema(ShapeDType),
                core_schema.no_info_plain_validator_function(cls._fit),
            ]
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        return handler(ShapeDType.__pydantic_core_schema__)

    @classmethod
    def _fit(cls, value: ShapeDType) -> ShapeDType:
        check_shape(cls.spec, value.shape, value.dtype, strict=True)
        wanted = cls.spec.dtype
        if wanted is None or wanted == value.dtype:
            return value
        if value.dtype not in castable_dtypes(wanted):
            raise _problems.dtype_mismatch(wanted, value.dtype, value.shape)
        return value.model_copy(update={"dtype": wanted})


def _from_array(value: Any) -> Any:
    """The shape and dtype of an array: NumPy's, JAX's, `jax.ShapeDtypeStruct`, or numbers written out."""
    if isinstance(value, bool | int | float | complex | list | tuple):
        value = coerce(value).array
    if isinstance(value, ShapeDType) or not hasattr(value, "shape"):
        return value
    return {"shape": tuple(value.shape), "dtype": str(getattr(value, "dtype", None))}


@cache
def shape_type(spec: ArraySpec) -> type[_ShapeOf]:
    """The type of the shapes that fit a declaration."""
    return type(f"ShapeDType[{spec}]", (_ShapeOf,), {"spec": spec})
