"""Arrays in pydantic's JSON mode: encoded as the serialisation context asks.

Context keys: `array_encoding` (`json`, `base64` or `binref`), `compression` and `writer`, which the codec
describes. In Python mode arrays stay what they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import SerializationInfo
from pydantic_core import core_schema

from chainrule._codec import encode_array
from chainrule.runtime._schema._spec import ArraySpec


def serialize_array(spec: ArraySpec) -> core_schema.SerSchema:
    """The serialiser of one declaration."""
    dtype = spec.dtype

    def serialize(value: Any, info: SerializationInfo) -> Any:
        context = info.context or {}
        array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value, dtype)
        return encode_array(
            array,
            encoding=context.get("array_encoding", "json"),
            compression=context.get("compression"),
            writer=context.get("writer"),
        )

    return core_schema.plain_serializer_function_ser_schema(
        serialize, info_arg=True, when_used="json"
    )
