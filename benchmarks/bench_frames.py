"""Arrays to bytes and back: frames against `memcpy`, base64 against pybase64, the peer beside both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pybase64
from pydantic import BaseModel

from benchmarks._harness import Row, interleaved, show
from benchmarks._memory import keep_freed_memory
from chainrule._codec import (
    decode_array,
    decode_body,
    decode_frames,
    encode_array,
    encode_body,
    encode_frames,
)

_COUNT = 1_000_000


def _frames_rows(array: np.ndarray[Any, Any]) -> list[Row]:
    source = array.view(np.uint8)
    target = np.empty_like(source)
    message = np.empty(array.nbytes + 4096, np.uint8)

    def ours() -> Any:
        frames, position = encode_frames({"x": array}), 0
        for piece in frames.pieces:
            message[position : position + len(piece)] = memoryview(piece)
            position += len(piece)
        return decode_frames(message[:position])

    assert np.shares_memory(ours()["x"], message)
    seconds = interleaved({"us": ours, "memcpy": lambda: np.copyto(target, source)}, rounds=25)
    return [
        Row("encode + decode 1e6 float64 in frames", seconds["us"], seconds["memcpy"], "memcpy", 1.2,
            note="decode makes views into the message"),
    ]  # fmt: skip


def _base64_rows(array: np.ndarray[Any, Any]) -> list[Row]:
    def floor() -> None:
        pybase64.b64decode(pybase64.b64encode_as_string(array.data), validate=True)

    def ours() -> None:
        decode_array(encode_array(array, encoding="base64"))

    seconds = interleaved({"us": ours, "pybase64": floor, "peer": _peer_base64(array)}, rounds=25)
    return [
        Row("encode + decode 1e6 float64 in base64", seconds["us"], seconds["pybase64"], "pybase64", 1.1),
        Row("encode + decode 1e6 float64 in base64", seconds["us"], seconds["peer"], "tesseract-core",
            note="through its models, to JSON and back"),
    ]  # fmt: skip


def _peer_base64(array: np.ndarray[Any, Any]) -> Any:
    from tesseract_core.runtime import Array, Float64

    class Model(BaseModel):
        x: Array[(None,), Float64]

    model = Model(x=array)

    def run() -> None:
        text = model.model_dump_json(context={"array_encoding": "base64"})
        Model.model_validate_json(text)

    return run


def _many_rows() -> list[Row]:
    from tesseract_core.runtime import Array, Float64

    class Model(BaseModel):
        x: dict[str, Array[(None,), Float64]]

    tree = {"x": {f"k{i}": np.array([float(i)]) for i in range(1000)}}
    model = Model(**tree)

    def peer() -> None:
        Model.model_validate_json(model.model_dump_json(context={"array_encoding": "base64"}))

    def ours(format: str) -> Any:
        media_type = f"application/{format}"
        return lambda: decode_body(
            b"".join(encode_body(tree, format=format)), media_type=media_type
        )

    formats = ("json", "json+base64", "vnd.chainrule.frames")
    seconds = interleaved({"peer": peer, **{format: ours(format) for format in formats}}, rounds=7)
    return [
        Row(f"1000 one-element arrays to {format} and back", seconds[format] / 1000,
            seconds["peer"] / 1000, "tesseract-core", note="per array; codec only, no schema on our side")
        for format in formats
    ]  # fmt: skip


def run() -> list[Row]:
    keep_freed_memory()  # as our server processes do, see with_memory_settings
    array = np.random.default_rng(0).random(_COUNT)
    return _frames_rows(array) + _base64_rows(array) + _many_rows()


if __name__ == "__main__":
    show(run())
