"""Casts against an oracle of Python's exact integers and plain NumPy conversions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import TypeAdapter, ValidationError

from chainrule.runtime import Array

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
FIELDS = {name: TypeAdapter(Array[..., name]) for name in INTEGERS + FLOATS}
shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)


def arrays(names):
    return st.sampled_from(names).flatmap(lambda name: hnp.arrays(name, shapes))


def keeps_every_value(array, target):
    if np.dtype(target).kind in "iu":
        limits = np.iinfo(target)
        return all(limits.min <= int(value) <= limits.max for value in array.ravel())
    with np.errstate(over="ignore"):
        values = [(value, np.dtype(target).type(value)) for value in array.ravel()]
    if array.dtype.kind in "iu":
        return all(np.isfinite(after) and int(after) == int(before) for before, after in values)
    return all(np.isfinite(after) or not np.isfinite(before) for before, after in values)


@given(arrays(INTEGERS), st.sampled_from(INTEGERS + FLOATS))
def test_stored_integers_are_exact_or_refused(array, target):
    _check(array, target)


@given(arrays(FLOATS), st.sampled_from(FLOATS))
def test_floats_stay_finite_or_are_refused(array, target):
    _check(array, target)


def _check(array, target):
    if keeps_every_value(array, target):
        with np.errstate(over="ignore"):
            found = FIELDS[target].validate_python(array)
            np.testing.assert_array_equal(found, array.astype(target))
        assert found.dtype == target
    else:
        with pytest.raises(ValidationError) as caught:
            FIELDS[target].validate_python(array)
        (problem,) = caught.value.errors()
        assert problem["type"] == "array_value_out_of_range"
        assert 0 < problem["ctx"]["count"] <= array.size


@given(hnp.arrays("int64", shapes))
def test_written_out_integers_are_rounded(array):
    result = FIELDS["float32"].validate_python(array.tolist())
    # Lists lose the axes behind one that is empty.
    np.testing.assert_array_equal(result.ravel(), array.astype("float32").ravel())
