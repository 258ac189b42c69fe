"""Layers around equinox modules; their parameters are at `.nn.weight`, `.nn.bias`, …."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from chainrule.compat.pcx.core import RKG, Module, Pairs, RandomKeyGenerator
from chainrule.stateful import BaseParam, Param, layers
from chainrule.stateful.layers import LayerParam

__all__ = [
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AdaptivePool",
    "AvgPool2d",
    "BatchNorm",
    "Conv",
    "Conv2d",
    "ConvTranspose",
    "Dropout",
    "Layer",
    "LayerNorm",
    "LayerParam",
    "LayerState",
    "Linear",
    "MaxPool2d",
    "Pool",
    "StateParam",
    "StatefulLayer",
    "shared",
]

Sizes = int | Sequence[int]


class _Equinox(Module, layers.Layer):
    """An equinox module whose arrays are parameters, in the order of its fields."""

    def parts(self) -> Pairs:
        """Its parameters and flags; not what rebuilds it."""
        return [(name, value) for name, value in self.pairs() if not name.startswith("_")]


class Layer(Module):
    """An equinox module under `.nn`, its arrays being parameters.

    Args:
        cls: class of the equinox module.
        *args: its arguments.
        filter: which leaves of the module are parameters; by default all arrays.
        **kwargs: further arguments of the equinox module.
    """

    def __init__(
        self,
        cls: Callable[..., eqx.Module],
        *args: Any,
        filter: Callable[[Any], bool] = eqx.is_array,
        **kwargs: Any,
    ) -> None:
        self.nn = _Equinox(cls(*args, **kwargs), select=filter)

    def __call__(self, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """Call the equinox module with the current values of its parameters."""
        return self.nn(*args, key=key, **kwargs)


def shared(module: Any, filter: Any = BaseParam) -> Any:
    """A copy of a module that holds the very same parameters.

    Args:
        module: the module, or a tree of modules.
        filter: which parameters to share, a kind or a predicate; others are copied.
    """
    return layers.shared(module, filter)


class LayerState(Param):
    """State of a layer that is computed, not trained."""

    __slots__ = ()


class StateParam(Param):
    """The state that an equinox module keeps from call to call."""

    __slots__ = ()


class StatefulLayer(Module):
    """An equinox module with state: its arrays are parameters under `.nn`, its state is in `.state`.

    Args:
        cls: class of the equinox module, which takes and returns an `equinox.nn.State`.
        *args: its arguments.
        filter: which leaves of the module are parameters; by default all arrays.
        **kwargs: further arguments of the equinox module.
    """

    def __init__(
        self,
        cls: Callable[..., eqx.Module],
        *args: Any,
        filter: Callable[[Any], bool] = eqx.is_array,
        **kwargs: Any,
    ) -> None:
        module, state = eqx.nn.make_with_state(cls)(*args, **kwargs)
        self.nn = _Equinox(module, select=filter)
        self.state = StateParam(state)

    def __call__(self, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """Call the equinox module with the current values and keep the state that it returns."""
        # A state that equinox has handed out can be used once: take a fresh one of the same content.
        state = jax.tree.map(lambda leaf: leaf, self.state.get())
        result, state = self.nn(*args, state, key=key, **kwargs)
        self.state.set(state)
        return result


class Linear(Layer):
    """`weight @ x + bias`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rkg: RandomKeyGenerator = RKG,
        **options: Any,
    ) -> None:
        super().__init__(eqx.nn.Linear, in_features, out_features, bias, key=rkg(), **options)


class Conv(Layer):
    """Convolution of one image, channels first; arguments as in `equinox.nn.Conv`."""

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Any = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        rkg: RandomKeyGenerator = RKG,
        **options: Any,
    ) -> None:
        super().__init__(
            eqx.nn.Conv,
            num_spatial_dims,
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            use_bias,
            padding_mode,
            dtype,
            key=rkg(),
            **options,
        )


class Conv2d(Conv):
    """`Conv` with two spatial dimensions."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(2, in_channels, out_channels, kernel_size, *args, **kwargs)


class ConvTranspose(Layer):
    """Transposed convolution; arguments as in `equinox.nn.ConvTranspose`."""

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        *args: Any,
        rkg: RandomKeyGenerator = RKG,
        **options: Any,
    ) -> None:
        super().__init__(
            eqx.nn.ConvTranspose,
            num_spatial_dims,
            in_channels,
            out_channels,
            kernel_size,
            *args,
            key=rkg(),
            **options,
        )


class Pool(Layer):
    """Pooling with any operation; arguments as in `equinox.nn.Pool`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(eqx.nn.Pool, *args, **kwargs)


class AvgPool2d(Layer):
    """Average pooling of images; arguments as in `equinox.nn.AvgPool2d`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(eqx.nn.AvgPool2d, *args, **kwargs)


class MaxPool2d(Layer):
    """Maximum pooling of images; arguments as in `equinox.nn.MaxPool2d`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(eqx.nn.MaxPool2d, *args, **kwargs)


class AdaptivePool(Layer):
    """Pooling to a given size; arguments as in `equinox.nn.AdaptivePool`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(eqx.nn.AdaptivePool, *args, **kwargs)


class AdaptiveAvgPool2d(Layer):
    """Average pooling of images to a given size."""

    def __init__(self, target_shape: Sizes, **kwargs: Any) -> None:
        super().__init__(eqx.nn.AdaptiveAvgPool2d, target_shape, **kwargs)


class AdaptiveMaxPool2d(Layer):
    """Maximum pooling of images to a given size."""

    def __init__(self, target_shape: Sizes, **kwargs: Any) -> None:
        super().__init__(eqx.nn.AdaptiveMaxPool2d, target_shape, **kwargs)


class Dropout(Layer):
    """Dropout; pass `key=` while training."""

    def __init__(self, p: float = 0.5, inference: bool = False, **kwargs: Any) -> None:
        super().__init__(eqx.nn.Dropout, p, inference, **kwargs)


class LayerNorm(Layer):
    """Layer normalisation; `shape` is required."""

    def __init__(
        self,
        shape: Sizes,
        eps: float = 1e-05,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        elementwise_affine: bool = True,
    ) -> None:
        use_weight, use_bias = use_weight and elementwise_affine, use_bias and elementwise_affine
        super().__init__(eqx.nn.LayerNorm, shape, eps, use_weight, use_bias, dtype)


class BatchNorm(StatefulLayer):
    """`equinox.nn.BatchNorm` under `vmap(axis_name=…)`.

    Args:
        input_size: number of channels.
        axis_name: of the batch axis.
        eps: added to the variance.
        channelwise_affine: whether there are a trained weight and bias.
        momentum: how slowly the running statistics follow.
        inference: whether to use the running statistics.
        dtype: of the parameters.
        **kwargs: further options of `equinox.nn.BatchNorm`, `mode` for example.
    """

    def __init__(
        self,
        input_size: int,
        axis_name: Any,
        eps: float = 1e-05,
        channelwise_affine: bool = True,
        momentum: float = 0.1,
        inference: bool = False,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            eqx.nn.BatchNorm,
            input_size,
            axis_name,
            eps,
            channelwise_affine,
            momentum,
            inference,
            dtype,
            **kwargs,
        )
