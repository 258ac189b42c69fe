"""A straight-line native kernel from a JAX program, vectorised over the batch.

XLA on a CPU recomputes shared values in every output fusion, so an elimination order that saves half the
multiplications saves little time there. Here the program becomes scalars, and the scalars one kernel, under
`jit` and `vmap`, with the XLA program as the fallback and as the derivative. Kernels for a CPU need llvmlite
(`chainrule[native]`); they are compiled in memory, and nothing is written to disk.

    _scalars      a graph of scalar operations, and from a program to it: one rule per primitive
    _lower        from scalars to one LLVM function whose lanes are batch elements
    _cpu          the function as XLA calls it, compiled for this processor
    _gpu          from scalars to one GPU kernel, by Pallas
    _kernel       the kernel as a JAX function
"""

from chainrule.elimination._native._kernel import may_be_native, native_function
from chainrule.elimination._native._scalars import NativeUnavailableError

__all__ = ["NativeUnavailableError", "may_be_native", "native_function"]
