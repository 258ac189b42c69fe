"""`Array[shape, dtype, units]`: a type annotation that pydantic validates and JSON schemas describe.

Every subscript makes a class that carries its declaration as `.spec`. Values are never instances of these
classes: they are NumPy arrays or NumPy scalars. `ShapeDType` is an array without its data, for abstract
evaluation.

In pydantic's JSON mode, arrays are encoded as the serialisation context asks: `array_encoding` (`json`,
`base64` or `binref`), `compression` and `writer`, which the codec describes. In Python mode they stay arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    NonNegativeInt,
    SerializationInfo,
    Tag,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from chainrule._codec import BinrefWriter, Encoding, encode_array
from chainrule._errors import DefinitionError, InputError
from chainrule.runtime._runs import get_config
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._spec import ArraySpec, castable_dtypes, make_spec
from chainrule.runtime._schema._validation import build_validator, check_shape, coerce, with_bounds


class ArrayFlags(IntEnum):
    """What an array may be marked with."""

    DIFFERENTIABLE = 1


class _ArrayMeta(type):
    """Shows array types as they are written, and their declaration under the names of tesseract-core."""

    spec: ArraySpec | None

    @property
    def flags(cls) -> tuple[ArrayFlags, ...]:
        """What the array is marked with."""
        is_marked = cls.spec is not None and cls.spec.differentiable
        return (ArrayFlags.DIFFERENTIABLE,) if is_marked else ()

    @property
    def expected_shape(cls) -> Any:
        """The declared sizes, `None` for any; `...` for any rank."""
        return ... if cls.spec is None or cls.spec.shape is None else cls.spec.shape

    @property
    def expected_dtype(cls) -> str | None:
        """The declared dtype; `None` for any."""
        return None if cls.spec is None else cls.spec.dtype

    def __repr__(cls) -> str:
        return cls.__qualname__


class Array(metaclass=_ArrayMeta):
    """An array of numbers with a shape, a dtype and, optionally, units and bounds.

    `Array[shape, dtype]`, `Array[shape, dtype, units]` or `Array[shape, dtype, Bounds(ge=0)]`, where the
    shape is a tuple of sizes, of names (`"n"`: the same name is the same size everywhere in one call) and of
    `None` (any size), or `...` (any rank); the dtype is a type such as `Float64`, a dtype name, or `None`
    (any dtype).

    Example:
        >>> from pydantic import BaseModel
        >>> class Cloud(BaseModel):
        ...     points: Array[("n", 3), Float64]
        ...     masses: Array[("n",), Float64]
        >>> Cloud(points=[[0, 0, 1]], masses=[2]).masses
        array([2.])
    """

    spec: ClassVar[ArraySpec | None] = None

    def __class_getitem__(cls, key: Any) -> type[Array]:
        if not isinstance(key, tuple) or len(key) not in (2, 3, 4):
            raise DefinitionError(
                f"Array[{key!r}] needs a shape and a dtype, for example Array[(3, None), Float64].",
                code="bad_array_type",
            )
        return array_type(make_spec(*key))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls.spec is None:
            raise DefinitionError(
                "A field needs the shape and dtype of its array: write Array[..., None] for anything.",
                code="bad_array_type",
            )
        as_needed, as_is = (
            with_bounds(build_validator(cls.spec, exact=exact), cls.spec.bounds)
            for exact in (False, True)
        )
        schema = core_schema.lax_or_strict_schema(
            core_schema.with_info_plain_validator_function(as_needed),
            core_schema.with_info_plain_validator_function(as_is),
            serialization=serialize_array(cls.spec),
        )
        # The name of a union's member in the location of an error.
        tag = Tag(str(cls.spec))
        return tag.__get_pydantic_core_schema__(source, lambda _: schema)  # type: ignore[arg-type]

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # Imported here: validation does without, and the command line starts faster.
        from chainrule.runtime._schema._json_schema import array_json_schema

        assert cls.spec is not None
        return array_json_schema(cls.spec, handler)


@cache
def array_type(spec: ArraySpec) -> type[Array]:
    """The array type of a declaration; equal declarations share one class."""
    namespace = {"spec": spec, "__module__": Array.__module__}
    return cast("type[Array]", _ArrayMeta(_spelling(spec), (Array,), namespace))


def _spelling(spec: ArraySpec) -> str:
    """The declaration as an author writes it."""
    shape = "..." if spec.shape is None else spec.labelled_shape
    units = "" if spec.units is None else f", {spec.units!r}"
    bounds = "" if spec.bounds is None else f", Bounds({_arguments(spec.bounds.given)})"
    text = f"Array[{shape}, {spec.dtype!r}{units}{bounds}]"
    return f"Differentiable[{text}]" if spec.differentiable else text


def _arguments(given: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def is_array_type(annotation: Any) -> bool:
    """Whether an annotation is an `Array[...]`."""
    return isinstance(annotation, _ArrayMeta) and annotation.spec is not None


def is_differentiable(obj: Any) -> bool:
    """Whether an annotation is a `Differentiable[Array[...]]`."""
    return is_array_type(obj) and obj.spec.differentiable


class Differentiable:
    """Marks an array whose derivatives may be asked for: `Differentiable[Array[(3,), Float64]]`."""

    def __class_getitem__(cls, annotation: Any) -> type[Array]:
        if not is_array_type(annotation):
            raise DefinitionError(
                f"Only arrays can be differentiable, found {annotation!r}. Write "
                "Differentiable[Float64] for a number, with its limits in Field(ge=…, le=…), and put "
                "Differentiable inside containers: list[Differentiable[Array[(3,), Float64]]].",
                code="bad_array_type",
            )
        return array_type(annotation.spec.with_differentiable())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        raise DefinitionError(
            "Differentiable needs the array that it marks: write Differentiable[Array[(3,), Float64]], or "
            "Differentiable[Float64] for a number.",
            code="bad_array_type",
        )


if TYPE_CHECKING:
    # What a checker should believe of a scalar field: its value is a NumPy scalar.
    Float16 = np.float16
    Float32 = np.float32
    Float64 = np.float64
    BFloat16 = np.generic
    Int8 = np.int8
    Int16 = np.int16
    Int32 = np.int32
    Int64 = np.int64
    UInt8 = np.uint8
    UInt16 = np.uint16
    UInt32 = np.uint32
    UInt64 = np.uint64
    Bool = np.bool_
    Complex64 = np.complex64
    Complex128 = np.complex128
else:
    Float16 = Array[(), "float16"]
    Float32 = Array[(), "float32"]
    Float64 = Array[(), "float64"]
    BFloat16 = Array[(), "bfloat16"]
    Int8 = Array[(), "int8"]
    Int16 = Array[(), "int16"]
    Int32 = Array[(), "int32"]
    Int64 = Array[(), "int64"]
    UInt8 = Array[(), "uint8"]
    UInt16 = Array[(), "uint16"]
    UInt32 = Array[(), "uint32"]
    UInt64 = Array[(), "uint64"]
    Bool = Array[(), "bool"]
    Complex64 = Array[(), "complex64"]
    Complex128 = Array[(), "complex128"]


DTypeName = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128", "bfloat16",
]  # fmt: skip


class ShapeDType(BaseModel):
    """The shape and dtype of an array that need not exist.

    Other keys are ignored, so an encoded array is accepted for its shape and dtype; so is any object with
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
        described = core_schema.no_info_before_validator_function(
            _from_array, handler.generate_schema(ShapeDType)
        )
        # By the type of the value: a default of the author's may be in the place of a description.
        by_type = core_schema.simple_ser_schema("any")
        return core_schema.no_info_after_validator_function(
            cls._fit, described, serialization=by_type
        )

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
    if isinstance(value, bool | int | float | complex | list | tuple | None):
        value = coerce(value).array
    if isinstance(value, ShapeDType) or not hasattr(value, "shape"):
        return value
    return {"shape": tuple(value.shape), "dtype": str(getattr(value, "dtype", None))}


