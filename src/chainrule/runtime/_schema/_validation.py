"""Validation of one array against its declaration: decode or convert, check the shape, cast.

Most arrays are right already, so the first lines of the function that `build_validator` returns decide that
with a few attribute reads. Lists, encoded arrays, quantities, casts, broadcasts and errors are handled by
`_validate_slowly`. Scalars come out as NumPy scalars of the declared dtype. With `"own": True` in the
validation context, which components set for their inputs, arrays come out as writable copies that belong to
the author; a model that is made without it holds read-only views. With `"given": True` as well, the caller
has given its arrays away, and they become the author's without a copy.

A cast goes towards equal or greater generality (bool → integer → float → complex) and is then checked value
by value: integers must fit, finite numbers must stay finite, and an integer *array* must be exact in the
float dtype it becomes. Rounding a float to a narrower float is what the narrower field asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationInfo

from chainrule._codec import (
    DEFAULT_LIMITS,
    WHY_MASKED,
    BinrefArray,
    Grants,
    decode_array,
    has_masked,
)
from chainrule._describe import describe_value
from chainrule._device import is_on_device, own_copy_of_array
from chainrule._errors import ChainruleError
from chainrule._trees import dtype_name, is_tracer, iterate_leaves
from chainrule.runtime._runs import get_config
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._spec import (
    ALL_DTYPES,
    ArraySpec,
    Bounds,
    canonical_dtype,
    generality,
    mantissa_bits,
    numpy_dtype,
    pint_registry,
)

_NO_CONTEXT: Mapping[str, Any] = {}
_ENCODED_KEYS = {"shape", "dtype", "data"}
Validator = Callable[[Any, ValidationInfo], Any]


def build_validator(spec: ArraySpec, *, exact: bool = False) -> Validator:
    """The validator of one declaration, as pydantic calls it.

    Args:
        spec: the declaration.
        exact: refuse casts and broadcasts of stored arrays, so that in a union the member that fits
            as it is wins over one that could be made to fit.
    """
    build = _scalar_validator if spec.shape == () else _array_validator
    return build(spec, exact)


def with_bounds(validate: Validator, bounds: Bounds | None) -> Validator:
    """A validator of values that keep the bounds of their declaration; those of derivatives need not.

    What is traced is not known yet; arrays on a GPU and in files are not looked at. `"unbounded": True` in
    the context is for values that only stand for their shape.
    """
    if bounds is None:
        return validate

    def validate_bounded(value: Any, info: ValidationInfo) -> Any:
        checked = validate(value, info)
        if not (is_kept_in_place(checked) or (info.context or _NO_CONTEXT).get("unbounded")):
            violation = bounds.first_violation(checked)
            if violation is not None:
                raise _problems.out_of_bounds(checked, violation[0], bounds, violation[1])
        return checked

    return validate_bounded


def _scalar_validator(spec: ArraySpec, exact: bool) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    is_declared = _same_dtype(dtype)
    scalar_type = None if dtype is None else dtype.type

    def validate(value: Any, info: ValidationInfo) -> Any:
        kind = type(value)
        if kind is scalar_type:
            return value
        if kind is float and scalar_type is np.float64:
            return np.float64(value)
        if kind is np.ndarray and not value.shape and is_declared(value.dtype):
            return value[()]
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT, exact)

    return validate


def _array_validator(spec: ArraySpec, exact: bool) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    is_declared = _same_dtype(dtype)
    rank = None if spec.shape is None else len(spec.shape)
    fixed = tuple((axis, size) for axis, size in enumerate(spec.shape or ()) if size is not None)
    ndarray = np.ndarray

    def validate(value: Any, info: ValidationInfo) -> Any:
        if type(value) is ndarray and value.ndim == rank and is_declared(value.dtype):
            shape = value.shape
            for axis, size in fixed:
                if shape[axis] != size:
                    break
            else:
                context = info.context
                if not context or not context.get("own"):
                    return _read_only(value)
                return value if context.get("given") and value.flags.writeable else value.copy()
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT, exact)

    return validate


def _same_dtype(dtype: np.dtype[Any] | None) -> Callable[[np.dtype[Any]], bool]:
    """Whether an array needs no cast to a dtype.

    Dtypes of unpickled arrays and of views of ctypes are objects of their own. `long` and `long long` are
    equal dtypes with different scalar types, so the number of the type is compared.
    """
    if dtype is None:
        return lambda found: False
    number = dtype.num
    return lambda found: found is dtype or (found.num == number and found.isnative)


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.flags.writeable:
        array = array.view()
        # By position, although the stubs want a keyword: it would take longer than making the view.
        array.setflags(False)  # type: ignore[call-arg]
    return array


def _validate_slowly(
    spec: ArraySpec,
    dtype: np.dtype[Any] | None,
    value: Any,
    context: Mapping[str, Any],
    exact: bool,
) -> Any:
    strict_shapes = exact or bool(context.get("strict_shapes"))
    is_own = bool(context.get("own"))
    literal = is_new = False
    if isinstance(value, Mapping) and value.keys() >= _ENCODED_KEYS:
        array = _load_encoded(spec, value, context, strict_shapes)
    elif is_kept_in_place(value):
        checked = _validate_in_place(spec, dtype, value)
        return own_copy_of_array(checked) if is_own else checked
    else:
        array, literal = coerce(quantity_in(spec.units, value) if is_quantity(value) else value)
        is_new = literal
    shape = check_shape(spec, array.shape, array.dtype, strict=strict_shapes)
    if shape != array.shape:
        array = np.broadcast_to(array, shape)
    if dtype is not None and array.dtype != dtype:
        if context.get("strict_types") or (exact and not literal):
            raise _problems.dtype_mismatch(dtype.name, array.dtype.name, array.shape, strict=True)
        array, is_new = cast_checked(array, dtype, literal=literal), True
    if not array.ndim:
        return array[()]
    if not is_own:
        return _read_only(array)
    return array if is_new and array.flags.writeable else array.copy()


def _load_encoded(
    spec: ArraySpec, encoded: Mapping[str, Any], context: Mapping[str, Any], strict_shapes: bool
) -> np.ndarray[Any, Any]:
    """Decode an array whose announced shape fits; a wrong one is refused before any byte is read."""
    shape = encoded["shape"]
    if isinstance(shape, list | tuple) and all(type(size) is int for size in shape):
        check_shape(spec, tuple(shape), encoded["dtype"], strict=strict_shapes)
    if "units" not in encoded:
        return _decode(encoded, context)
    plain = {key: part for key, part in encoded.items() if key != "units"}
    return np.asarray(scaled_to(spec.units, _decode(plain, context), encoded["units"]))


def check_shape(
    spec: ArraySpec, shape: tuple[int, ...], dtype: Any, *, strict: bool
) -> tuple[int, ...]:
    """The shape that a value of the given shape takes, where a size of 1 broadcasts to a fixed one.

    Args:
        spec: the declaration.
        shape: the value's shape.
        dtype: the value's dtype, for the message.
        strict: refuse broadcasting.

    Raises:
        PydanticCustomError: the rank or a size does not fit.
    """
    if spec.shape is None:
        return shape
    if len(shape) != len(spec.shape):
        raise _problems.rank_mismatch(spec, shape, dtype)
    target = []
    for size, expected in zip(shape, spec.shape, strict=True):
        # A size of 1 is not stretched to 0: its value would be dropped.
        if expected is not None and size != expected and (strict or size != 1 or expected == 0):
            raise _problems.shape_mismatch(spec, shape, dtype, strict=strict)
        target.append(size if expected is None else expected)
    return tuple(target)


def _validate_in_place(spec: ArraySpec, dtype: np.dtype[Any] | None, value: Any) -> Any:
    """An array on a device, in a file, or one that is being traced: checked by shape and dtype only.

    A traced array can be cast, because its values are not known yet; the others must be right.
    """
    shape = check_shape(spec, tuple(value.shape), value.dtype, strict=True)
    found = numpy_dtype(dtype_name(value))
    if dtype is None or found == dtype:
        return value
    level, wanted = generality(found), generality(dtype)
    if not is_tracer(value) or level is None or wanted is None or level > wanted:
        raise _problems.dtype_mismatch(dtype.name, found.name, shape, strict=not is_tracer(value))
    return value.astype(dtype)


_MAX_RANK = 64
_LITERALS = (bool, int, float, complex, list, tuple)
_TEXTS = {"U": "text", "S": "bytes"}


class Coerced(NamedTuple):
    """An array, and whether its numbers were written out rather than stored in a dtype."""

    array: np.ndarray[Any, Any]
    literal: bool


def coerce(value: Any) -> Coerced:
    """A NumPy array of numbers from nested lists, numbers and objects that NumPy can read.

    Raises:
        PydanticCustomError: `array_non_numeric`, `array_masked` or `array_value_out_of_range`.
    """
    literal = isinstance(value, _LITERALS)
    if has_masked(value):
        raise _problems.masked(WHY_MASKED)
    try:
        array = np.asarray(value)
    except Exception as error:
        raise _problems.non_numeric(_why_unreadable(value, error)) from None
    if generality(array.dtype) is None:
        raise _why_not_numbers(value, array)
    return Coerced(np.asarray(array, canonical_dtype(array.dtype)), literal)


def is_kept_in_place(value: Any) -> bool:
    """Whether an array is not converted to NumPy: it is on a GPU, in a file, or being traced."""
    return is_on_device(value) or isinstance(value, BinrefArray) or is_tracer(value)


def _why_unreadable(value: Any, error: Exception) -> str:
    if isinstance(value, list | tuple):
        if _depth(value) > _MAX_RANK:
            return "lists nested deeper than an array can be"
        if all(isinstance(leaf, _LITERALS) for _, leaf in islice(iterate_leaves(value), 1000)):
            return "nested lists of unequal lengths"
    return f"{describe_value(value)} that NumPy cannot read ({type(error).__name__}: {error})"


def _depth(value: Any) -> int:
    """How deep lists are nested along their first items, counted to just above what an array can have."""
    depth = 0
    while isinstance(value, list | tuple) and value and depth <= _MAX_RANK:
        value, depth = value[0], depth + 1
    return depth


def _why_not_numbers(value: Any, array: np.ndarray[Any, Any]) -> Exception:
    if isinstance(value, Mapping):
        return _problems.non_numeric(_why_not_encoded(value))
    if array.dtype.kind == "O":
        kinds = {type(item) for item in array.ravel()[:1000]}
        if kinds <= {int, bool}:
            return _problems.integer_too_long(array.shape)
        names = sorted("null" if kind is type(None) else kind.__name__ for kind in kinds)
        return _problems.non_numeric(f"elements of type {', '.join(names)}")
    if array.dtype.kind in _TEXTS:
        return _problems.non_numeric(_TEXTS[array.dtype.kind])
    return _problems.non_numeric(f"data of NumPy type {array.dtype.name}")


def _why_not_encoded(value: Mapping[Any, Any]) -> str:
    missing = [key for key in ("shape", "dtype", "data") if key not in value]
    if missing:
        return f"an object without the key{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return "an object that is not an encoded array"


def _check_dtype_name(encoded: Mapping[str, Any]) -> None:
    """Refuse an encoded array of an unknown dtype before its bytes are read."""
    dtype = encoded.get("dtype")
    if not (isinstance(dtype, str) and dtype in ALL_DTYPES):
        raise _problems.invalid_dtype(dtype)


def _grants(context: Mapping[str, Any]) -> Grants:
    """The files that data may refer to: those of the call, or what a program that has no call says itself."""
    if "grants" in context:
        return context["grants"] or Grants()
    if context.get("base_dir") is not None:
        return Grants(Path(context["base_dir"]))
    return get_config().grants


def _decode(encoded: Mapping[str, Any], context: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array of an encoded object, read with the grants and limits of the call."""
    _check_dtype_name(encoded)
    limits = context.get("limits") or DEFAULT_LIMITS
    try:
        return decode_array(encoded, grants=_grants(context), limits=limits)
    except ChainruleError as error:
        data = encoded.get("data")
        encoding = data.get("encoding") if isinstance(data, Mapping) else None
        raise _problems.decode_failed(encoding, error) from None


