"""One network, trained in two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import chainrule.stateful as cs
from chainrule.predictive import (
    STATES,
    WEIGHTS,
    EnergyModule,
    Learner,
    Vode,
    forward,
    inference_learning,
)


class Network(EnergyModule):
    """Blocks with a value node after each; the last node is clamped to the target."""

    def __init__(self, *blocks: Callable[..., Any]) -> None:
        self.blocks = list(blocks)
        self.nodes = [Vode() for _ in blocks[1:]] + [Vode(frozen=True)]

    def __call__(self, x: Any, y: Any = None) -> Any:
        for block, node in zip(self.blocks, self.nodes, strict=True):
            u = block(x)
            x = node(u)
        if y is not None:
            self.nodes[-1].set("h", y)
        return u


def batches(
    x: np.ndarray, y: np.ndarray, epochs: int, size: int = 80
) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - size + 1, size):
            chosen = order[start : start + size]
            yield x[chosen], y[chosen]


def by_predictive_coding(
    net: Network, x: Any, y: Any, epochs: int, rate: float
) -> None:
    learner = Learner(
        optax.sgd(0.1), optax.adam(rate), inference_learning(8)
    )
    for batch in batches(x, y, epochs):
        learner(*batch, model=net)


def by_backpropagation(
    net: Network, x: Any, y: Any, epochs: int, rate: float
) -> None:
    optim = cs.Optim(optax.adam(rate), WEIGHTS)
    optim.init(net)
    for batch in batches(x, y, epochs):
        _backpropagate(*batch, net=net, optim=optim)


def _loss(x: Any, y: Any, *, net: Network) -> Any:
    return jnp.mean(jnp.sum((forward(x, model=net) - y) ** 2, -1)) / 2


@cs.jit
def _backpropagate(
    x: Any, y: Any, *, net: Network, optim: cs.Optim
) -> None:
    gradients = cs.grad(_loss, kwargs_mask={"net": WEIGHTS})(x, y, net=net)
    optim.step(net, gradients["net"])
    net.clear_params(STATES)
