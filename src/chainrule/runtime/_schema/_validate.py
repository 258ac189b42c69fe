"""Validation of one array against its declaration.

Most arrays are right already, so the first lines of the function that `build_validator` returns decide
that with a few attribute reads. Everything else (lists, encoded arrays, casts, broadcasts, errors) is
the slow road below. Scalars come out as NumPy scalars of the declared dtype. With `"own": True` in the
validation context, which components set for their inputs, arrays come out as writable copies that nobody else
has; a model that is made without it holds read-only views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import ValidationInfo

from chainrule.runtime._own_arrays import own_copy_of_array
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._cast import cast_checked
from chainrule.runtime._schema._coerce import coerce, decode, is_kept_in_place, is_tracer
from chainrule.runtime._schema._dtypes import generality, numpy_dtype
from chainrule.runtime._schema._spec import ArraySpec
from chainrule.runtime._schema._units import is_quantity, quantity_in, scaled_to

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


def _scalar_validator(spec: ArraySpec, exact: bool) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    scalar_type = None if dtype is None else dtype.type

    def validate(value: Any, info: ValidationInfo) -> Any:
        if type(value) is scalar_type:
            return value
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT, exact)

    return validate


def _array_validator(spec: ArraySpec, exact: bool) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    rank = None if spec.shape is None else len(spec.shape)
    fixed = tuple((axis, size) for axis, size in enumerate(spec.shape or ()) if size is not None)
    ndarray = np.ndarray

    def validate(value: Any, info: ValidationInfo) -> Any:
        if type(value) is ndarray and value.dtype is dtype and value.ndim == rank:
            shape = value.shape
            for axis, size in fixed:
                if shape[axis] != size:
                    break
            else:
                context = info.context
                return value.copy() if context and context.get("own") else _read_only(value)
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT, exact)

    return validate


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.flags.writeable:
        array = array.view()
        # By position, whatever the stubs say: a keyword takes NumPy longer than the view.
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
        return decode(encoded, context)
    plain = {key: part for key, part in encoded.items() if key != "units"}
    return np.asarray(scaled_to(spec.units, decode(plain, context), encoded["units"]))


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
    found = numpy_dtype(str(value.dtype).removeprefix("torch."))
    if dtype is None or found == dtype:
        return value
    level, wanted = generality(found), generality(dtype)
    if not is_tracer(value) or level is None or wanted is None or level > wanted:
        raise _problems.dtype_mismatch(dtype.name, found.name, shape, strict=not is_tracer(value))
    return value.astype(dtype)
