"""The Taylor-remainder test: does the derivative really take away the linear part?

For a smooth f and the right slope d, φ(h) − φ(0) − h d falls by four when h is halved; with a wrong slope
it falls by two. The order, not the size, is what is tested, so no tolerance has to be guessed. Where the
remainder drowns in rounding (a linear f does that at once), what is left is as small as it can be: passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime.testing._references import unit_roundoff
from chainrule.runtime.testing._report import Check
from chainrule.runtime.testing._subject import Subject

__all__ = ["Direction", "check_taylor"]

RATIO = 8.0
STEPS = 2.0 ** -np.array([4, 7, 10])
"""Multiples of the direction, each `1 / RATIO` of the one before. The last is small enough to see errors of
a percent, and large enough to forgive a derivative that is itself a careful finite difference."""
MIN_ORDER = 1.5
"""Halfway between the order of a wrong slope (1) and of a right one (2)."""


@dataclass(frozen=True)
class Direction:
    """A random direction v of the inputs, random weights u of the outputs, and φ(0) = ⟨u, f(x)⟩.

    Attributes:
        tangent: v by path, each element as large as the inputs around it.
        cotangent: u by path.
        base: φ(0).
        unit: the coarsest relative rounding unit of inputs and outputs.
        noise: the rounding error to expect in φ.
    """

    tangent: dict[str, np.ndarray]
    cotangent: dict[str, np.ndarray]
    base: float
    unit: float
    noise: float

    @classmethod
    def random(cls, subject: Subject, generator: np.random.Generator) -> Direction:
        """A direction for one component at one point."""
        tangent, cotangent = {}, {}
        for path in subject.input_paths:
            x = np.asarray(get_at_path(subject.inputs, path))
            scale = np.max(np.abs(x), initial=0.0) or 1.0
            tangent[path] = (scale * generator.uniform(0.5, 1.0, x.shape)).astype(x.dtype)
        for path in subject.output_paths:
            y = np.asarray(get_at_path(subject.outputs, path))
            cotangent[path] = generator.normal(size=y.shape).astype(y.dtype)
        outputs = {p: np.asarray(get_at_path(subject.outputs, p)) for p in subject.output_paths}
        unit = unit_roundoff(*(a.dtype for a in (*tangent.values(), *outputs.values())))
        size = sum(float(np.sum(np.abs(u * outputs[p]))) for p, u in cotangent.items())
        base = _weigh(cotangent, outputs)
        return cls(tangent, cotangent, base, unit, 8 * unit * size)

    def weigh(self, outputs: Mapping[str, Any]) -> float:
        """⟨u, outputs⟩."""
        return _weigh(self.cotangent, outputs)

    def at(self, subject: Subject, h: float) -> float:
        """φ at x + h v."""
        moved = {
            path: (np.asarray(get_at_path(subject.inputs, path)) + h * v).astype(v.dtype)
            for path, v in self.tangent.items()
        }
        outputs = subject.component.apply(set_at_path(subject.inputs, moved))
        return self.weigh({p: get_at_path(outputs, p) for p in self.cotangent})


def _weigh(cotangent: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> float:
    return sum(
        float(np.sum(u.astype(np.float64) * np.asarray(outputs[path])))
        for path, u in cotangent.items()
    )


def check_taylor(endpoint: str, subject: Subject, direction: Direction, slope: float) -> Check:
    """Whether the remainder with this slope is of second order."""
    remainders = np.array(
        [abs(direction.at(subject, h) - direction.base - h * slope) for h in STEPS]
    )
    # Rounding of x + h v moves φ as well, by about the unit times the slope.
    loud = remainders > 4 * (direction.noise + 8 * direction.unit * abs(slope))
    if loud.sum() < 2:
        summary = "the remainder is rounding error"
        return Check(endpoint, "taylor", not loud[-1], STEPS.size, summary)
    large, small = remainders[loud][-2:]
    order = float(np.log(large / small) / np.log(RATIO))
    summary = f"the remainder is of order {order:.2f} (2 when the derivative is right)"
    return Check(endpoint, "taylor", order > MIN_ORDER, STEPS.size, summary)
