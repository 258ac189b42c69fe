"""A jitted training step on tracked parameters against the same step on a flat list, and against the peers.

N parameters of four numbers each, in N/2 layers. The step computes a loss and its gradient, changes all
parameters, and returns the loss; all contestants run the same arithmetic, so what differs is dispatch.
Figures are the main thread's CPU time, the least of interleaved rounds: on a shared machine everything above
the least is the neighbours' doing.

pcx pins an older JAX, so `make setup` installs it without its dependencies; without it its rows are left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import chainrule.stateful as cs
from benchmarks._harness import Row, show

SIZES = (10, 100, 1000)
BAR = 1.15
TURN_S, SPAN_S, FEWEST_ROUNDS = 0.004, 6.0, 40
# On a fresh heap a thousand results lie side by side; after some rounds they lie as in a long training.
SETTLING_ROUNDS = 10
X = jnp.linspace(0.5, 1.5, 4)


def loss(values: list[Any], x: Any) -> Any:
    pairs = zip(values[::2], values[1::2], strict=True)
    return sum(jnp.sum(w * w * x) + jnp.sum(b * x) for w, b in pairs)


def flat_step(x: Any, values: list[Any]) -> tuple[Any, list[Any]]:
    """What every contestant computes: a loss, its gradient, and a step along it."""
    value, grads = jax.value_and_grad(loss)(values, x)
    return value, [v - 0.01 * g for v, g in zip(values, grads, strict=True)]


def initial(n: int) -> list[Any]:
    return [jnp.full(4, 1.0 + i, jnp.float32) for i in range(n)]


def plain(n: int) -> Callable[[], object]:
    step, state = jax.jit(flat_step), [initial(n)]

    def call() -> None:
        _, state[0] = step(X, state[0])

    return call


class Layer(cs.Module):
    def __init__(self, w: Any, b: Any) -> None:
        self.w, self.b = cs.Param(w), cs.Param(b)


class Model(cs.Module):
    def __init__(self, values: list[Any]) -> None:
        pairs = zip(values[::2], values[1::2], strict=True)
        self.layers = [Layer(w, b) for w, b in pairs]


def tracked(n: int, *, donate: bool = False) -> Callable[[], object]:
    @cs.jit(donate=donate)
    def step(x: Any, *, model: Model) -> Any:
        params = [p for layer in model.layers for p in (layer.w, layer.b)]
        total, new = flat_step(x, [p.get() for p in params])
        for param, value in zip(params, new, strict=True):
            param.set(value)
        return total

    model = Model(initial(n))
    return lambda: step(X, model=model)


class EqxLayer(eqx.Module):
    w: Any
    b: Any


def filtered(n: int) -> Callable[[], object]:
    @eqx.filter_jit
    def step(x: Any, layers: list[EqxLayer]) -> Any:
        total, new = flat_step(x, [v for layer in layers for v in (layer.w, layer.b)])
        return total, [EqxLayer(w, b) for w, b in zip(new[::2], new[1::2], strict=True)]

    values = initial(n)
    state = [[EqxLayer(w, b) for w, b in zip(values[::2], values[1::2], strict=True)]]

    def call() -> None:
        _, state[0] = step(X, state[0])

    return call


class NnxLayer(nnx.Module):
    def __init__(self, w: Any, b: Any) -> None:
        self.w, self.b = nnx.Param(w), nnx.Param(b)


class NnxModel(nnx.Module):
    def __init__(self, values: list[Any]) -> None:
        pairs = zip(values[::2], values[1::2], strict=True)
        self.layers = nnx.List([NnxLayer(w, b) for w, b in pairs])


def flax_nnx(n: int) -> Callable[[], object]:
    @nnx.jit
    def step(x: Any, model: NnxModel) -> Any:
        params = [p for layer in model.layers for p in (layer.w, layer.b)]
        total, new = flat_step(x, [p[...] for p in params])
        for param, value in zip(params, new, strict=True):
            # `param[...] = value` gives the same program, but asks every tracer for its sharding: a minute
            # and a half of tracing with 1000 parameters.
            param.set_value(value)
        return total

    model = NnxModel(initial(n))
    return lambda: step(X, model)


def ancestor(n: int) -> Callable[[], object]:
    import pcx
    import pcx.functional as pxf

    class PcxLayer(pcx.Module):
        def __init__(self, w: Any, b: Any) -> None:
            super().__init__()
            self.w, self.b = pcx.Param(w), pcx.Param(b)

    class PcxModel(pcx.Module):
        def __init__(self, values: list[Any]) -> None:
            super().__init__()
            pairs = zip(values[::2], values[1::2], strict=True)
            self.layers = [PcxLayer(w, b) for w, b in pairs]

    @pxf.jit()
    def step(x: Any, *, model: PcxModel) -> Any:
        params = [p for layer in model.layers for p in (layer.w, layer.b)]
        total, new = flat_step(x, [p.get() for p in params])
        for param, value in zip(params, new, strict=True):
            param.set(value)
        return total

    model = PcxModel(initial(n))
    return lambda: step(X, model=model)


def peers() -> dict[str, Callable[[int], Callable[[], object]]]:
    found = {"eqx.filter_jit": filtered, "nnx.jit": flax_nnx}
    try:
        ancestor(2)()
    except Exception as error:  # not installed, or broken by a newer JAX
        print(f"pcx left out: {type(error).__name__}: {error}", file=sys.stderr)
    else:
        found["pcx jit"] = ancestor
    return found


def cpu_time(call: Callable[[], object], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def measure(contestants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of CPU per call: the least over interleaved rounds, in turns of about equal length."""
    repeats = {}
    for name, call in contestants.items():
        call()
        repeats[name] = max(3, int(TURN_S / cpu_time(call, 3)))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.monotonic() + SPAN_S
    while time.monotonic() < end or len(samples["ours"]) < SETTLING_ROUNDS + FEWEST_ROUNDS:
        for name, call in contestants.items():
            samples[name].append(cpu_time(call, repeats[name]))
    return {name: min(values[SETTLING_ROUNDS:]) for name, values in samples.items()}


def run() -> list[Row]:
    rows = []
    others = peers()
    for n in SIZES:
        contestants = {"plain": plain(n), "ours": tracked(n), "donated": tracked(n, donate=True)}
        contestants |= {name: make(n) for name, make in others.items()}
        seconds = measure(contestants)
        floor = "jax.jit on a flat list"
        claim = f"jitted step, {n} parameters"
        rows.append(Row(claim, seconds["ours"], seconds["plain"], floor, BAR))
        rows.append(Row(f"{claim}, donate=True", seconds["donated"], seconds["plain"], floor))
        rows += [Row(claim, seconds["ours"], seconds[name], name, 1.0) for name in others]
    return rows


if __name__ == "__main__":
    show(run())
