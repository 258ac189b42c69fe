"""Predictive coding: inference and learning on one batch, beside the ancestor (pcx) and hand-written JAX.

All contestants do the same arithmetic on the same network: a forward pass for the first values, T steps of
gradient descent on the values, one Adam step on the weights. pcx is written as in its own tutorials. It asks
for a JAX of 2024 but runs on today's: `pip install --no-deps pcx==0.6.3`; without it, its rows are left out.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import chainrule.stateful as cs
from benchmarks._harness import Row, interleaved, show
from chainrule.predictive import EnergyModule, Learner, Vode, inference_learning

_NETWORKS = {
    "two moons, batch 32": ((2, 32, 32, 32, 2), 32, 8),
    "digits in 5 layers, batch 80": ((64, 64, 64, 64, 64, 10), 80, 8),
    "digits in 3 wide layers, batch 128": ((64, 128, 128, 10), 128, 8),
}
_STATE_RATE, _WEIGHT_RATE = 0.05, 1e-3


class _Net(EnergyModule):
    def __init__(self, linears: list[Any]) -> None:
        self.layers = [cs.layers.Layer(linear) for linear in linears]
        self.vodes = [Vode(frozen=i == len(linears) - 1) for i in range(len(linears))]

    def __call__(self, x: Any, y: Any = None) -> Any:
        for layer, vode in zip(self.layers[:-1], self.vodes[:-1], strict=True):
            x = vode(jax.nn.gelu(layer(x)))
        self.vodes[-1](self.layers[-1](x))
        if y is not None:
            self.vodes[-1].set("h", y)
        return self.vodes[-1].get("u")


def _ours(linears: list[Any], x: Any, y: Any, steps: int) -> Callable[[], Any]:
    net = _Net(linears)
    learner = Learner(optax.sgd(_STATE_RATE), optax.adam(_WEIGHT_RATE), inference_learning(steps))

    def run() -> Any:
        learner(x, y, model=net)
        return jax.block_until_ready(net.layers[0].weight.get())

    return run


def _floor(linears: list[Any], x: Any, y: Any, steps: int) -> Callable[[], Any]:
    """The same, as a pure function of flat arrays that returns new weights."""
    weights = [(linear.weight, linear.bias) for linear in linears]
    states, adam = optax.sgd(_STATE_RATE), optax.adam(_WEIGHT_RATE)

    def predict(w: Any, h: Any, is_last: bool) -> Any:
        u = h @ w[0].T + w[1]
        return u if is_last else jax.nn.gelu(u)

    def energy(weights: Any, values: Any) -> Any:
        below = (x, *values)
        total = 0.0
        for i, (w, h) in enumerate(zip(weights, below, strict=True)):
            is_last = i == len(weights) - 1
            total += 0.5 * jnp.sum(((y if is_last else below[i + 1]) - predict(w, h, is_last)) ** 2)
        return total

    @jax.jit
    def train(weights: Any, state: Any) -> Any:
        values, h = [], x
        for w in weights[:-1]:
            h = predict(w, h, False)
            values.append(h)

        def infer(carry: Any, _: None) -> Any:
            values, momentum = carry
            updates, momentum = states.update(jax.grad(energy, 1)(weights, values), momentum)
            return (optax.apply_updates(values, updates), momentum), None

        (values, _), _ = jax.lax.scan(infer, (values, states.init(values)), length=steps)
        gradient = jax.tree.map(lambda g: g / len(x), jax.grad(energy)(weights, values))
        updates, state = adam.update(gradient, state)
        return optax.apply_updates(weights, updates), state, values

    carry = [weights, adam.init(weights)]

    def run() -> Any:
        carry[0], carry[1], _ = train(*carry)
        return jax.block_until_ready(carry[0][0][0])

    return run


def _pcx(linears: list[Any], x: Any, y: Any, steps: int) -> Callable[[], Any]:
    import pcx.functional as pxf
    import pcx.nn as pxnn
    import pcx.predictive_coding as pxc
    import pcx.utils as pxu
    from pcx import static

    class Net(pxc.EnergyModule):
        def __init__(self) -> None:
            super().__init__()
            self.act = static(jax.nn.gelu)
            self.layers = [pxnn.Linear(n.in_features, n.out_features) for n in linears]
            for layer, linear in zip(self.layers, linears, strict=True):
                layer.nn.weight.set(linear.weight)
                layer.nn.bias.set(linear.bias)
            self.vodes = [pxc.Vode() for _ in linears]
            self.vodes[-1].h.frozen = True

        def __call__(self, x: Any, y: Any = None) -> Any:
            for layer, vode in zip(self.layers[:-1], self.vodes[:-1], strict=True):
                x = vode(self.act(layer(x)))
            self.vodes[-1](self.layers[-1](x))
            if y is not None:
                self.vodes[-1].set("h", y)
            return self.vodes[-1].get("u")

    states = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))

    def free() -> Any:
        return pxu.M_hasnot(
            pxc.VodeParam, frozen=True
        )  # `.to` changes a mask, so each use makes its own

    @pxf.vmap({"model": states}, in_axes=(0, 0), out_axes=0)
    def forward(x: Any, y: Any, *, model: Any) -> Any:
        return model(x, y)

    @pxf.vmap({"model": states}, in_axes=(0,), out_axes=(None, 0), axis_name="batch")
    def energy(x: Any, *, model: Any) -> Any:
        output = model(x)
        return jax.lax.psum(model.energy(), "batch"), output

    @pxf.jit(static_argnums=0)
    def train(steps: int, x: Any, y: Any, *, model: Any, optim_h: Any, optim_w: Any) -> None:
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            forward(x, y, model=model)
        optim_h.init(free()(model))
        for _ in range(steps):
            with pxu.step(model, clear_params=pxc.VodeParam.Cache):
                _, g = pxf.value_and_grad(free().to([False, True]), has_aux=True)(energy)(
                    x, model=model
                )
            optim_h.step(model, g["model"])
        optim_h.clear()
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            _, g = pxf.value_and_grad(pxu.M(pxnn.LayerParam).to([False, True]), has_aux=True)(
                energy
            )(x, model=model)
        optim_w.step(model, g["model"], scale_by=1.0 / x.shape[0])

    net = Net()
    optim_h = pxu.Optim(lambda: optax.sgd(_STATE_RATE))
    optim_w = pxu.Optim(lambda: optax.adam(_WEIGHT_RATE), pxu.M(pxnn.LayerParam)(net))

    def run() -> Any:
        train(steps, x, y, model=net, optim_h=optim_h, optim_w=optim_w)
        return jax.block_until_ready(net.layers[0].nn.weight.get())

    return run


def run() -> list[Row]:
    contestants = {"us": _ours, "jax": _floor}
    if importlib.util.find_spec("pcx") is not None:
        contestants["pcx"] = _pcx
    rows = []
    for name, (sizes, batch, steps) in _NETWORKS.items():
        keys = jax.random.split(jax.random.key(0), len(sizes))
        linears = [
            eqx.nn.Linear(*pair, key=key)
            for pair, key in zip(itertools.pairwise(sizes), keys, strict=False)
        ]
        rng = np.random.default_rng(0)
        x, y = (
            jnp.asarray(rng.normal(size=(batch, n)), jnp.float32) for n in (sizes[0], sizes[-1])
        )
        calls = {who: make(linears, x, y, steps) for who, make in contestants.items()}
        first = {who: np.asarray(call()) for who, call in calls.items()}
        for who, weight in first.items():
            np.testing.assert_allclose(weight, first["jax"], atol=1e-5, err_msg=who)
        # Many short turns: a neighbour's burst then hits few of them, and the median does not see it.
        seconds = interleaved(calls, rounds=300, min_round_s=0.0)
        claim = f"predictive coding, {name}, {steps} inference steps"
        if "pcx" in seconds:
            rows.append(Row(claim, seconds["us"], seconds["pcx"], "pcx 0.6.3", 0.9))
        rows.append(Row(claim, seconds["us"], seconds["jax"], "hand-written JAX"))
    return rows


if __name__ == "__main__":
    show(run())
