"""decode ∘ encode is the identity, bit for bit, in every format."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from chainrule._codec import (
    DTYPE_NAMES,
    FORMATS,
    BinrefWriter,
    Grants,
    decode_array,
    decode_body,
    encode_array,
    encode_body,
    media_type_of,
)

DTYPES = [np.dtype(ml_dtypes.bfloat16) if n == "bfloat16" else np.dtype(n) for n in DTYPE_NAMES]


@st.composite
def arrays(draw):
    """Any dtype and bit pattern, any shape from 0-d to rank 3, zero sizes included."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    nbytes = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    plain | arrays(),
    lambda child: (
        st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=4), child, max_size=3)
    ),
    max_leaves=8,
)


def assert_same(found, expected):
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
        assert not found.flags.writeable
        assert found.flags.aligned
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert_same(left, right)
    elif isinstance(expected, float):
        assert isinstance(found, float)
        assert np.float64(found).tobytes() == np.float64(expected).tobytes() or (
            math.isnan(found) and math.isnan(expected)
        )
    else:
        assert type(found) is type(expected)
        assert found == expected


@settings(max_examples=200)
@given(arrays(), st.sampled_from(["json", "base64"]), st.sampled_from([None, "lz4", "zstd"]))
def test_single_array(array, encoding, compression):
    encoded = encode_array(array, encoding=encoding, compression=compression)
    assert encoded["object_type"] == "array"
    assert_same(decode_array(encoded), array)


@settings(max_examples=100)
@given(
    st.dictionaries(st.text(max_size=4), trees, max_size=4),
    st.sampled_from([f for f in FORMATS if f != "json+binref"]),
    st.sampled_from([None, "lz4"]),
)
def test_body(tree, format, compression):
    body = b"".join(encode_body(tree, format=format, compression=compression))
    assert_same(decode_body(body, media_type=media_type_of(format)), tree)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)
def test_binref(tmp_path, dtype, compression):
    tree = {
        "a": np.arange(6).reshape(2, 3).astype(dtype),
        "b": np.ones((), dtype),
        "c": np.ones(0, dtype),
    }
    with BinrefWriter(tmp_path, run="run_1") as writer:
        body = encode_body(tree, format="json+binref", compression=compression, writer=writer)
    decoded = decode_body(
        b"".join(body), media_type="application/json+binref", grants=Grants(input_dir=tmp_path)
    )
    assert_same(decoded, tree)


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "json+binref"])
def test_large_arrays_between_small_ones(format):
    tree = {
        f"x{i}": np.arange(size, dtype=np.float32)
        for i, size in enumerate([1, 5000, 3, 100_000, 20_000, 0, 7])
    }
    tree["text"] = "after\0 all"
    body = b"".join(encode_body(tree, format=format))
    assert_same(decode_body(body, media_type=media_type_of(format)), tree)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", ["json", "json+base64", FORMATS[-1]])
def test_non_finite_numbers_survive(format, value):
    body = b"".join(encode_body({"x": np.array([1.0, value]), "y": value}, format=format))
    decoded = decode_body(body, media_type=media_type_of(format))
    np.testing.assert_array_equal(decoded["x"], [1.0, value])
    np.testing.assert_equal(decoded["y"], value)
    assert b"null" not in body


def test_arrays_of_other_byte_order_and_layout():
    array = np.arange(12, dtype=">f8").reshape(3, 4)[::2, ::-1]
    for format in ("json", "json+base64", FORMATS[-1]):
        body = b"".join(encode_body({"x": array}, format=format))
        found = decode_body(body, media_type=media_type_of(format))["x"]
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, array)


def test_jax_arrays_and_numpy_scalars_are_arrays():
    import jax.numpy as jnp

    tree = {"a": jnp.arange(3), "b": np.float32(2.5), "c": 1 + 2j, "d": np.bool_(True)}
    decoded = decode_body(b"".join(encode_body(tree)))
    np.testing.assert_array_equal(decoded["a"], [0, 1, 2])
    assert decoded["b"].dtype == np.float32
    assert decoded["b"].shape == ()
    assert decoded["c"] == 1 + 2j
    assert decoded["d"].dtype == bool
