"""The frames format: layout, reading in place, and a decoder that survives any bytes."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from chainrule._codec import (
    FRAMES_MEDIA_TYPE,
    Limits,
    SparseArray,
    decode_body,
    decode_frames,
    encode_body,
    encode_frames,
)
from chainrule.errors import ChainruleError, DecodeError, LimitError

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "wire-format.md"


def by_hand(
    header: object, data: bytes = b"", *, version: int = 1, total: int | None = None
) -> bytes:
    """A message put together from the format's description alone."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = (24 + len(text) + 63) // 64 * 64
    length = start + len(data) if total is None else total
    prefix = b"\x89CRF\r\n\x1a\n" + struct.pack("<HHIQ", version, 0, len(text), length)
    return (prefix + text).ljust(start, b"\0") + data


def test_vector_of_the_documentation():
    text = PAGE.read_text()
    dump = re.search(r"```text title=\"test vector\"\n(.*?)```", text, re.DOTALL)[1]
    vector = bytes.fromhex("".join(line[6:53] for line in dump.splitlines()))
    tree = decode_frames(vector)
    assert list(tree) == ["n", "x"]
    assert tree["n"] == 2
    assert tree["x"].dtype == np.float32
    assert tree["x"].tolist() == [[1.0, -2.0]]
    assert bytes(encode_frames({"n": 2, "x": np.float32([[1, -2]])})) == vector


def test_reads_a_message_made_by_hand():
    header = {
        "a": {"$array": ["int16", [2], 64, 4]},
        "b": {"$map": {"$float": 1}},
        "c": {"$int": "7"},
    }
    tree = decode_frames(by_hand(header, bytes(64) + struct.pack("<hh", 5, -6)))
    assert tree["a"].tolist() == [5, -6]
    assert tree["b"] == {"$float": 1}
    assert tree["c"] == 7


def test_layout():
    tree = {f"x{i}": np.full(size, i, np.uint8) for i, size in enumerate([1, 64, 65, 20_000, 3])}
    message = bytes(encode_frames(tree))
    header_nbytes, total = struct.unpack_from("<IQ", message, 12)
    header = json.loads(message[24 : 24 + header_nbytes])
    start = (24 + header_nbytes + 63) // 64 * 64
    assert total == len(message)
    for i, (name, size) in enumerate(
        [("x0", 1), ("x1", 64), ("x2", 65), ("x3", 20_000), ("x4", 3)]
    ):
        dtype, shape, offset, nbytes = header[name]["$array"]
        assert (dtype, shape, nbytes) == ("uint8", [size], size)
        assert offset % 64 == 0
        assert message[start + offset : start + offset + size] == bytes([i]) * size


def test_decoding_copies_nothing():
    message = np.frombuffer(
        bytes(encode_frames({"x": np.arange(1000.0), "y": np.int8(3)})), np.uint8
    )
    tree = decode_frames(message)
    for leaf in tree.values():
        assert np.shares_memory(leaf, message)
        assert not leaf.flags.writeable


def test_encoding_copies_no_large_array():
    large, small = np.arange(100_000.0), np.arange(3.0)
    frames = encode_frames({"large": large, "small": small})
    views = [np.frombuffer(piece, np.uint8) for piece in frames.pieces]
    assert any(np.shares_memory(view, large) for view in views)
    assert sum(map(len, frames.pieces)) == frames.nbytes
    assert b"".join(frames.pieces) == bytes(frames)


def test_an_unaligned_buffer_is_read_all_the_same():
    message = bytes(encode_frames({"x": np.arange(5.0)}))
    shifted = memoryview(b"x" + message)[1:]
    array = decode_frames(shifted)["x"]
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_used_where_it_helps(compression):
    noise = np.random.default_rng(0).bytes(1000)
    tree = {"zeros": np.zeros(10_000), "noise": np.frombuffer(noise, np.uint8)}
    frames = encode_frames(tree, compression=compression)
    assert frames.nbytes < 5000
    decoded = decode_frames(bytes(frames))
    np.testing.assert_array_equal(decoded["zeros"], tree["zeros"])
    assert decoded["noise"].tobytes() == noise
    assert bytes(frames).count(compression.encode()) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", "frames_malformed"),
        (b"\x89CRF\r\n\x1a\n", "frames_malformed"),
        (b"{}" * 40, "frames_malformed"),
        (by_hand({}, version=2), "frames_version"),
        (by_hand({}) + b"x", "frames_malformed"),
        (by_hand({}, total=2**60), "frames_malformed"),
        (by_hand({})[:-1], "frames_malformed"),
        (by_hand(b'{"a":1,"a":2}'), "duplicate_key"),
        (by_hand(b"[" * 500), "too_deep"),
        (by_hand(b"nonsense"), "json_invalid"),
        (by_hand({"$array": ["float64", [1], 0, 8]}), "frames_malformed"),
        (by_hand({"$array": ["float64", [1], 0, 8]}, bytes(7)), "frames_malformed"),
        (by_hand({"$array": ["float64", [1], 8, 8]}, bytes(64)), "frames_malformed"),
        (by_hand({"$array": ["float64", [1], -64, 8]}, bytes(64)), "frames_malformed"),
        (by_hand({"$array": ["float64", [1], 2**70, 8]}, bytes(64)), "frames_malformed"),
        (by_hand({"$array": ["float64", [1], 0.0, 8]}, bytes(64)), "frames_malformed"),
        (by_hand({"$array": ["float64", [2], 0, 8]}, bytes(64)), "frames_malformed"),
        (by_hand({"$array": ["float64", [2**61], 0, 0]}, bytes(64)), "array_too_large"),
        (by_hand({"$array": ["float64", [0, 2**62], 0, 0]}, bytes(64)), "array_shape_too_large"),
        (by_hand({"$array": ["float64", [1.0], 0, 8]}, bytes(64)), "array_decode_error"),
        (by_hand({"$array": ["f8", [1], 0, 8]}, bytes(64)), "array_invalid_dtype"),
        (by_hand({"$array": ["float64", [1], 0, 8, "gzip"]}, bytes(64)), "array_decode_error"),
        (by_hand({"$array": ["float64", [1], 0, 8, "lz4"]}, bytes(64)), "array_decode_error"),
        (by_hand({"$array": 3}), "frames_malformed"),
        (by_hand({"$unknown": 3}), "frames_malformed"),
        (by_hand({"$float": 3}), "frames_malformed"),
        (by_hand({"$float": []}), "frames_malformed"),
        (by_hand({"$int": "1e5"}), "frames_malformed"),
        (by_hand({"$int": "9" * 5000}), "frames_malformed"),
        (by_hand({"$map": []}), "frames_malformed"),
        (by_hand({"$sparse": {"shape": [2]}}), "frames_malformed"),
        (by_hand({"$sparse": {"shape": [2], "indices": 1, "values": 2}}), "frames_malformed"),
    ],
)
def test_malformed_messages(message, code):
    with pytest.raises(ChainruleError) as caught:
        decode_frames(message)
    assert caught.value.code == code


