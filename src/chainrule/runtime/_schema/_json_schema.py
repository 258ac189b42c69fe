"""The JSON schema of an array field, as Tesseract clients read it.

The data part is described by four small models that exist only for the schema; arrays themselves are
decoded by the codec. Beyond Tesseract, `array_dims` names dimensions, `array_units` states units, and
`minimum`, `maximum`, `exclusiveMinimum` and `exclusiveMaximum` hold for every element.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, JsonValue, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from chainrule.runtime._schema._spec import ArraySpec, castable_dtypes


class _ArrayData(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BinrefArrayData(_ArrayData):
    """Raw bytes in a file: `<path>[:<offset>[:<compressed size>]]`."""

    buffer: str = Field(pattern=r"^.+?(\:\d+(\:\d+)?)?$")
    encoding: Literal["binref"]
    compression: Literal["lz4"] | None = None


class Base64ArrayData(_ArrayData):
    """Raw bytes as base64 text."""

    buffer: str
    encoding: Literal["base64"]
    compression: Literal["lz4"] | None = None


class JsonArrayData(_ArrayData):
    """Numbers as nested or flat JSON lists."""

    buffer: JsonValue
    encoding: Literal["json"]
    compression: None = None


class CudaIpcArrayData(_ArrayData):
    """A handle to GPU memory: `<device>:<handle>:<offset>:<size>`."""

    buffer: str = Field(pattern=r"^[0-9a-f-]{36}:[A-Za-z0-9+/=]*:\d+:\d+$")
    encoding: Literal["cuda_ipc"]
    compression: None = None


@cache
def _data_adapter() -> TypeAdapter[Any]:
    kinds = BinrefArrayData | Base64ArrayData | JsonArrayData | CudaIpcArrayData
    return TypeAdapter(Annotated[kinds, Field(discriminator="encoding")])


def array_json_schema(spec: ArraySpec, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """The inlined object schema of an encoded array of this declaration."""
    properties: dict[str, Any] = {
        "object_type": {
            "const": "array", "default": "array", "title": "Object Type", "type": "string",
            "description": "Marks an object as an encoded array.",
        },
        "shape": _shape_schema(spec),
        "dtype": _dtype_schema(spec),
        "data": {**handler(_data_adapter().core_schema), "title": "Data"},
    }  # fmt: skip
    schema: dict[str, Any] = {
        "additionalProperties": False,
        "array_flags": ["DIFFERENTIABLE"] if spec.differentiable else [],
        "properties": properties,
        "required": ["shape", "dtype", "data"],
        "title": _title(spec),
        "type": "object",
    }
    if spec.dimension_names:
        schema["array_dims"] = list(spec.dimension_names)
    if spec.bounds is not None:
        schema |= spec.bounds.json_schema()
    if spec.units is not None:
        schema["array_units"] = spec.units
        properties["units"] = {"title": "Units", "type": "string", "default": spec.units}
    return schema


def _shape_schema(spec: ArraySpec) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "title": "Shape",
        "type": "array",
        "description": "Sizes of the array.",
    }
    if spec.shape is None:
        return {**schema, "items": {"type": "integer"}}
    schema |= {"maxItems": len(spec.shape), "minItems": len(spec.shape)}
    schema["examples"] = [[1 if size is None else size for size in spec.shape]]
    if spec.shape:
        schema["prefixItems"] = [_size_schema(size) for size in spec.shape]
    return schema


def _size_schema(size: int | None) -> dict[str, Any]:
    if size is None:
        return {"minimum": 0, "type": "integer"}
    # A size of 1 broadcasts.
    return {"type": "integer"} | ({"enum": [1, size]} if size > 1 else {"const": size})


def _dtype_schema(spec: ArraySpec) -> dict[str, Any]:
    names = castable_dtypes(spec.dtype)
    choice = {"enum": list(names)} if len(names) > 1 else {"const": names[0]}
    examples = [spec.dtype or "float64"]
    return {
        "title": "Dtype", "type": "string", "description": "Number type of the array.",
        "examples": examples, **choice,
    }  # fmt: skip


def _title(spec: ArraySpec) -> str:
    if spec.shape is None:
        shape = "anyrank"
    else:
        shape = "_".join("any" if size is None else str(size) for size in spec.shape) or "scalar"
    flags = "DIFFERENTIABLE" if spec.differentiable else "noflags"
    return f"EncodedArrayModel__{shape}__{spec.dtype}__{flags}"


class ArrayJsonSchema(GenerateJsonSchema):
    """A schema generator that shows array defaults as plain lists instead of dropping them."""

    def encode_default(self, dft: Any) -> Any:
        """The default as JSON."""
        if isinstance(dft, np.ndarray | np.generic) and dft.dtype.kind in "biuf":
            return dft.tolist()
        return super().encode_default(dft)
