"""Arrays that a real tesseract-core wrote, and ours read by it."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import BaseModel, create_model

from chainrule._codec import BinrefWriter, Grants, decode_body, encode_body

peer = pytest.importorskip("tesseract_core.runtime")
pytestmark = pytest.mark.interop

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "complex": np.array([1 + 2j, -0.5j]),
    "bool": np.array([True, False]),
    "scalar": np.float64(2.5),
    "empty": np.zeros((2, 0), np.int16),
    "largest": np.array([2**64 - 1, 0], np.uint64),
    "small": np.array([6e-8, -1], np.float16),
}


def schema() -> type[BaseModel]:
    """A model of the peer with one field per array."""
    fields = {name: (peer.Array[a.shape, a.dtype.name], ...) for name, a in ARRAYS.items()}
    return create_model("Arrays", **fields)


def assert_same(found):
    for name, expected in ARRAYS.items():
        assert np.asarray(found[name]).dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


CASES = [("json", None), ("base64", None), ("base64", "lz4"), ("binref", None), ("binref", "lz4")]


@pytest.mark.parametrize(("encoding", "compression"), CASES)
def test_peer_reads_ours(encoding, compression, tmp_path):
    format = "json" if encoding == "json" else f"json+{encoding}"
    with BinrefWriter(tmp_path) as writer:
        body = encode_body(ARRAYS, format=format, compression=compression, writer=writer)
    read = schema().model_validate_json(b"".join(body), context={"base_dir": str(tmp_path)})
    assert_same(read.model_dump())


@pytest.mark.parametrize(("encoding", "compression"), CASES)
def test_we_read_the_peer(encoding, compression, tmp_path):
    context = {"array_encoding": encoding, "base_dir": str(tmp_path), "compression": compression}
    text = schema()(**ARRAYS).model_dump_json(context=context)
    assert_same(decode_body(text.encode(), grants=Grants(input_dir=tmp_path)))