def test_one_buffer_named_many_times_counts_every_time():
    node = {"$array": ["uint8", [1000], 0, 1000]}
    message = by_hand([node] * 100, bytes(1000))
    with pytest.raises(LimitError):
        decode_frames(message, limits=Limits(max_total_bytes=50_000))


def test_error_path():
    message = by_hand({"a": {"b": [{"$map": {"$c": {"$array": 0}}}]}})
    with pytest.raises(DecodeError) as caught:
        decode_frames(message)
    assert caught.value.path == "a.b.[0].{$c}"


SEEDS = [
    bytes(encode_frames(tree, compression=compression))
    for compression in (None, "lz4", "zstd")
    for tree in (
        {"x": np.arange(300.0), "y": {"z": [np.float32(1), "text", None, float("nan"), 2**80]}},
        [SparseArray((5, 5), [[1, 2]], [3.0]), np.zeros((0, 3), ml_dtypes.bfloat16), {"$k": 1}],
    )
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_messages_never_crash_the_decoder(data):
    message = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, min(len(message) - 1, 400)))
        kind = data.draw(st.sampled_from(["byte", "digit", "cut", "insert"]))
        if kind == "byte":
            message[where] = data.draw(st.integers(0, 255))
        elif kind == "digit":
            message[where : where + 1] = data.draw(st.sampled_from([b"9", b"-", b"[", b'"', b"e9"]))
        elif kind == "cut":
            del message[where : where + data.draw(st.integers(1, 40))]
        else:
            message[where:where] = data.draw(st.binary(max_size=20))
        if not message:
            break
    try:
        tree = decode_frames(bytes(message), limits=Limits(max_array_bytes=1 << 20))
    except ChainruleError:
        return
    encode_frames(tree)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["application/json", FRAMES_MEDIA_TYPE]))
def test_arbitrary_bytes_never_crash_the_decoder(body, media_type):
    try:
        decode_body(body, media_type=media_type)
    except ChainruleError:
        return
    assert media_type == "application/json"


def test_frames_through_encode_body_are_the_same_bytes():
    tree = {"x": np.arange(30_000.0), "y": 1}
    assert b"".join(encode_body(tree, format=FRAMES_MEDIA_TYPE)) == bytes(encode_frames(tree))


def test_the_same_header_again_has_its_own_arrays_and_containers():
    first, second = (
        decode_frames(bytes(encode_frames({"x": np.full(3, value), "n": [1, {"y": "a"}]})))
        for value in (1.0, 2.0)
    )
    first["n"][1]["y"] = "changed"
    np.testing.assert_array_equal(first["x"], np.ones(3))
    np.testing.assert_array_equal(second["x"], np.full(3, 2.0))
    assert second["n"] == [1, {"y": "a"}]
    assert not second["x"].flags.writeable


def test_a_header_that_was_accepted_is_refused_where_limits_are_smaller():
    message = bytes(encode_frames({"x": np.ones(4)}))
    for _ in range(2):
        decode_frames(message)
        with pytest.raises(LimitError):
            decode_frames(message, limits=Limits(max_array_bytes=16))


def test_a_header_that_is_known_is_refused_where_its_data_is_missing():
    message = bytes(encode_frames({"x": np.ones(64)}))
    decode_frames(message)
    short = bytearray(message[:-64])
    short[16:24] = len(short).to_bytes(8, "little")
    with pytest.raises(DecodeError):
        decode_frames(bytes(short))


def test_arrays_that_can_be_written_to_are_apart():
    """Two arrays may name the same bytes; who writes to one does not change the other."""
    header = [{"$array": ["float64", [4000], offset, 32000]} for offset in (0, 64, 0)]
    header.append({"$array": ["float64", [1], 32064, 8]})
    message = bytearray(by_hand(header, np.arange(4009.0).tobytes()))
    first, *others, small = decode_frames(message, writable=True)
    before = [each.copy() for each in (*others, small)]
    first[:] = -1
    for array, expected in zip((*others, small), before, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert not np.shares_memory(small, np.frombuffer(message, np.uint8)), "it would keep the body"
