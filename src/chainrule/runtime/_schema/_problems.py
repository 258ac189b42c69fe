"""Every way an array can be refused: one function per reason.

The `type` of each error is that of Tesseract where it has one, so that clients which decide on it keep
working. Messages carry shapes and dtypes, never data.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticCustomError, PydanticKnownError

from chainrule._codec import MASKED
from chainrule._describe import describe_type
from chainrule._errors import ChainruleError
from chainrule.runtime._schema._spec import ALL_DTYPES, Bounds

_PEER_TYPES = {"array_expected_integer", "array_invalid_dtype", "array_value_out_of_range"}


def _problem(kind: str, message: str, **context: Any) -> PydanticCustomError:
    if "{" in message:
        # pydantic would put the context's `sizes` where a path says `cells.{sizes}`; it fills in once.
        return PydanticCustomError(kind, "{message}", {**context, "message": message})
    return PydanticCustomError(kind, message, context)


def rank_mismatch(expected: Any, shape: tuple[int, ...], dtype: Any) -> PydanticCustomError:
    """The number of dimensions differs."""
    rank = len(expected.shape)
    return _problem(
        "array_dimensionality_mismatch",
        f"Expected {expected} with {rank} dimension{'s' * (rank != 1)}, found "
        f"{describe_type(shape, dtype)} with {len(shape)}.",
        actual_dims=len(shape),
        expected_dims=rank,
    )


def shape_mismatch(
    expected: Any, shape: tuple[int, ...], dtype: Any, *, strict: bool
) -> PydanticCustomError:
    """Same number of dimensions, but a size that neither agrees nor broadcasts."""
    exactly = "and sizes must agree exactly here (no broadcasting)"
    why = exactly if strict else "which does not broadcast to it"
    return _problem(
        "array_shape_mismatch",
        f"Expected {expected}, found {describe_type(shape, dtype)}, {why}.",
        actual_shape=shape,
        expected_shape=expected.shape,
    )


def dtype_mismatch(
    expected: str, actual: str, shape: tuple[int, ...], *, strict: bool = False
) -> PydanticCustomError:
    """A dtype that the field does not take."""
    if strict:
        why = "and dtypes must agree exactly here (no casting)"
    else:
        why = f"which does not become {expected} without loss; convert it yourself if that is meant"
    return _problem(
        "array_dtype_mismatch",
        f"Expected dtype {expected}, found {describe_type(shape, actual)}, {why}.",
        actual_dtype=actual,
        expected_dtype=expected,
    )


def value_lost(expected: str, actual: str, shape: tuple[int, ...], *, count: int, why: str) -> Any:
    """The dtype could be cast, but some values would change."""
    return _problem(
        "array_value_out_of_range",
        f"Expected values that fit dtype {expected}, found {describe_type(shape, actual)} with "
        f"{count} value{'s' * (count != 1)} {why}.",
        expected_dtype=expected,
        actual_dtype=actual,
        count=count,
    )


def integer_too_long(shape: tuple[int, ...]) -> PydanticCustomError:
    """An integer that no dtype holds."""
    return _problem(
        "array_value_out_of_range",
        f"Expected integers of at most 64 bits, found {describe_type(shape, 'int')} with longer ones.",
        expected_dtype="int64",
    )


def invalid_dtype(actual: Any) -> PydanticCustomError:
    """An unknown dtype name."""
    shown = actual if isinstance(actual, str) else type(actual).__name__
    return _problem(
        "array_invalid_dtype",
        f"Unknown dtype {shown!r}: expected one of {', '.join(ALL_DTYPES)}.",
        actual_dtype=shown,
        allowed_dtypes=ALL_DTYPES,
    )


_WORSE = {"ge": "smaller", "gt": "smaller or equal", "le": "larger", "lt": "larger or equal"}
_BOUND_TYPES = {
    "ge": "greater_than_equal", "gt": "greater_than", "le": "less_than_equal", "lt": "less_than",
}  # fmt: skip


def out_of_bounds(
    array: Any, name: str, bounds: Bounds, index: tuple[int, ...]
) -> PydanticCustomError | PydanticKnownError:
    """An element outside the bounds of its field; for a scalar the error that pydantic itself has."""
    bound = bounds.given[name]
    if not index:
        return PydanticKnownError(_BOUND_TYPES[name], {name: bound})  # type: ignore[arg-type]
    found = describe_type(array.shape, array.dtype)
    return _problem(
        _BOUND_TYPES[name],
        f"Expected every element to be {bounds}; found {found} whose element {list(index)} is "
        f"{_WORSE[name]}, or is not a number.",
        index=list(index),
        **{name: bound},
    )


def non_numeric(why: str) -> PydanticCustomError:
    """Not an array of numbers at all."""
    return _problem("array_non_numeric", f"Expected an array of numbers, found {why}.", error=why)


def masked(why: str) -> PydanticCustomError:
    """Entries without a value."""
    return _problem(MASKED, f"Expected an array of numbers, found {why}.", error=why)


def decode_failed(encoding: Any, error: ChainruleError) -> PydanticCustomError:
    """An encoded array whose bytes, file or fields are not what they claim to be."""
    return _problem(
        error.code if error.code in _PEER_TYPES else "array_decode_error",
        f"Cannot decode the array: {error.message}",
        encoding=encoding if isinstance(encoding, str) else None,
        error=error.message,
        code=error.code,
    )


def unit_mismatch(expected: str | None, found: str, *, hint: str = "") -> PydanticCustomError:
    """Units that do not convert into the declared ones."""
    wanted = f"units {expected!r}" if expected else "a number without units"
    return _problem(
        "array_unit_mismatch",
        f"Expected {wanted}, found units {found!r}, which do not convert. {hint}".rstrip(),
        expected_units=expected,
        actual_units=found,
    )


def dimension_conflict(name: str, first: tuple[str, int], second: tuple[str, int]) -> Any:
    """One name, two sizes."""
    return _problem(
        "array_dimension_conflict",
        f"Dimension {name!r} has size {first[1]} in {first[0]} but size {second[1]} in {second[0]}; "
        "one name means one size in one call.",
        dimension=name,
        fields=[first[0], second[0]],
        sizes=[first[1], second[1]],
    )
