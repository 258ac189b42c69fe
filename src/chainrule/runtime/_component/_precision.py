"""A component that declares 64 bits computes in 64 bits, also where JAX is set to 32.

JAX computes in 32 bits unless `jax_enable_x64` is set, and says nothing when it narrows a 64-bit array. So
x64 is enabled wherever code of such a component runs. The setting holds for the calling thread and ends with
the call:

    while its file runs          `W = jnp.array([0.1])`; only the file that has run says what it declares, so
                                 it may have to run again (`_loading`)
    while it answers a call      `InDoublePrecision`
    while a program that computes in 32 bits traces it    not at all: such a program traces the function as
                                 it was loaded in 32 bits (`LocalComponent.trace_in_32_bits_as`)
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import BaseModel

from chainrule.runtime._component._handlers import Payload, Wrapper
from chainrule.runtime._component._schemas import Context
from chainrule.runtime._schema import array_leaves

_WIDE = frozenset(("float64", "complex128", "int64", "uint64"))


def declares_64_bits(*schemas: type[BaseModel]) -> bool:
    """Whether an array of some models is declared with 64 bits, or complex with two times 64."""
    return any(spec.dtype in _WIDE for schema in schemas for spec in array_leaves(schema).values())


def is_narrow() -> bool:
    """Whether JAX is there and computes in 32 bits."""
    jax = sys.modules.get("jax")
    return jax is not None and not jax.config.jax_enable_x64


def double_precision() -> AbstractContextManager[Any]:
    """Let JAX compute in 64 bits, in this thread; without JAX there is nothing to do."""
    if not is_narrow():
        return nullcontext()
    # Imported here: most components do without JAX.
    from chainrule._jaxpr import enable_x64

    return enable_x64(True)


class InDoublePrecision(Wrapper):
    """Enables x64 while the handler runs."""

    def __call__(self, payload: Payload, context: Context) -> Any:
        """Answer one request."""
        if "jax" not in sys.modules:
            result = self.handler(payload, context)
            if not is_narrow():
                return result
            # The author's function has just imported JAX, and what it computed then has 32 bits: once more.
        with double_precision():
            return self.handler(payload, context)
