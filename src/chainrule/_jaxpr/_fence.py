"""`fence`: values that are computed once, also when they are both results and operands.

XLA's fusion on the CPU treats every result of a program by itself. Where a result is a step on the way to
other results, it is computed again for each of them: n elementwise steps, all of which are results, become
n²/2 steps in n kernels. Compilation and run time grow likewise (`benchmarks/bench_harvest.py` has such rows).

An `optimization_barrier` does not help, since XLA removes it before it fuses. A call that must not be inlined
does: fusion does not look through it, and it costs nothing but the call. XLA has an attribute for such calls,
`inlineable`, which JAX itself uses for `compute_on`. Other platforms choose their fusions by cost, so there a
fence is nothing.

What is left is proportional to the number of fences. Tracing and lowering take 0.5 ms of processor time for
each, and XLA about 20 ms to make the kernel between two of them: 0.25 s for 10 steps, 2.2 s for 100, 6.2 s
for 300, 24 s for 1000. Without fusion (the compiler option `xla_disable_hlo_passes=fusion`) the kernels are
few and alike, and 1000 steps take 3 s; but then every operation between two sown values is a pass over
memory, and the option applies to whole programs only. It is left to the user: `jax.jit(captured,
compiler_options={"xla_disable_hlo_passes": "fusion"})`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def fence(values: Sequence[Any]) -> list[Any]:
    """The values, computed once for all that use them."""
    return _fence_p.bind(*values) if values else []


FENCE = "fence"
"""The name of the primitive."""

_fence_p = Primitive(FENCE)
_fence_p.multiple_results = True
_fence_p.def_impl(lambda *values: list(values))
_fence_p.def_abstract_eval(lambda *avals: list(avals))


@jax.jit
def _pass(*values: Any) -> Any:
    # JAX removes a call that returns its arguments as they are.
    return jax.lax.optimization_barrier(values)


def _call(*values: Any) -> Any:
    with set_xla_metadata(inlineable="false"):
        return _pass(*values)


# A tangent needs no fence: it is not handed out beside what it leads to.
ad.primitive_jvps[_fence_p] = lambda primals, tangents: (_fence_p.bind(*primals), tangents)
batching.primitive_batchers[_fence_p] = lambda values, dims: (_fence_p.bind(*values), dims)
mlir.register_lowering(_fence_p, lambda context, *values: list(values))
mlir.register_lowering(_fence_p, mlir.lower_fun(_call, multiple_results=True), platform="cpu")
