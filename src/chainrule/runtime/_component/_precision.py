"""Double precision for components that declare it.

JAX computes in 32 bits unless `jax_enable_x64` is set, and says nothing when it narrows a 64-bit array. So
the endpoints of a component that declares a 64-bit dtype run with x64 enabled, whatever the process is
set to: the setting is of the calling thread and ends with the call. What the component's file computes while
it is loaded (`W = jnp.array([0.1])`) is computed with x64, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from chainrule.runtime._component._endpoints import Endpoint, Payload
from chainrule.runtime._component._schemas import Context
from chainrule.runtime._schema import array_leaves

_WIDE = frozenset(("float64", "complex128", "int64", "uint64"))


def declares_64_bits(*schemas: type[BaseModel]) -> bool:
    """Whether an array of some models is declared with 64 bits, or complex with two times 64."""
    return any(spec.dtype in _WIDE for schema in schemas for spec in array_leaves(schema).values())


def double_precision() -> AbstractContextManager[Any]:
    """Let JAX compute in 64 bits, in this thread; without JAX there is nothing to do."""
    jax = sys.modules.get("jax")
    if jax is None or jax.config.jax_enable_x64:
        return nullcontext()
    # Imported here: most components do without JAX.
    from chainrule._jaxpr import enable_x64

    return enable_x64(True)


def in_double_precision(endpoint: Endpoint) -> Endpoint:
    """The endpoint with x64 enabled while it runs."""
    return _Double(endpoint)


class _Double:
    def __init__(self, endpoint: Endpoint) -> None:
        self.can_batch = endpoint.can_batch
        self._endpoint = endpoint

    def __call__(self, payload: Payload, context: Context) -> Any:
        if "jax" not in sys.modules:
            return self._endpoint(payload, context)
        with double_precision():
            return self._endpoint(payload, context)


def was_loaded_narrow(module: ModuleType) -> bool:
    """Whether JAX computed something in 32 bits while a component's file was loaded."""
    jax = sys.modules.get("jax")
    if jax is None or jax.config.jax_enable_x64:
        return False
    return any(
        isinstance(value, jax.Array) and str(value.dtype) in ("float32", "complex64")
        for value in _values_in(module, jax)
    )


def _values_in(module: ModuleType, jax: Any) -> Iterator[Any]:
    """What the file and its neighbours hold at their top level, models and other trees taken apart."""
    package = module.__name__.rpartition(".")[0]
    loaded = sys.modules.copy()
    for name, each in loaded.items():
        if name == module.__name__ or (package and name.startswith(f"{package}.")):
            for value in list(vars(each).values()):
                if not isinstance(value, (type, ModuleType, BaseModel)):
                    yield from jax.tree_util.tree_leaves(value)
