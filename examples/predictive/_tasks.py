"""The tasks: data, a network, and the figure that counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import chainrule.stateful as cs
from chainrule import apply_component
from chainrule.predictive import predict
from chainrule.stateful.layers import Conv, Linear, Sequential
from examples.predictive import _data
from examples.predictive._training import (
    Network,
    by_backpropagation,
    by_predictive_coding,
)


@dataclass(frozen=True)
class Result:
    """What both ways of training reach on data they have not seen.

    Attributes:
        task: its name.
        measure: what the figures are.
        predictive: of predictive coding.
        backpropagation: of the same network with as many weight updates.
        untrained: of the network before training.
    """

    task: str
    measure: str
    predictive: float
    backpropagation: float
    untrained: float


def _dense(*sizes: int) -> list[Any]:
    """Linear layers, all but the last with an activation."""
    layers = [Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return [
        *(Sequential(layer, jax.nn.gelu) for layer in layers[:-1]),
        layers[-1],
    ]


def _compare(
    task: str,
    measure: str,
    make: Callable[[], Network],
    data: _data.Split,
    score: Callable[[Any], float],
    *,
    epochs: int,
    rate: float = 3e-3,
) -> Result:
    scores = []
    for train in (by_predictive_coding, by_backpropagation, None):
        cs.RKG.seed(0)
        net = make()
        if train is not None:
            train(net, data.x, data.y, epochs, rate)
        scores.append(score(predict(data.test_x, model=net)))
    return Result(task, measure, *scores)


def _classify(
    task: str,
    make: Callable[[], Network],
    data: _data.Split,
    *,
    epochs: int,
) -> Result:
    classes = int(data.y.max()) + 1
    targets = np.eye(classes, dtype=np.float32)[data.y]

    def accuracy(output: Any) -> float:
        return float(np.mean(np.argmax(output, -1) == data.test_y))

    return _compare(
        task,
        "accuracy",
        make,
        data._replace(y=targets),
        accuracy,
        epochs=epochs,
    )


def two_moons(epochs: int = 60) -> Result:
    return _classify(
        "two moons",
        lambda: Network(*_dense(2, 32, 32, 2)),
        _data.moons(),
        epochs=epochs,
    )


def deep_classifier(epochs: int = 30) -> Result:
    return _classify(
        "digits, 5 layers", lambda: Network(*_dense(64, 64, 64, 64, 64, 10)), _data.digits(),
        epochs=epochs,
    )  # fmt: skip


def convolutional_classifier(epochs: int = 15) -> Result:
    def make() -> Network:
        return Network(
            Sequential(
                lambda x: x.reshape(1, 8, 8),
                Conv(2, 1, 8, 3, padding=1),
                jax.nn.gelu,
            ),
            Sequential(Conv(2, 8, 16, 3, stride=2), jax.nn.gelu, jnp.ravel),
            Linear(16 * 9, 10),
        )

    return _classify(
        "digits, convolutions", make, _data.digits(), epochs=epochs
    )


def _reconstruct(
    task: str,
    make: Callable[[], Network],
    data: _data.Split,
    *,
    epochs: int,
) -> Result:
    def error(output: Any) -> float:
        return float(np.mean((output - data.test_x) ** 2))

    return _compare(
        task,
        "mean squared error",
        make,
        data._replace(y=data.x),
        error,
        epochs=epochs,
    )


def autoencoder(epochs: int = 40) -> Result:
    return _reconstruct(
        "digits, autoencoder", lambda: Network(*_dense(64, 64, 16, 64, 64)), _data.digits(),
        epochs=epochs,
    )  # fmt: skip


def component_as_decoder(component: Any, epochs: int = 20) -> Result:
    """Learn to read damping and frequency off a signal; what turns them into a signal is a component."""

    def signal(code: Any) -> Any:
        answer = apply_component(
            component, {"code": code}, vmap_method="broadcast_all"
        )
        return answer["signal"]

    return _reconstruct(
        "oscillations, component as decoder", lambda: Network(*_dense(24, 32, 2), signal),
        _data.oscillations(signal), epochs=epochs,
    )  # fmt: skip
