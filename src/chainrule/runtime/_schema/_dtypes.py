"""The dtypes an array field can declare, and how they are named in messages.

`bfloat16` is not NumPy's own; its package `ml_dtypes` is imported only when a field or a value has it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from chainrule._codec import dtype_from_name
from chainrule._trees import is_arraylike, with_article

# In the order in which the peer lists them in its JSON schemas.
PEER_DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
)  # fmt: skip
BFLOAT16 = "bfloat16"
ALL_DTYPES = (*PEER_DTYPES, BFLOAT16)

# Package in which a class of arrays is defined → what people call its values.
_ARRAYS = {
    "numpy": "a NumPy array",
    "jax": "a JAX array",
    "jaxlib": "a JAX array",
    "torch": "a torch tensor",
    "cupy": "a CuPy array",
}
_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_SHORT_KINDS = {"float": "f", "int": "i", "uint": "u", "complex": "c"}
_GENERALITY_OF_KIND = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name.

    Raises:
        DefinitionError: `bfloat16` without the package `ml_dtypes`.
    """
    return dtype_from_name(name) if name == BFLOAT16 else np.dtype(name)


@cache
def canonical_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The one dtype of this name: in the machine's byte order, `int64` also where C says `long long`."""
    return numpy_dtype(dtype.name)


@cache
def generality(dtype: np.dtype[Any]) -> int | None:
    """bool 0, integers 1, floats 2, complex numbers 3; `None` when the dtype is not a number.

    A cast is allowed towards equal or greater generality; whether the values survive is another check.
    """
    if dtype.name == BFLOAT16:
        return 2
    return _GENERALITY_OF_KIND.get(dtype.kind) if dtype.name in PEER_DTYPES else None


@cache
def castable_dtypes(name: str | None) -> tuple[str, ...]:
    """The dtype names that a field of this dtype accepts, in the peer's order."""
    names = ALL_DTYPES if name == BFLOAT16 else PEER_DTYPES
    if name is None:
        return names
    limit = _generality_of_name(name)
    return tuple(other for other in names if _generality_of_name(other) <= limit)


def _generality_of_name(name: str) -> int:
    return 2 if name == BFLOAT16 else _GENERALITY_OF_KIND[np.dtype(name).kind]


def number_kind(dtype: np.dtype[Any]) -> str:
    """NumPy's letter for a kind of numbers (b, i, u, f, c); f also for bfloat16, which it does not know."""
    return "f" if dtype.name == BFLOAT16 else dtype.kind


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of this float or complex dtype."""
    return 2.0 ** (1 - mantissa_bits(dtype))


def mantissa_bits(dtype: np.dtype[Any]) -> int:
    """Integers up to `2**mantissa_bits` in magnitude are exact in this float or complex dtype."""
    return 8 if dtype.name == BFLOAT16 else int(np.finfo(dtype).nmant) + 1


def describe_type(shape: tuple[Any, ...] | None, dtype: Any) -> str:
    """Shape and dtype in the short form of messages, like `f64[3,4]`.

    Open dimensions are written `?`, any rank `...`, any dtype `any`.
    """
    name = "any" if dtype is None else str(dtype)
    dims = "..." if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    return f"{_short_dtype(name)}[{dims}]"


def _short_dtype(name: str) -> str:
    if name in _SHORT:
        return _SHORT[name]
    letters = name.rstrip("0123456789")
    return _SHORT_KINDS.get(letters, letters) + name[len(letters) :]


def describe_array(x: Any) -> str:
    """The shape and dtype of a value in the short form `f64[3,4]`; the type's name if it has none."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        return type(x).__name__
    return describe_type(tuple(shape), getattr(dtype, "name", dtype))


def describe_value(x: Any) -> str:
    """What a value is, for people: `a JAX array f32[3]`, `a list`, `an int`, `nothing`."""
    if x is None:
        return "nothing"
    kind = type(x)
    noun = _ARRAYS.get(kind.__module__.partition(".")[0])
    if noun is None or not is_arraylike(x):
        return with_article(kind.__name__)
    return f"{noun} {describe_type(tuple(x.shape), str(x.dtype).removeprefix('torch.'))}"
