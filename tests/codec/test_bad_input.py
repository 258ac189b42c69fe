"""Malformed, oversized and hostile data: one clear error each, nothing allocated, nothing echoed."""

from __future__ import annotations

import unicodedata

import lz4.frame
import numpy as np
import pybase64
import pytest
import zstandard
from pydantic import TypeAdapter, ValidationError

from chainrule._codec import Limits, decode_array, decode_body, encode_body
from chainrule.errors import ChainruleError, DecodeError, DefinitionError, LimitError
from chainrule.runtime import Array

F64 = pybase64.b64encode_as_string(np.zeros(2))


def encoded(shape=(2,), dtype="float64", encoding="base64", buffer=F64, **data):
    return {
        "shape": list(shape),
        "dtype": dtype,
        "data": {"buffer": buffer, "encoding": encoding, **data},
    }


def refused(obj, **options) -> ChainruleError:
    with pytest.raises(ChainruleError) as caught:
        decode_array(obj, **options)
    assert len(str(caught.value)) < 500
    return caught.value


BOMB = pybase64.b64encode_as_string(lz4.frame.compress(bytes(50_000_000)))
ZSTD_BOMB = pybase64.b64encode_as_string(zstandard.compress(bytes(50_000_000)))


@pytest.mark.parametrize(
    ("obj", "code"),
    [
        (encoded(shape=(3,)), "array_decode_error"),
        (encoded(shape=(1,)), "array_decode_error"),
        (encoded(shape=(2.0,)), "array_decode_error"),
        (encoded(shape=("2",)), "array_decode_error"),
        (encoded(shape=(True, 2)), "array_decode_error"),
        (encoded(shape=(-2,)), "array_decode_error"),
        (encoded(shape=(1,) * 65), "array_decode_error"),
        (encoded() | {"shape": 2}, "array_decode_error"),
        (encoded() | {"shape": None}, "array_decode_error"),
        (encoded(dtype="Float64"), "array_invalid_dtype"),
        (encoded(dtype="object"), "array_invalid_dtype"),
        (encoded(dtype=["float64"]), "array_invalid_dtype"),
        (encoded(encoding="raw"), "array_decode_error"),
        (encoded(encoding=None), "array_decode_error"),
        (encoded(encoding="cuda_ipc"), "array_decode_error"),
        (encoded(extra=1), "array_decode_error"),
        (encoded() | {"more": 1}, "array_decode_error"),
        (encoded() | {"object_type": "list"}, "array_decode_error"),
        (encoded() | {"data": "text"}, "array_decode_error"),
        ({"object_type": "array", "shape": [2]}, "array_decode_error"),
        (encoded(buffer="!" * 24), "array_decode_error"),
        (encoded(buffer="é" * 24), "array_decode_error"),
        (encoded(buffer="\ud800" * 24), "array_decode_error"),
        (encoded(buffer=F64[:-1] + "A"), "array_decode_error"),
        (encoded(buffer=b"AAAA"), "array_decode_error"),
        (encoded(compression="gzip"), "array_decode_error"),
        (encoded(compression="lz4"), "array_decode_error"),
        (encoded(compression="zstd"), "array_decode_error"),
        (encoded(buffer=BOMB, compression="lz4"), "array_decode_error"),
        (encoded(buffer=ZSTD_BOMB, compression="zstd"), "array_decode_error"),
        (encoded(shape=(2**40,)), "array_too_large"),
        (encoded(shape=(2**62, 2**62, 2**62)), "array_too_large"),
        (encoded(shape=(2**40,), buffer=BOMB, compression="lz4"), "array_too_large"),
        (encoded(shape=(0, 2**62), buffer=""), "array_shape_too_large"),
        (encoded(shape=(2**31, 2**40, 0), buffer=""), "array_shape_too_large"),
        (encoded(shape=(0, 10**4000), buffer=""), "array_shape_too_large"),
        (encoded(encoding="json", buffer=[1, 2], compression="lz4"), "array_decode_error"),
        (encoded(encoding="binref", buffer=3), "array_decode_error"),
        (encoded(encoding="binref", buffer=""), "array_decode_error"),
    ],
)
def test_malformed_arrays(obj, code):
    assert refused(obj).code == code


