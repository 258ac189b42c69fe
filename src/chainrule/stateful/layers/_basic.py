"""Layers that are equinox layers with parameters inside, dropout, and batch normalisation.

Keys come from a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from chainrule.stateful._module import Module
from chainrule.stateful._params import StaticParam
from chainrule.stateful._random import RKG, RandomKeyGenerator
from chainrule.stateful.layers._layer import Layer, LayerParam, LayerState, check_axis


class Linear(Layer):
    """`weight @ x + bias`, for one vector.

    Args:
        in_features: size of the input.
        out_features: size of the output.
        use_bias: whether there is a bias.
        dtype: of the parameters.
        rkg: where the initial weights come from.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Any = None,
        rkg: RandomKeyGenerator = RKG,
    ) -> None:
        super().__init__(
            eqx.nn.Linear(in_features, out_features, use_bias=use_bias, dtype=dtype, key=rkg())
        )


class _Convolution(Layer):
    _kind: ClassVar[type[eqx.Module]]

    def __init__(
        self,
        dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        *,
        rkg: RandomKeyGenerator = RKG,
        **options: Any,
    ) -> None:
        super().__init__(
            self._kind(dims, in_channels, out_channels, kernel_size, key=rkg(), **options)
        )


class Conv(_Convolution):
    """Convolution of one image with channels first.

    Args:
        dims: number of spatial dimensions.
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: an integer or one per dimension.
        rkg: where the initial weights come from.
        **options: `stride`, `padding`, `dilation`, `groups`, `use_bias`, …, as in `equinox.nn.Conv`.
    """

    _kind = eqx.nn.Conv


class ConvTranspose(_Convolution):
    """Transposed convolution; arguments as for `Conv`."""

    _kind = eqx.nn.ConvTranspose


class _Pooling(Layer):
    _by_dims: ClassVar[tuple[type[eqx.Module], ...]]

    def __init__(self, dims: int, kernel_size: int | Sequence[int], **options: Any) -> None:
        super().__init__(self._by_dims[dims - 1](kernel_size, **options))


class MaxPool(_Pooling):
    """Maximum over windows of one image with channels first; arguments as `equinox.nn.MaxPool1d` ff."""

    _by_dims = (eqx.nn.MaxPool1d, eqx.nn.MaxPool2d, eqx.nn.MaxPool3d)


class AvgPool(_Pooling):
    """Mean over windows of one image with channels first; arguments as `equinox.nn.AvgPool1d` ff."""

    _by_dims = (eqx.nn.AvgPool1d, eqx.nn.AvgPool2d, eqx.nn.AvgPool3d)


class LayerNorm(Layer):
    """Normalisation over the whole input of a given shape."""

    def __init__(self, shape: int | Sequence[int], **options: Any) -> None:
        super().__init__(eqx.nn.LayerNorm(shape, **options))


class RMSNorm(Layer):
    """Normalisation by the root mean square over the whole input of a given shape."""

    def __init__(self, shape: int | Sequence[int], **options: Any) -> None:
        super().__init__(eqx.nn.RMSNorm(shape, **options))


class GroupNorm(Layer):
    """Normalisation over groups of channels."""

    def __init__(self, groups: int, channels: int | None = None, **options: Any) -> None:
        super().__init__(eqx.nn.GroupNorm(groups, channels, **options))


class Embedding(Layer):
    """A table of vectors, looked up by an integer."""

    def __init__(
        self, num_embeddings: int, embedding_size: int, *, rkg: RandomKeyGenerator = RKG
    ) -> None:
        super().__init__(eqx.nn.Embedding(num_embeddings, embedding_size, key=rkg()))


class Attention(Layer):
    """Multi-head attention of one sequence of queries; arguments as `equinox.nn.MultiheadAttention`."""

    def __init__(
        self, num_heads: int, query_size: int, *, rkg: RandomKeyGenerator = RKG, **options: Any
    ) -> None:
        super().__init__(eqx.nn.MultiheadAttention(num_heads, query_size, key=rkg(), **options))


class GRUCell(Layer):
    """One step of a gated recurrent unit: `cell(x, hidden) -> hidden`."""

    def __init__(
        self, input_size: int, hidden_size: int, *, rkg: RandomKeyGenerator = RKG, **options: Any
    ) -> None:
        super().__init__(eqx.nn.GRUCell(input_size, hidden_size, key=rkg(), **options))


class LSTMCell(Layer):
    """One step of a long short-term memory: `cell(x, (hidden, cell)) -> (hidden, cell)`."""

    def __init__(
        self, input_size: int, hidden_size: int, *, rkg: RandomKeyGenerator = RKG, **options: Any
    ) -> None:
        super().__init__(eqx.nn.LSTMCell(input_size, hidden_size, key=rkg(), **options))


class Dropout(Module):
    """Sets entries to zero at random while training, and scales the others to keep the mean.

    Args:
        p: the share of entries set to zero.
        inference: whether to pass the input through; `model.train()` and `model.eval()` switch it.
        rkg: where the keys come from.
    """

    def __init__(
        self, p: float = 0.5, *, inference: bool = False, rkg: RandomKeyGenerator = RKG
    ) -> None:
        self.p = p
        self.inference = StaticParam(inference)
        # The default generator is tracked everywhere; only one of the user's own has to be held.
        self.rkg = None if rkg is RKG else rkg

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.inference.get() or self.p == 0:
            return x
        key = (self.rkg or RKG)()
        return eqx.nn.Dropout(self.p)(x, key=key)


class Sequential(Module):
    """Layers and functions, one after the other."""

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class BatchNorm(Module):
    """Normalises every channel by its mean and variance over the batch and all spatial positions.

    Written for one sample, channels first, under `vmap(..., axis_name=...)`: the statistics are means over
    that axis, so they are the same in all lanes and the running ones may be shared parameters. While
    training, `y = (x - mean) / sqrt(var + eps)` with the batch's statistics, and
    `running = momentum * running + (1 - momentum) * batch`; in inference the running ones are used.

    Statistics are computed in their own precision, also where the input has a lower one (`precision`); the
    result has that of the input and the weights.

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
        affine = [part.get() for part in (self.weight, self.bias) if part is not None]
        dtype = jnp.result_type(x, *affine)
        x = x.astype(jnp.promote_types(dtype, self.mean.dtype))
        mean, var = self._running() if self.inference.get() else self._follow(x)
        shape = (-1,) + (1,) * (x.ndim - 1)
        y = (x - mean.reshape(shape)) * jax.lax.rsqrt(var.reshape(shape) + self.eps)
        if affine:
            weight, bias = (value.reshape(shape).astype(y.dtype) for value in affine)
            y = y * weight + bias
        return y.astype(dtype)

    def _running(self) -> tuple[jax.Array, jax.Array]:
        return self.mean.get(), self.var.get()

    def _follow(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The batch's statistics; the running ones move towards them."""
        check_axis(self.axis_name)
        positions = tuple(range(1, x.ndim))
        mean = jax.lax.pmean(jnp.mean(x, positions), self.axis_name)
        # The variance as the mean of (x - mean)², in a second pass: mean(x²) - mean² would subtract two large
        # numbers that agree in most digits, and can be negative.
        square = jnp.mean(jnp.square(x - mean.reshape((-1,) + (1,) * (x.ndim - 1))), positions)
        var = jax.lax.pmean(square, self.axis_name)
        for running, batch in ((self.mean, mean), (self.var, var)):
            kept = self.momentum * running.get() + (1 - self.momentum) * batch
            running.set(jax.lax.stop_gradient(kept))
        return mean, var