@cache
def shape_type(spec: ArraySpec) -> type[_ShapeOf]:
    """The type of the shapes that fit a declaration."""
    return type(f"ShapeDType[{spec}]", (_ShapeOf,), {"spec": spec})


def serialize_array(spec: ArraySpec) -> core_schema.SerSchema:
    """The serialiser of one declaration."""
    dtype = spec.dtype

    def serialize(value: Any, info: SerializationInfo) -> Any:
        context = info.context or {}
        array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value, dtype)
        # As in `array_encoding`, or as in `output_format`: "binref" or "json+binref".
        encoding = context.get("array_encoding", "json").removeprefix("json+")
        if encoding not in get_args(Encoding):
            raise InputError(
                f"array_encoding is one of {', '.join(get_args(Encoding))}; found {encoding!r}.",
                code="bad_option",
            )
        compression = context.get("compression")
        writer = context.get("writer")
        if encoding != "binref" or writer is not None:
            return encode_array(array, encoding=encoding, compression=compression, writer=writer)
        # A model that is dumped outside of a component: into `base_dir`, or the configured folder.
        folder = context.get("base_dir") or get_config().output_path
        with BinrefWriter(
            folder, run=context.get("binref_dir") or "", compression=compression
        ) as own:
            return encode_array(array, encoding="binref", compression=compression, writer=own)

    return core_schema.plain_serializer_function_ser_schema(
        serialize, info_arg=True, when_used="json"
    )