@pytest.mark.parametrize(
    ("dtype", "buffer", "code"),
    [
        ("float32", [1e39, 0], "array_value_out_of_range"),
        ("float16", [1, 70000], "array_value_out_of_range"),
        ("int64", [1, 2**70], "array_value_out_of_range"),
        ("int64", [1, 2**63], "array_value_out_of_range"),
        ("uint64", [1, 2**64], "array_value_out_of_range"),
        ("int8", [1, 128], "array_value_out_of_range"),
        ("uint8", [-1, 2], "array_value_out_of_range"),
        ("uint64", [-1.0, 2**63], "array_value_out_of_range"),
        ("int64", [1.5, 2], "array_expected_integer"),
        ("int64", [float("nan"), 2], "array_expected_integer"),
        ("int64", [float("inf"), 2], "array_expected_integer"),
    ],
)
def test_json_numbers_that_do_not_fit_have_the_peers_error_types(dtype, buffer, code):
    obj = encoded(dtype=dtype, encoding="json", buffer=buffer)
    assert refused(obj).code == code
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Array[(2,), dtype]).validate_python(obj)
    (problem,) = caught.value.errors()
    assert problem["type"] == code


@pytest.mark.parametrize(
    ("dtype", "buffer"),
    [
        ("float64", [1, [2]]),
        ("float64", [1, 2, 3]),
        ("float64", [[1, 2]]),
        ("float64", ["1", "2"]),
        ("float64", [1, "2"]),
        ("float64", {"a": 1}),
        ("float64", [{}, {}]),
        ("float64", "12"),
        ("int64", [None, 2]),
        ("bool", [0, 1]),
        ("bool", [True, None]),
        ("complex128", ["1+2i", "x"]),
    ],
)
def test_json_values_that_do_not_fit(dtype, buffer):
    error = refused(encoded(dtype=dtype, encoding="json", buffer=buffer))
    assert error.code == "array_decode_error"
    assert "json buffer" in str(error)


def test_values_that_do_fit():
    def read(dtype, buffer, shape=(2,)):
        return decode_array(encoded(shape, dtype, "json", buffer)).tolist()

    assert read("int64", [1.0, -3]) == [1, -3]
    assert read("uint64", [2**64 - 1, 1]) == [2**64 - 1, 1]
    assert read("uint64", [2**63 + 1, 1.0]) == [2**63 + 1, 1]
    assert read("float64", [True, 2]) == [1.0, 2.0]
    np.testing.assert_array_equal(read("float64", [None, 2]), [np.nan, 2.0])
    assert read("float32", [[1, 2], [3, 4]], (2, 2)) == [[1, 2], [3, 4]]
    assert read("float32", [1, 2, 3, 4], (2, 2)) == [[1, 2], [3, 4]]
    assert read("complex64", ["1+2j", 3], (2,)) == [1 + 2j, 3]
    assert read("int8", 5, ()) == 5


@pytest.mark.parametrize(
    ("body", "error", "code"),
    [
        (b"", DecodeError, "json_invalid"),
        (b'{"a": ', DecodeError, "json_invalid"),
        (b"{'a': 1}", DecodeError, "json_invalid"),
        (b'{"a": 1} x', DecodeError, "json_invalid"),
        (b'{"a": "\xff"}', DecodeError, "json_invalid"),
        (b'{"a": "\\ud800"}', DecodeError, "json_invalid"),
        (b'{"a": {"b": 1, "b": 2}}', DecodeError, "duplicate_key"),
        (b"[" * 1000 + b"]" * 1000, LimitError, "too_deep"),
        (b"[" * 1000, LimitError, "too_deep"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, LimitError, "too_deep"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, LimitError, "too_deep"),
        (b"[" * 5_000_000, LimitError, "too_deep"),
        (b"[" * 40_000_000, LimitError, "too_many_values"),
    ],
)
def test_malformed_json(body, error, code):
    with pytest.raises(error) as caught:
        decode_body(body)
    assert caught.value.code == code


def test_limits_count_fields_but_not_numbers():
    limits = Limits(max_fields=1000)
    many = b"".join(encode_body({str(i): 0 for i in range(10_000)}))
    with pytest.raises(LimitError) as caught:
        decode_body(many, limits=limits)
    assert caught.value.code == "too_many_fields"
    numbers = b"".join(encode_body({"x": list(range(10_000)), "y": [[1.0, 2.0]] * 5000}))
    assert len(decode_body(numbers, limits=limits)["x"]) == 10_000