# Units


def is_quantity(value: Any) -> bool:
    """Whether a value is a number with units (a pint quantity, without importing pint)."""
    return hasattr(value, "magnitude") and hasattr(value, "units") and hasattr(value, "to")


def quantity_in(units: str | None, quantity: Any) -> Any:
    """The magnitude of a quantity in the declared units.

    Raises:
        PydanticCustomError: `array_unit_mismatch`, when the units do not convert.
    """
    try:
        return quantity.to(units or "dimensionless").magnitude
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "pint":
            raise
        raise _problems.unit_mismatch(units, str(quantity.units)) from None


def scaled_to(units: str | None, value: Any, given: Any) -> Any:
    """A number whose units came as text (in an encoded array), in the declared units.

    Raises:
        PydanticCustomError: `array_unit_mismatch`, when the units do not convert.
    """
    if given is None or given == units:
        return value
    if not isinstance(given, str):
        raise _problems.unit_mismatch(units, type(given).__name__, hint="Write units as text.")
    registry = pint_registry()
    if registry is None:
        raise _problems.unit_mismatch(units, given, hint="Install pint to convert units.")
    try:
        quantity = registry.Quantity(value, given)
    except Exception:  # as in check_units
        raise _problems.unit_mismatch(units, given) from None
    return quantity_in(units, quantity)


