"""What work costs, by backend.

The prices decide between ways of computing a Jacobian that differ by the number of sweeps, by what is shared,
or by whether a kernel is launched at all, so they only have to be right to a factor of two or so. They are
constants: a call of `jacobian` never measures the machine that it runs on. `explain_jacobian(measure=True)`
measures the ways themselves. `python -m benchmarks.device_elimination` measures prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from chainrule.elimination._work import Work

COMPONENT_CALL_S = 5e-4
"""What asking a component is taken to cost: between one in this process and one on another host."""


@dataclass(frozen=True)
class Prices:
    """Seconds per unit of work.

    Attributes:
        call: one call of a compiled program.
        result: every array that it returns beside the first.
        kernel: launching one part of the program.
        arithmetic: one operation on one number in a fused loop.
        transcendental: one sine or the like.
        contraction: one multiply-add of a matrix product.
        written: one number written to a result.
    """

    call: float
    result: float
    kernel: float
    arithmetic: float
    transcendental: float
    contraction: float
    written: float

    def seconds(self, work: Work) -> float:
        """What some work takes, calling and returning aside."""
        return (
            (work.arithmetic + work.placed) * self.arithmetic
            + work.transcendental * self.transcendental
            + work.contraction * self.contraction
            + work.kernels * self.kernel
            + work.calls * COMPONENT_CALL_S
        )


CPU_PRICES = Prices(
    call=6e-6, result=1.3e-6, kernel=4e-7, arithmetic=1e-10, transcendental=2e-9,
    contraction=5e-11, written=5e-10,
)  # fmt: skip
"""Those of a core of an ordinary server."""

GPU_PRICES = Prices(
    call=8.2e-5, result=4.7e-6, kernel=6.7e-7, arithmetic=4.5e-14, transcendental=6.1e-13,
    contraction=1.2e-14, written=2e-12,
)  # fmt: skip
"""Those of an NVIDIA H200 with JAX 0.11, float32; see docs/benchmarks.md."""


def prices() -> Prices:
    """The prices of the default backend. Every accelerator counts as a GPU."""
    return CPU_PRICES if jax.default_backend() == "cpu" else GPU_PRICES
