"""One program with a closed-form Jacobian that the derivative tests share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

MATRIX = np.random.default_rng(7).normal(size=(3, 4))


@dataclass
class Problem:
    """y = sin(A x)·b₀ and s = |x|² ∏b, nested; `calls` counts evaluations."""

    inputs: dict[str, Any]
    calls: int = field(default=0)

    input_paths = frozenset({"x", "a.b"})
    output_paths = frozenset({"y", "n.s"})

    def apply(self, inputs: Any) -> dict[str, Any]:
        self.calls += 1
        x, b = inputs["x"], inputs["a"]["b"]
        return {"y": np.sin(MATRIX @ x) * b[0], "n": {"s": (x**2).sum() * b.prod()}}

    @property
    def reference(self) -> dict[str, dict[str, np.ndarray]]:
        x, b = self.inputs["x"], self.inputs["a"]["b"]
        wave = np.sin(MATRIX @ x)
        return {
            "y": {
                "x": np.cos(MATRIX @ x)[:, None] * MATRIX * b[0],
                "a.b": np.stack([wave, np.zeros(3)], axis=1),
            },
            "n.s": {"x": 2 * x * b.prod(), "a.b": (x**2).sum() * b[::-1]},
        }

    def jacobian(self, inputs: Any, jac_inputs: Any, jac_outputs: Any) -> Any:
        return {o: {i: self.reference[o][i] for i in jac_inputs} for o in jac_outputs}

    def push(self, tangent: dict[str, Any]) -> dict[str, np.ndarray]:
        return {
            out: sum(np.tensordot(row[i], v, np.ndim(v)) for i, v in tangent.items())
            for out, row in self.reference.items()
        }

    def pull(self, cotangent: dict[str, Any]) -> dict[str, np.ndarray]:
        return {
            i: sum(np.tensordot(u, self.reference[o][i], np.ndim(u)) for o, u in cotangent.items())
            for i in self.input_paths
        }


@pytest.fixture
def problem() -> Problem:
    generator = np.random.default_rng(0)
    return Problem({"x": generator.normal(size=4), "a": {"b": generator.normal(size=2)}})


@pytest.fixture
def tangent() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {"x": generator.normal(size=4), "a.b": generator.normal(size=2)}


@pytest.fixture
def cotangent() -> dict[str, Any]:
    return {"y": np.random.default_rng(2).normal(size=3), "n.s": np.float64(0.7)}
