"""The one interface between JAX (or torch) and a thing with endpoints.

The rest of the bridge speaks only to a `Target`. There are two kinds: components of any origin
(`_component_target.py`) and bare callables (`_callable.py`). A target works on plain trees of NumPy arrays
and knows nothing of tracers, batches or cotangent bookkeeping.

The arrays that a target gets may be the memory of XLA or of the caller, and are valid during the call only. A
target hands copies of them to the author's code, or encodes them for another process before it returns. The
arrays that it returns may be the author's: they are copied before the target is called again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from chainrule._lru_cache import LRUCache
from chainrule.bridge._types import ArrayType
from chainrule.runtime.internal import DerivativeKind, DimensionTable

Batching = Literal["elementwise", "leading"]
HESSIAN_VECTOR_PRODUCT = "hessian_vector_product"
_SIGNATURES_REMEMBERED = 512


class Target(ABC):
    """Something that maps a tree of arrays to a tree of arrays and may know its derivatives.

    Attributes:
        name: for messages.
        endpoints: names of what can be asked: `apply`, `abstract_eval`, the three first-order derivatives
            and `hessian_vector_product`.
        batching: how the target says it treats an additional leading axis of all arrays: `elementwise` (any
            axes), `leading` (one axis in front, examples independent), or `None` (it does not say).
        batched_endpoints: the product endpoints that answer a batch of vectors in one call.
        max_concurrency: how many calls may run at the same time; 1 when it is not safe or does not pay.
        is_remote: whether a call mostly waits, so that independent calls should overlap.
        jax_function: the same function, traceable by JAX, or `None`.
        jax_derivatives: whether its derivatives by JAX are those of the endpoints.
        runs_jax: whether a call runs JAX in this process, which a host call must not do.
    """

    name: str
    endpoints: frozenset[str]
    batching: Batching | None = None
    batched_endpoints: frozenset[str] = frozenset()
    max_concurrency: int = 1
    is_remote: bool = False
    jax_function: Callable[[Any], Any] | None = None
    jax_derivatives: bool = True
    runs_jax: bool = False

    @cached_property
    def _memories(self) -> defaultdict[str, LRUCache[Hashable, Any]]:
        return defaultdict(lambda: LRUCache(_SIGNATURES_REMEMBERED))

    def memory(self, purpose: str) -> LRUCache[Hashable, Any]:
        """What the bridge remembers about this target for one purpose, for as long as the target lives."""
        return self._memories[purpose]

    @abstractmethod
    def apply(self, inputs: Any) -> Any:
        """Outputs for a tree of NumPy arrays and static leaves."""

    @abstractmethod
    def abstract_eval(self, inputs: Any) -> Any:
        """Outputs with an `ArrayType` at every array, for inputs with an `ArrayType` at every array."""

    @abstractmethod
    def derivative(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vector: Mapping[str, np.ndarray] | None,
    ) -> Mapping[str, Any]:
        """Ask a first-order derivative endpoint."""

    def batched_product(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Mapping[str, np.ndarray],
    ) -> Mapping[str, Any]:
        """Ask a product endpoint for a batch of vectors; asked only if in `batched_endpoints`."""
        raise NotImplementedError

    def hessian_vector_product(
        self,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        cotangents: Mapping[str, np.ndarray],
        tangents: Mapping[str, np.ndarray],
    ) -> Mapping[str, np.ndarray]:
        """The derivative of the vector-Jacobian product along `tangents`; asked only if in `endpoints`."""
        raise NotImplementedError

    def complete_inputs(self, inputs: Any) -> tuple[Any, DimensionTable]:
        """Inputs with an `ArrayType` at every array, checked, with defaults filled in; named sizes."""
        return inputs, {}

    def fit_output(self, path: str, type_: ArrayType, sizes: DimensionTable) -> ArrayType:
        """The type that the target's declaration gives to an output that is computed with some type.

        Args:
            path: of the output.
            type_: as it is computed.
            sizes: of the named dimensions so far; those of the output are added.
        """
        return type_

    def with_tracers(self) -> Target:
        """The same target with derivatives that take tracers; asked only if it has a `jax_function`."""
        raise NotImplementedError

    def is_differentiable_input(self, path: str) -> bool:
        """Whether the target declares derivatives with respect to this input."""
        return True

    def is_differentiable_output(self, path: str) -> bool:
        """Whether the target declares derivatives of this output."""
        return True

    def is_array_input(self, path: str) -> bool:
        """Whether the target declares an array there, so that a plain number or list stands for one."""
        return False

    def is_array_output(self, path: str) -> bool:
        """The same for an output."""
        return False

    def has_arrays_in(self, path: str, names: Collection[str | int]) -> bool:
        """Whether the target declares arrays in parts of these names, or inside of them."""
        return False

    def is_plain_input(self, path: str) -> bool:
        """Whether the target declares something else than an array there."""
        return False

    @property
    def input_names(self) -> Collection[str] | None:
        """The names of the inputs, where the target has a fixed set of them."""
        return None

    def input_dtype(self, path: str) -> np.dtype[Any] | None:
        """The dtype the target wants at an input; `None` takes what comes."""
        return None
