"""Looking inside costs what returning the same values by hand costs.

A small network is captured, plainly and under `jax.grad`, and compared in the steady state with a
hand-written jitted function that returns the same intermediates, and with Tesseract-JAX's
`save_intermediates`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._harness import MANY_TURNS, Row, interleaved, show
from chainrule.harvest import save_intermediates, sow

Sow = Callable[..., Any]
BAR = 1.15


def make_network(sow: Sow) -> Callable[[dict[str, Any], Any], Any]:
    def network(params: dict[str, Any], x: Any) -> Any:
        hidden = sow(jnp.tanh(x @ params["a"]), "hidden")
        output = sow(hidden @ params["b"], "output")
        return jnp.sum(output**2)

    return network


def by_hand(params: dict[str, Any], x: Any) -> Any:
    hidden = jnp.tanh(x @ params["a"])
    output = hidden @ params["b"]
    return jnp.sum(output**2), {"hidden": {"primal": hidden}, "output": {"primal": output}}


def grad_by_hand(params: dict[str, Any], x: Any) -> Any:
    """The gradient with respect to the parameters, with perturbations for the cotangents."""
    zeros = (
        jnp.zeros((x.shape[0], params["b"].shape[0])),
        jnp.zeros((x.shape[0], params["b"].shape[1])),
    )

    def loss(params: dict[str, Any], nudges: Any) -> Any:
        hidden = jnp.tanh(x @ params["a"]) + nudges[0]
        output = hidden @ params["b"] + nudges[1]
        return jnp.sum(output**2), (hidden, output)

    (grads, cotangents), values = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, zeros)
    names = ("hidden", "output")
    return grads, {
        name: {"primal": value, "cotangent": cotangent}
        for name, value, cotangent in zip(names, values, cotangents, strict=True)
    }


def make_recurrence(sow: Sow) -> Callable[[Any], Any]:
    def recurrence(x: Any) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            return sow(jnp.sin(state) + 0.1, "state"), None

        return jnp.sum(jax.lax.scan(step, x, None, length=100)[0])

    return recurrence


def recurrence_by_hand(x: Any) -> Any:
    def step(state: Any, _: None) -> tuple[Any, Any]:
        state = jnp.sin(state) + 0.1
        return state, state

    last, states = jax.lax.scan(step, x, None, length=100)
    return jnp.sum(last), {"state": {"primal": states}}


def problem(width: int) -> tuple[dict[str, Any], Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "a": jax.random.normal(keys[0], (width, width)) / width,
        "b": jax.random.normal(keys[1], (width, width)) / width,
    }
    return params, jax.random.normal(keys[2], (8, width))


def compare(
    claim: str, ours: Callable[..., Any], reference: Callable[..., Any], against: str, *args: Any
) -> Row:
    """One pair at a time: a slow contestant would cool the caches of the next one."""
    given = args if against != "Tesseract-JAX" else (args[0]["a"], args[0]["b"], args[1])
    times = interleaved(
        {
            "ours": lambda: jax.block_until_ready(ours(*args)),
            "reference": lambda: jax.block_until_ready(reference(*given)),
        },
        **MANY_TURNS,
    )
    bar = None if against == "Tesseract-JAX" else BAR
    return Row(claim, times["ours"], times["reference"], against, bar)


def measure(width: int) -> list[Row]:
    network = make_network(sow)
    plain = make_network(lambda value, name: value)
    captured, captured_grad = save_intermediates(network), save_intermediates(jax.grad(network))
    args, hand = problem(width), "hand-written jit"
    return [
        compare(f"save_intermediates(f), width {width}", captured, jax.jit(by_hand), hand, *args),
        compare(
            f"save_intermediates(grad(f)), width {width}",
            captured_grad,
            jax.jit(grad_by_hand),
            hand,
            *args,
        ),
        compare(
            f"jit(f) with sows, width {width}", jax.jit(network), jax.jit(plain), "without", *args
        ),
    ]


def measure_peer(width: int) -> list[Row]:
    """Tesseract-JAX wants arrays as positional arguments, so the parameters are passed apart."""
    try:
        from tesseract_jax import save_intermediates as peer_save
        from tesseract_jax import sow as peer_sow
    except ImportError:
        return []
    network, peer_network = make_network(sow), make_network(peer_sow)

    def flat(a: Any, b: Any, x: Any) -> Any:
        return peer_network({"a": a, "b": b}, x)

    args, peer = problem(width), "Tesseract-JAX"
    return [
        compare("save_intermediates(f)", save_intermediates(network), peer_save(flat), peer, *args),
        compare(
            "save_intermediates(grad(f))", save_intermediates(jax.grad(network)),
            peer_save(jax.grad(flat, argnums=(0, 1))), peer, *args,
        ),
    ]  # fmt: skip


def small(x: Any) -> Any:
    return sow(jnp.sin(x), "h") ** 2


def small_by_hand(x: Any) -> Any:
    h = jnp.sin(x)
    return h**2, {"h": {"primal": h}}


def make_chain(sow: Sow, length: int) -> Callable[[Any], Any]:
    def chain(x: Any) -> Any:
        for step in range(length):
            x = sow(jnp.sin(x) + 0.1 * step, f"h{step}")
        return jnp.sum(x)

    return chain


def chain_by_hand(length: int) -> Callable[[Any], Any]:
    def chain(x: Any) -> Any:
        values: dict[str, Any] = {}

        def keep(value: Any, name: str) -> Any:
            values[name] = {"primal": value}
            return value

        return make_chain(keep, length)(x), values

    return chain


def first_call(length: int, x: Any) -> float:
    """Processor seconds of the first call: tracing and compilation."""
    captured = save_intermediates(make_chain(sow, length))
    start = time.process_time()
    jax.block_until_ready(captured(x))
    return time.process_time() - start


def measure_chain() -> list[Row]:
    """Many sown values, each of which leads to the next: XLA alone computes all of them again for each."""
    x = jnp.linspace(0.0, 1.0, 1000)
    few, many, most = first_call(10, x), first_call(100, x), first_call(300, x)
    return [
        Row("first call, 100 sown values", many, 10 * few, "10 × that of 10 values", 1.5),
        Row("first call, 300 sown values", most, 3 * many, "3 × that of 100 values", 1.5),
        compare(
            "save_intermediates of 20 steps",
            save_intermediates(make_chain(sow, 20)),
            jax.jit(chain_by_hand(20)),
            "hand-written jit",
            x,
        ),
    ]


def run() -> list[Row]:
    hand, x, states = "hand-written jit", jnp.float32(1.0), jnp.linspace(0.0, 1.0, 64)
    recurrence = save_intermediates(make_recurrence(sow))
    return [
        compare(
            "save_intermediates of sin(x)²",
            save_intermediates(small),
            jax.jit(small_by_hand),
            hand,
            x,
        ),
        *measure(16),
        *measure(256),
        compare("… of a scan of 100 steps", recurrence, jax.jit(recurrence_by_hand), hand, states),
        *measure_chain(),
        *measure_peer(16),
    ]


if __name__ == "__main__":
    show(run())
