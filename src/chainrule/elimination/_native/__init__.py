"""A straight-line native kernel from a JAX program, vectorised over the batch.

XLA on a CPU recomputes shared values in every output fusion, so an elimination order that saves half the
multiplications saves little time there. Here the program becomes scalars (`_scalarise`), the scalars become
one LLVM function whose lanes are batch elements (`_lower`, `_handler`) or one GPU kernel (`_gpu`), and JAX
calls it (`_kernel`), under `jit` and `vmap`, with the XLA program as the fallback and as the derivative.
"""

from chainrule.elimination._native._kernel import may_be_native, native_function
from chainrule.elimination._native._scalars import NativeUnavailableError

__all__ = ["NativeUnavailableError", "may_be_native", "native_function"]