# Casts

_ONE = np.uint64(1)


def cast_checked(
    array: np.ndarray[Any, Any], target: np.dtype[Any], *, literal: bool = False
) -> np.ndarray[Any, Any]:
    """The array in another dtype with every value kept.

    Args:
        array: any numeric array.
        target: the dtype to reach.
        literal: the numbers were written out (Python numbers, JSON lists), where `3` and `3.0` mean
            the same, so an integer is rounded like any other number when it becomes a float.

    Raises:
        PydanticCustomError: the dtype cannot be cast, or a value would change.
    """
    if literal and array.size == 0:
        return array.astype(target)  # NumPy calls an empty list float64
    source_level, target_level = generality(array.dtype), generality(target)
    if source_level is None or target_level is None or source_level > target_level:
        raise _problems.dtype_mismatch(target.name, array.dtype.name, array.shape)
    if source_level == target_level == 1:
        _check_integers_fit(array, target)
        return array.astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target)
    if target_level >= 2 and source_level >= 1:
        _check_stays_finite(array, result)
    if source_level == 1 and target_level >= 2 and not literal:
        _check_exact(array, target)
    return result


def _check_integers_fit(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> None:
    if array.size == 0 or np.can_cast(array.dtype, target, "safe"):
        return
    limits = np.iinfo(target)
    # Compared as Python integers: NumPy would round 64-bit limits of mixed signedness.
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        outside = _count_outside(array, limits)
        raise _problems.value_lost(
            target.name, array.dtype.name, array.shape, count=outside, why="outside its range"
        )


def _count_outside(array: np.ndarray[Any, Any], limits: np.iinfo[Any]) -> int:
    own = np.iinfo(array.dtype)
    # A limit beyond the dtype of the array cannot be broken, and NumPy refuses to compare with it.
    too_small = (array < limits.min).sum() if limits.min > own.min else 0
    too_large = (array > limits.max).sum() if limits.max < own.max else 0
    return int(too_small + too_large)


def _check_stays_finite(array: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> None:
    after = np.isfinite(result)
    if after.all():
        return
    lost = int((np.isfinite(array) & ~after).sum())
    if lost:
        raise _problems.value_lost(
            result.dtype.name, array.dtype.name, array.shape, count=lost, why="too large for it"
        )


def _check_exact(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> None:
    bits = mantissa_bits(target)
    if array.size == 0 or np.iinfo(array.dtype).bits <= bits:
        return
    # An integer is exact when what is left after removing its trailing zero bits fits the mantissa.
    with np.errstate(over="ignore"):
        magnitude = np.atleast_1d(array).astype(np.uint64)  # negative numbers wrap around
        magnitude = np.where(np.atleast_1d(array) < 0, ~magnitude + _ONE, magnitude)
        lowest_bit = magnitude & (~magnitude + _ONE)
    odd_part = magnitude // np.maximum(lowest_bit, _ONE)
    inexact = int((odd_part >> np.uint64(bits) != 0).sum())
    if inexact:
        raise _problems.value_lost(
            target.name, array.dtype.name, array.shape, count=inexact,
            why="that it cannot hold exactly",
        )  # fmt: skip
