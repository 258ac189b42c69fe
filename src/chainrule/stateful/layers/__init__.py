"""Layers: thin over equinox, with tracked parameters inside.

Every layer works on one sample, as in equinox; map over a batch with `chainrule.stateful.vmap`.

Modules, in reading order:

    _layer   `Layer`, an equinox module whose arrays are tracked parameters
    _basic   the layers by name
"""

from chainrule.stateful._tree_tools import shared
from chainrule.stateful.layers._basic import (
    Attention,
    AvgPool,
    BatchNorm,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    GroupNorm,
    GRUCell,
    LayerNorm,
    Linear,
    LSTMCell,
    MaxPool,
    RMSNorm,
    Sequential,
)
from chainrule.stateful.layers._layer import Layer, LayerParam, LayerState, StatefulLayer

__all__ = [
    "Attention",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embedding",
    "GRUCell",
    "GroupNorm",
    "LSTMCell",
    "Layer",
    "LayerNorm",
    "LayerParam",
    "LayerState",
    "Linear",
    "MaxPool",
    "RMSNorm",
    "Sequential",
    "StatefulLayer",
    "shared",
]
