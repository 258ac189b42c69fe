"""What a caller sends for an array is either an array or a validation error with a known type."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from chainrule.runtime import Array, Bool, Complex64, Float32, Int32

ADAPTERS = [
    TypeAdapter(Array[(None, 2), Int32]),
    TypeAdapter(Array[..., None]),
    TypeAdapter(Array[("n",), Float32]),
    TypeAdapter(Array[(0,), Bool]),
    TypeAdapter(Complex64),
]

numbers = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just(2**70)
)
json_values = st.recursive(
    numbers,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["shape", "dtype", "data", "buffer", "encoding", "object_type", "é"]),
            children,
            max_size=4,
        )
    ),
    max_leaves=8,
)
almost_arrays = st.fixed_dictionaries(
    {
        "shape": st.lists(st.integers(-1, 4) | st.just(10**30) | st.booleans(), max_size=3) | json_values,
        "dtype": st.sampled_from(["float32", "int32", "bool", "complex64", "Float32", ""]) | json_values,
        "data": st.fixed_dictionaries(
            {
                "buffer": json_values | st.text(alphabet="AQab/+=:.\0é", max_size=24),
                "encoding": st.sampled_from(["json", "base64", "binref", "cuda_ipc", "raw"]),
            },
            optional={"compression": st.sampled_from(["lz4", "zip", None])},
        )
        | json_values,
    },
    optional={"object_type": st.just("array") | json_values, "extra": json_values},
)  # fmt: skip


@given(st.sampled_from(ADAPTERS), json_values | almost_arrays)
def test_an_array_or_a_reason(adapter, value):
    try:
        result = adapter.validate_python(value)
    except ValidationError as error:
        problems = error.errors()
    else:
        assert isinstance(result, np.ndarray | np.generic)
        problems = []
    for problem in problems:
        assert problem["type"].startswith("array_")
        assert problem["msg"]