def test_limits_on_one_array_on_all_and_on_the_body():
    tree = {f"x{i}": np.zeros(1000) for i in range(4)}
    body = b"".join(encode_body(tree, format="json+base64", compression="lz4"))
    for limits, code in [
        (Limits(max_array_bytes=7999), "array_too_large"),
        (Limits(max_total_bytes=31_999), "array_too_large"),
        (Limits(max_body_bytes=len(body) - 1), "body_too_large"),
    ]:
        with pytest.raises(LimitError) as caught:
            decode_body(body, limits=limits)
        assert caught.value.code == code
    decode_body(body, limits=Limits(len(body), 8000, 32_000))


def test_error_names_the_path_into_the_data():
    bad = encoded(shape=(3,))
    tree = {"inputs": {"meshes": [{"layer.0": {"x": bad}}]}}
    with pytest.raises(DecodeError) as caught:
        decode_body(b"".join(encode_body(tree)))
    assert caught.value.path == "inputs.meshes.[0].{layer.0}.x"


def test_names_are_kept_as_they_are():
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    tree = {composed: 1, decomposed: 2, "": 3, "日本": 4, "\0": 5}
    assert decode_body(b"".join(encode_body(tree))) == tree


def test_tokens_that_python_clients_send():
    assert decode_body(b'{"a": [Infinity, -Infinity], "b": 12345678901234567890123}') == {
        "a": [float("inf"), -float("inf")],
        "b": 12345678901234567890123,
    }


def test_objects_that_only_resemble_arrays_stay_objects():
    tree = {
        "a": {"shape": [2], "dtype": "float64"},
        "b": {"data": {"x": 1}},
        "c": {"object_type": "mesh"},
    }
    assert decode_body(b"".join(encode_body(tree))) == tree


@pytest.mark.parametrize(
    "media_type", ["text/html", "", "application/xml", "multipart/form-data; x=y"]
)
def test_unknown_media_types(media_type):
    with pytest.raises(DecodeError) as caught:
        decode_body(b"{}", media_type=media_type)
    assert caught.value.code == "unsupported_media_type"


def test_media_type_parameters_are_ignored():
    assert decode_body(b"{}", media_type="Application/JSON; charset=utf-8") == {}


def test_values_no_format_can_carry():
    for format in ("json", "json+base64", "vnd.chainrule.frames"):
        for value in (object(), np.array(["text"]), np.array([None])):
            with pytest.raises(ChainruleError):
                encode_body({"x": value}, format=format)


def nested(depth, wrap):
    value = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("format", ["json", "vnd.chainrule.frames"])
@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a b": [1, object()]}, "x.{a b}.[1]", "type object"),
        ([np.array(["text"])], "x.[0]", "dtype str"),
        ([np.ma.masked_equal([1.0, 2.0], 2.0)], "x.[0]", "filled"),
        ({"a": "half of a pair: \ud83d"}, "x.a", "surrogate"),
        ({"\ud83d": 1}, r"x.{\ud83d}", "surrogate"),
        ({(1, 2): 3}, None, "key of type tuple"),
        ({1: 2, "1": 3}, None, "two keys that read '1'"),
        (nested(300, lambda value: [value]), None, "deeper than 254"),
        (nested(5000, lambda value: {"a": value}), None, "deeper than 254"),
    ],
)
def test_what_cannot_be_encoded_is_named_and_found(format, value, path, reason):
    with pytest.raises(DefinitionError, match=reason) as caught:
        encode_body({"x": value}, format=format)
    assert caught.value.code in ("not_encodable", "array_invalid_dtype", "array_masked")
    assert caught.value.path == path


def test_keys_that_are_not_text_become_text():
    tree = {1: [1.0], 2.5: None, None: 0}
    for format in ("json", "vnd.chainrule.frames"):
        body = b"".join(encode_body({"x": tree}, format=format))
        found = decode_body(body, media_type=f"application/{format}")["x"]
        assert list(found.values()) == list(tree.values())
        assert all(isinstance(key, str) for key in found)
