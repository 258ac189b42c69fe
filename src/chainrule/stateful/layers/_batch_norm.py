"""Batch normalisation with running statistics, as tracked state."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.stateful._module import Module
from chainrule.stateful._params import StaticParam
from chainrule.stateful.layers._layer import LayerParam, LayerState

__all__ = ["BatchNorm"]


class BatchNorm(Module):
    """Normalises every channel by its mean and variance over the batch and all spatial positions.

    Written for one sample, channels first, under `vmap(..., axis_name=...)`: the statistics are means over
    that axis, so they are the same in all lanes and the running ones may be shared parameters. While
    training, `y = (x - mean) / sqrt(var + eps)` with the batch's statistics, and
    `running = momentum * running + (1 - momentum) * batch`; in inference the running ones are used.

    Args:
        channels: number of channels.
        axis_name: the name of the batch axis.
        momentum: how slowly the running statistics follow.
        eps: added to the variance.
        affine: whether there are a trained `weight` and `bias`.
        inference: whether to use the running statistics; `model.train()` and `model.eval()` switch it.
    """

    def __init__(
        self,
        channels: int,
        axis_name: Hashable,
        *,
        momentum: float = 0.99,
        eps: float = 1e-5,
        affine: bool = True,
        inference: bool = False,
        dtype: Any = jnp.float32,
    ) -> None:
        self.axis_name = axis_name
        self.momentum = momentum
        self.eps = eps
        self.inference = StaticParam(inference)
        self.mean = LayerState(jnp.zeros(channels, dtype))
        self.var = LayerState(jnp.ones(channels, dtype))
        self.weight = LayerParam(jnp.ones(channels, dtype)) if affine else None
        self.bias = LayerParam(jnp.zeros(channels, dtype)) if affine else None

    def __call__(self, x: jax.Array) -> jax.Array:
        mean, var = self._running() if self.inference.get() else self._follow(x)
        shape = (-1,) + (1,) * (x.ndim - 1)
        y = (x - mean.reshape(shape)) * jax.lax.rsqrt(var.reshape(shape) + self.eps)
        if self.weight is None or self.bias is None:
            return y
        return y * self.weight.reshape(shape) + self.bias.reshape(shape)

    def _running(self) -> tuple[jax.Array, jax.Array]:
        return self.mean.get(), self.var.get()

    def _follow(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The batch's statistics; the running ones move towards them."""
        positions = tuple(range(1, x.ndim))
        mean = jax.lax.pmean(jnp.mean(x, positions), self.axis_name)
        square = jnp.mean(jnp.square(x - mean.reshape((-1,) + (1,) * (x.ndim - 1))), positions)
        var = jax.lax.pmean(square, self.axis_name)
        for running, batch in ((self.mean, mean), (self.var, var)):
            kept = self.momentum * running.get() + (1 - self.momentum) * batch
            running.set(jax.lax.stop_gradient(kept))
        return mean, var
