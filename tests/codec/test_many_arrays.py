"""Many small arrays in one message: the bytes of the format, and the errors of single arrays."""

from __future__ import annotations

import json
import struct

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from chainrule._codec import Limits, decode_frames, encode_frames
from chainrule.errors import ChainruleError

COUNT = 20
DTYPES = ("float64", "float32", "int8", "bool", "complex128", "uint16")


def read_by_the_page(message: bytes) -> dict:
    """A reader after docs/explanation/wire-format.md: arrays as (dtype, shape, bytes)."""
    header_nbytes, total = struct.unpack_from("<IQ", message, 12)
    assert total == len(message)
    start = (24 + header_nbytes + 63) // 64 * 64

    def array(node):
        if set(node) != {"$array"}:
            return node
        dtype, shape, offset, nbytes = node["$array"]
        assert offset % 64 == 0
        return dtype, shape, message[start + offset : start + offset + nbytes]

    return json.loads(message[24 : 24 + header_nbytes], object_hook=array)


def message_of(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    start = (24 + len(text) + 63) // 64 * 64
    prefix = b"\x89CRF\r\n\x1a\n" + struct.pack("<HHIQ", 1, 0, len(text), start + len(data))
    return (prefix + text).ljust(start, b"\0") + data


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    count=st.integers(14, 18),
    odd=st.sampled_from(["none", "dtype", "shape", "plain", "scalar"]),
    order=st.sampled_from("CF"),
    seed=st.integers(0, 2**16),
)
def test_there_and_back(dtype, shape, count, odd, order, seed):
    draw = np.random.default_rng(seed)
    arrays = [
        np.asarray(draw.integers(0, 2, shape).astype(dtype), order=order) for _ in range(count)
    ]
    if odd != "none":
        others = {
            "dtype": np.zeros(shape, "int64"), "shape": np.zeros((*shape, 2), dtype),
            "plain": "text", "scalar": np.float32(2),
        }  # fmt: skip
        arrays[seed % count] = others[odd]
    tree = {
        "first": np.arange(3),
        "list": arrays,
        "map": {f"k{i}": a for i, a in enumerate(arrays)},
    }
    message = bytes(encode_frames(tree))
    raw, back = read_by_the_page(message), decode_frames(message)
    for index, array in enumerate(arrays):
        for found in (back["list"][index], back["map"][f"k{index}"]):
            if isinstance(array, str):
                assert found == array
                continue
            assert isinstance(found, np.ndarray)
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert not found.flags.writeable
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, array)
        if not isinstance(array, str):
            stored = (array.dtype.name, list(array.shape), array.tobytes())
            assert raw["list"][index] == raw["map"][f"k{index}"] == stored


def test_small_arrays_are_views_into_the_message():
    message = np.frombuffer(
        bytearray(bytes(encode_frames([np.ones(3)] * COUNT)) + bytes(64)), np.uint8
    )
    begin = -message.ctypes.data % 64
    aligned = np.empty(len(message) + 64, np.uint8)[begin:][: len(message) - 64]
    aligned[:] = message[:-64]
    assert all(np.shares_memory(array, aligned) for array in decode_frames(aligned))


def test_every_second_buffer_and_overlapping_buffers_are_read():
    data = np.arange(16.0 * COUNT)
    apart = [{"$array": ["float64", [2], 128 * i, 16]} for i in range(COUNT)]
    assert [a.tolist() for a in decode_frames(message_of(apart, data.tobytes()))] == [
        [16.0 * i, 16.0 * i + 1] for i in range(COUNT)
    ]
    overlapping = [{"$array": ["float64", [2, 5], 64 * i, 80]} for i in range(COUNT)]
    for index, array in enumerate(decode_frames(message_of(overlapping, data.tobytes()))):
        np.testing.assert_array_equal(array, data[8 * index : 8 * index + 10].reshape(2, 5))


def spoiled(place: int, replacement: object) -> list:
    nodes: list = [{"$array": ["float64", [1], 64 * i, 8]} for i in range(COUNT)]
    if place < 4:
        nodes[7]["$array"][place] = replacement
    else:
        nodes[7] = replacement
    return nodes


@pytest.mark.parametrize(
    ("place", "replacement"),
    [
        (0, "float99"), (0, ["float64"]), (0, None), (1, [True]), (1, [1.0]), (1, [-1]), (1, 1), (1, "1"),
        (1, [2]), (2, 7), (2, -64), (2, 64.0), (2, False), (2, 64 * COUNT), (3, 9), (3, 8.0), (3, True),
        (4, {"$array": ["float64", [1], 0]}), (4, {"$array": "four"}), (4, {"$other": 1}),
        (4, {"$array": ["float64", [1], 0, 8, "rar"]}),
    ],
)  # fmt: skip
def test_one_bad_node_is_named(place, replacement):
    with pytest.raises(ChainruleError) as caught:
        decode_frames(message_of(spoiled(place, replacement), bytes(64 * COUNT)))
    assert caught.value.path == "[7]"


@pytest.mark.parametrize(
    ("node", "place"),
    [
        (["float99", [1], 0, 8], 0), (["float64", [True], 0, 8], 0), (["float64", [1], 0, 16], 0),
        (["float64", [1], 1, 8], 0), (["float64", [1], -64, 8], 0), (["float64", [9], 0, 72], COUNT - 1),
    ],
)  # fmt: skip
def test_of_nodes_that_are_alike_and_bad_the_first_bad_one_is_named(node, place):
    dtype, shape, start, nbytes = node
    nodes = [{"$array": [dtype, shape, start + 64 * i, nbytes]} for i in range(COUNT)]
    with pytest.raises(ChainruleError) as caught:
        decode_frames(message_of({"x": nodes}, bytes(64 * COUNT)))
    assert caught.value.path == f"x.[{place}]"


def test_offsets_may_fall_or_stay():
    data = np.arange(8.0 * COUNT)
    falling = [{"$array": ["float64", [1], 64 * i, 8]} for i in reversed(range(COUNT))]
    assert [a.item() for a in decode_frames(message_of(falling, data.tobytes()))] == [
        8.0 * i for i in reversed(range(COUNT))
    ]
    same = [{"$array": ["float64", [1], 64, 8]}] * COUNT
    assert [a.item() for a in decode_frames(message_of(same, data.tobytes()))] == [8.0] * COUNT


def test_every_array_counts_against_the_limits():
    message = bytes(encode_frames({f"k{i}": np.ones(4) for i in range(COUNT)}))
    for limits, path in (
        (Limits(max_total_bytes=32 * 10), "k10"),
        (Limits(max_array_bytes=31), "k0"),
    ):
        with pytest.raises(ChainruleError) as caught:
            decode_frames(message, limits=limits)
        assert (caught.value.code, caught.value.path) == ("array_too_large", path)
    with pytest.raises(ChainruleError) as caught:
        decode_frames(message, limits=Limits(max_fields=COUNT - 1))
    assert caught.value.code == "too_many_fields"


def test_many_compressed_arrays():
    tree = [np.full(100, i, "int64") for i in range(COUNT)]
    message = bytes(encode_frames(tree, compression="lz4"))
    assert len(message) < 100 * 8 * COUNT / 2
    np.testing.assert_array_equal(decode_frames(message), tree)
