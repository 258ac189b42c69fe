"""What a pipeline consists of: programs, and the arrays on the links between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from chainrule._jaxpr import ClosedJaxpr
from chainrule.view._arrays import Array, norm

_LONGEST = 38  # characters of a line in a box


@dataclass(frozen=True)
class Flow:
    """One array on a link.

    Attributes:
        name: under which it was sown, or by which a component knows it; empty where it has no name.
        type: its shape and dtype, such as `f32[3,4]`.
        value: the array; `None` where the function was not run.
        cotangent: the derivative of the result with respect to it, along this link; `None` where there is
            none, as for integers.
    """

    name: str
    type: str
    value: Array | None = field(default=None, repr=False, compare=False)
    cotangent: Array | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.type}".strip()

    @property
    def nonfinite(self) -> int:
        """How many entries of the value and of the cotangent are NaN or infinite."""
        arrays = (a for a in (self.value, self.cotangent) if a is not None)
        return sum(int(np.sum(~np.isfinite(array))) for array in arrays)


@dataclass(frozen=True)
class Link:
    """Arrays that go from one place to another.

    Attributes:
        source: the number of a part, or the name of an argument.
        target: the number of a part, or `"result"`.
        flows: the arrays.
    """

    source: int | str
    target: int | str
    flows: tuple[Flow, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.types[:2])
        return f"{shown} + {len(self.types) - 2}" if len(self.types) > 2 else shown

    @property
    def types(self) -> tuple[str, ...]:
        """Shape and dtype of each array."""
        return tuple(flow.type for flow in self.flows)

    @property
    def value_norm(self) -> float | None:
        """Euclidean norm of all values; `None` where the function was not run."""
        return norm_of(flow.value for flow in self.flows)

    @property
    def cotangent_norm(self) -> float | None:
        """Euclidean norm of all cotangents; `None` where there are none."""
        return norm_of(flow.cotangent for flow in self.flows)

    @property
    def nonfinite(self) -> int:
        """How many entries of values and cotangents are NaN or infinite."""
        return sum(flow.nonfinite for flow in self.flows)


def norm_of(arrays: Iterable[Array | None]) -> float | None:
    """Euclidean norm of those that are there; `None` if there are none."""
    there = [array for array in arrays if array is not None]
    return norm(there) if there else None


@dataclass(frozen=True)
class Part:
    """A call of a component, or the JAX operations between two of them.

    Attributes:
        kind: `"component"` or `"jax"`.
        name: the component's name; else the `jax.named_scope`, or the functions it was written in.
        detail: what is asked of a component (`apply`, `vjp`, …), or that it was inlined; else which pass
            it belongs to.
        framework: what a component is written in; `None` where that is not known.
        place: where it runs: `in this process`, an address, an image, …
        stage: the outermost `jax.named_scope` around it; parts of one stage collapse in the matrix.
        equations: number of JAX equations.
        operations: estimated scalar operations of a JAX part; `None` where only the component knows.
        bytes_in: size of the arrays that go in.
        bytes_out: size of the arrays that come out and are used.
        seconds: of one run, by what was run: `apply` and `vjp` of a component, `forward` and `backward` of
            a JAX part; empty when it was not measured.
        program: what it computes.
    """

    kind: Literal["component", "jax"]
    name: str
    detail: str
    framework: str | None
    place: str
    stage: str
    equations: int
    operations: float | None
    bytes_in: int
    bytes_out: int
    seconds: Mapping[str, float]
    program: ClosedJaxpr = field(repr=False)

    @property
    def cost(self) -> str:
        """What is known about its cost, in words."""
        if self.operations is None:
            known = f"{_short(self.bytes_in)}B in, {_short(self.bytes_out)}B out"
        else:
            unit = "operation" if self.operations == 1 else "operations"
            known = f"≈ {_short(self.operations).strip()} {unit}"
        return ", ".join([known, *filter(None, [self.duration])])

    @property
    def duration(self) -> str:
        """How long it took, in words; empty when it was not measured."""
        return ", ".join(f"{name} {_short(seconds)}s" for name, seconds in self.seconds.items())

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands in its box."""
        detail = " · ".join(filter(None, (self.detail, self.framework)))
        place = self.place if self.kind == "component" else ""
        cost = self.cost.removesuffix(self.duration).removesuffix(", ")
        lines = (self.name, detail, place, cost, self.duration)
        return tuple(shortened(line) for line in lines if line)


def shortened(line: str) -> str:
    """A line that fits a box."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 k`, `45 µ`."""
    if number == 0:
        return "0 "
    exponent = max(-3, min(4, math.floor(math.log10(abs(number)) / 3)))
    prefix = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}[exponent]
    return f"{number / 1000.0**exponent:.3g} {prefix}"


def number_text(value: float | None) -> str:
    """Three digits; nothing for nothing."""
    return "" if value is None else f"{value:.3g}"
