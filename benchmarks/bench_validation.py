"""Validation of arrays: one correct array, and a thousand tiny ones there and back.

The peer is tesseract-core 1.15.0 from PyPI; the floor is pydantic calling an empty Python function.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiter
import numpy as np
import orjson
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic_core import core_schema

from benchmarks._harness import Row, interleaved, show
from chainrule._codec import decode_frames, encode_frames
from chainrule.runtime import _schema as ours


def run() -> list[Row]:
    return [*_one_array(), *_many_tiny_arrays()]


class _Nothing:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.with_info_plain_validator_function(lambda value, info: value)


def _one_array() -> list[Row]:
    from tesseract_core import runtime as peer

    array = np.ones((100, 3))
    validators = {
        "us": TypeAdapter(ours.Array[(None, 3), ours.Float64]).validate_python,
        "peer": TypeAdapter(peer.Array[(None, 3), peer.Float64]).validate_python,
        "floor": TypeAdapter(_Nothing).validate_python,
    }
    seconds = interleaved({name: lambda v=v: v(array) for name, v in validators.items()})
    claim = "validate one correct f64[100,3]"
    return [
        Row(claim, seconds["us"], seconds["peer"], "tesseract-core 1.15.0", bar=1 / 5),
        Row(claim, seconds["us"], seconds["floor"], "pydantic calling an empty function"),
    ]


def _many_tiny_arrays() -> list[Row]:
    from tesseract_core import runtime as peer

    count = 1000
    values = {f"key{i}": np.array([float(i)]) for i in range(count)}
    model = create_model("Us", x=(dict[str, ours.Array[(None,), ours.Float64]], ...))
    peer_model = create_model("Peer", x=(dict[str, peer.Array[(None,), peer.Float64]], ...))
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        in_process = _peer_component(Path(folder))
        gc.freeze()  # as our workers do once they are loaded; it serves all contestants
        seconds = interleaved(
            {
                "us": lambda: _there_and_back(model, values),
                "unchecked": lambda: _unchecked_there_and_back(model, values),
                "peer's schema": lambda: _peer_there_and_back(peer_model, values),
                "peer's call": lambda: in_process.apply({"x": values}),
            },
            rounds=7,
        )
    claim = "1000 one-element arrays validated, encoded, decoded (each)"
    return [
        Row(
            claim,
            seconds["us"] / count,
            seconds["peer's call"] / count,
            "tesseract-core 1.15.0, in-process apply",
            bar=1 / 20,
            note="the peer's call validates inputs and outputs and encodes nothing",
        ),
        Row(
            claim,
            seconds["us"] / count,
            seconds["unchecked"] / count,
            "the same format, read and written without a check",
            bar=3,
        ),
        Row(
            claim,
            seconds["us"] / count,
            seconds["peer's schema"] / count,
            "tesseract-core 1.15.0, dump and validate JSON",
            note="frames here, base64 in JSON there",
        ),
    ]


def _there_and_back(model: Callable[..., Any], values: dict[str, np.ndarray]) -> Any:
    return decode_frames(bytes(encode_frames({"x": model(x=values).x})))


def _unchecked_there_and_back(
    model: Callable[..., Any], values: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What a trusting program does: no dtype, shape, size, place or number of arrays is looked at."""
    header, buffers = {}, []
    for name, array in model(x=values).x.items():
        header[name] = {"$array": ["float64", array.shape, 64 * len(buffers), array.nbytes]}
        buffers.append(array.tobytes().ljust(64, b"\0"))
    text, data = orjson.dumps(header), memoryview(b"".join(buffers))
    arrays = {}
    for name, node in jiter.from_json(text).items():
        _, shape, offset, _ = node["$array"]
        arrays[name] = np.ndarray(tuple(shape), np.float64, data, offset)
    return arrays


def _peer_there_and_back(model: type[BaseModel], values: dict[str, np.ndarray]) -> BaseModel:
    # The peer decodes by validating; there is no other way to its arrays.
    text = model(x=values).model_dump_json(context={"array_encoding": "base64"})
    return model.model_validate(orjson.loads(text))


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _peer_component(folder: Path) -> Any:
    from tesseract_core import Tesseract

    source = folder / "tesseract_api.py"
    source.write_text(
        "from pydantic import BaseModel\n"
        "from tesseract_core.runtime import Array, Float64\n"
        "class InputSchema(BaseModel):\n"
        "    x: dict[str, Array[(None,), Float64]]\n"
        "class OutputSchema(InputSchema):\n"
        "    pass\n"
        "def apply(inputs):\n"
        "    return OutputSchema(x=inputs.x)\n"
    )
    return Tesseract.from_tesseract_api(source, output_path=folder)


if __name__ == "__main__":
    show(run())
