"""Validation of arrays: one correct array, and a thousand tiny ones there and back.

The peer is tesseract-core 1.15.0 from PyPI; the floor is pydantic calling an empty Python function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic_core import core_schema

from benchmarks._harness import Row, interleaved, show
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
    models = {
        "us": create_model("Us", x=(dict[str, ours.Array[(None,), ours.Float64]], ...)),
        "peer": create_model("Peer", x=(dict[str, peer.Array[(None,), peer.Float64]], ...)),
    }
    seconds = interleaved(
        {name: lambda m=model: _there_and_back(m, values) for name, model in models.items()},
        rounds=5,
    )
    return [
        Row(
            "1000 one-element arrays validated, encoded, decoded (each)",
            seconds["us"] / count,
            seconds["peer"] / count,
            "tesseract-core 1.15.0",
            bar=1 / 20,
            note="base64 in JSON text, read back with orjson",
        )
    ]


def _there_and_back(model: type[BaseModel], values: dict[str, np.ndarray]) -> BaseModel:
    text = model(x=values).model_dump_json(context={"array_encoding": "base64"})
    return model.model_validate(orjson.loads(text))


if __name__ == "__main__":
    show(run())
