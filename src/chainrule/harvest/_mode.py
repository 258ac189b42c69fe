"""What a sown value is: the value itself, or which derivative of it.

A mode is a list of derivative steps, the latest first: `()` is the value, `tangent` its directional
derivative, `cotangent` the derivative of a result with respect to it, `tangent_of_cotangent` what
`jvp(grad(f))` adds, and so on. Each step knows at which depth of nested derivatives it was taken (the
innermost is 0), which tells the two cotangents of `grad(grad(f))` apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["tangent", "cotangent"]


@dataclass(frozen=True)
class Mode:
    """The derivative steps that lead to a value, the latest first.

    Attributes:
        steps: (kind, depth) of each step.
        depth: how many derivative transformations the value has been through.
    """

    steps: tuple[tuple[Kind, int], ...] = ()
    depth: int = 0

    def deeper(self) -> Mode:
        """The mode of the value itself after one more derivative was taken around it."""
        return replace(self, depth=self.depth + 1)

    def tangent(self) -> Mode:
        """The mode of the tangent of a value in this mode."""
        return Mode((("tangent", self.depth), *self.steps), self.depth + 1)

    def cotangent(self) -> Mode:
        """The mode after transposition: a tangent turns into the cotangent of the same step."""
        if self.is_tangent:
            (_, depth), *rest = self.steps
            return replace(self, steps=(("cotangent", depth), *rest))
        return Mode((("cotangent", self.depth), *self.steps), self.depth + 1)

    def undeepened(self) -> Mode:
        """The steps alone, without what happened around the value since."""
        return replace(self, depth=0)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depth of each step, the latest first."""
        return tuple(depth for _, depth in self.steps)

    @property
    def is_primal(self) -> bool:
        """Whether this is the value itself."""
        return not self.steps

    @property
    def is_tangent(self) -> bool:
        """Whether the latest step was a push forward."""
        return bool(self.steps) and self.steps[0][0] == "tangent"

    @property
    def is_pulled_back(self) -> bool:
        """Whether any of the steps pulled back."""
        return any(kind == "cotangent" for kind, _ in self.steps)

    @property
    def label(self) -> str:
        """`primal`, `tangent`, `cotangent`, `tangent_of_cotangent`, …"""
        return "_of_".join(kind for kind, _ in self.steps) or "primal"


PRIMAL = Mode()
