"""The asynchronous twin of every method that calls an endpoint: the same arguments, to be awaited.

Calls run on threads of the component, so a program has as many under way as its transport can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from chainrule.client._jobs import Job


class AsyncTwins(ABC):
    """The asynchronous half of `Component`."""

    @abstractmethod
    def _in_background(self, endpoint: str, *args: Any, **kwargs: Any) -> Job:
        """Start a call."""

    async def health_async(self) -> dict[str, Any]:
        """`health` for asynchronous code."""
        return await self._in_background("health")

    async def apply_async(self, inputs: Any, *, run_id: str | None = None) -> Any:
        """`apply` for asynchronous code."""
        return await self._in_background("apply", inputs, run_id=run_id)

    async def jacobian_async(
        self,
        inputs: Any,
        jac_inputs: Collection[str] | None = None,
        jac_outputs: Collection[str] | None = None,
        *,
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`jacobian` for asynchronous code."""
        arguments = (inputs, jac_inputs, jac_outputs)
        return await self._in_background("jacobian", *arguments, run_id=run_id)

    async def jacobian_vector_product_async(
        self,
        inputs: Any,
        jvp_inputs: Collection[str],
        jvp_outputs: Collection[str],
        tangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`jacobian_vector_product` for asynchronous code."""
        arguments = (inputs, jvp_inputs, jvp_outputs, tangent_vector)
        options = {"batched": batched, "run_id": run_id}
        return await self._in_background("jacobian_vector_product", *arguments, **options)

    async def vector_jacobian_product_async(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`vector_jacobian_product` for asynchronous code."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        options = {"batched": batched, "run_id": run_id}
        return await self._in_background("vector_jacobian_product", *arguments, **options)

    async def hessian_vector_product_async(
        self,
        inputs: Any,
        hvp_inputs: Collection[str],
        hvp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        tangent_vector: Mapping[str, Any],
        *,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`hessian_vector_product` for asynchronous code."""
        arguments = (inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector)
        return await self._in_background("hessian_vector_product", *arguments, run_id=run_id)

    async def value_and_vjp_async(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        *,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`value_and_vjp` for asynchronous code."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return await self._in_background("value_and_vjp", *arguments, run_id=run_id)

    async def abstract_eval_async(self, abstract_inputs: Any) -> Any:
        """`abstract_eval` for asynchronous code."""
        return await self._in_background("abstract_eval", abstract_inputs)

    async def tagged_intermediates_async(
        self,
        inputs: Any,
        tag: str = "intermediates",
        tangent_vector: Mapping[str, Any] | None = None,
        cotangent_vector: Mapping[str, Any] | None = None,
        *,
        abstract: bool = False,
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`tagged_intermediates` for asynchronous code."""
        return await self._in_background(
            "tagged_intermediates", inputs, tag=tag, tangent_vector=tangent_vector,
            cotangent_vector=cotangent_vector, abstract=abstract, run_id=run_id,
        )  # fmt: skip
