"""Looking inside costs what returning the same values by hand costs.

A small network is captured, plainly and under `jax.grad`, and compared in the steady state with a
hand-written jitted function that returns the same intermediates, and with Tesseract-JAX's
`save_intermediates`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._harness import Row, interleaved, show
from chainrule.harvest import save_intermediates, sow

Sow = Callable[..., Any]
ROUNDS = 41
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


def peer_contestants(args: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
    """Tesseract-JAX wants arrays as positional arguments, so the parameters are passed apart."""
    try:
        from tesseract_jax import save_intermediates as peer_save
        from tesseract_jax import sow as peer_sow
    except ImportError:
        return {}
    network = make_network(peer_sow)

    def flat(a: Any, b: Any, x: Any) -> Any:
        return network({"a": a, "b": b}, x)

    params, x = args
    plain, grad = peer_save(flat), peer_save(jax.grad(flat, argnums=(0, 1)))
    return {
        "peer": lambda: jax.block_until_ready(plain(params["a"], params["b"], x)),
        "peer grad": lambda: jax.block_until_ready(grad(params["a"], params["b"], x)),
    }


def measure(width: int, *, with_peer: bool) -> list[Row]:
    args = problem(width)
    network = make_network(sow)
    functions = {
        "ours": save_intermediates(network),
        "hand": jax.jit(by_hand),
        "ours grad": save_intermediates(jax.grad(network)),
        "hand grad": jax.jit(grad_by_hand),
        "tagged": jax.jit(network),
        "untagged": jax.jit(make_network(lambda value, name: value)),
    }
    contestants: dict[str, Callable[[], object]] = {
        name: lambda function=function: jax.block_until_ready(function(*args))
        for name, function in functions.items()
    }
    if with_peer:
        contestants |= peer_contestants(args)
    times = interleaved(contestants, rounds=ROUNDS)
    hand = "hand-written jit"
    rows = [
        Row(f"save_intermediates(f), width {width}", times["ours"], times["hand"], hand, BAR),
        Row(
            f"save_intermediates(grad(f)), width {width}",
            times["ours grad"],
            times["hand grad"],
            hand,
            BAR,
        ),
        Row(f"jit(f) with sows, width {width}", times["tagged"], times["untagged"], "without", BAR),
    ]
    for kind, claim in (("", "save_intermediates(f)"), (" grad", "save_intermediates(grad(f))")):
        if f"peer{kind}" in times:
            ours, peer = times[f"ours{kind}"], times[f"peer{kind}"]
            rows.append(Row(f"{claim}, width {width}", ours, peer, "Tesseract-JAX"))
    return rows


def measure_pair(
    claim: str, captured: Callable[..., Any], by_hand: Callable[..., Any], x: Any
) -> Row:
    ours, hand = save_intermediates(captured), jax.jit(by_hand)
    times = interleaved(
        {
            "ours": lambda: jax.block_until_ready(ours(x)),
            "hand": lambda: jax.block_until_ready(hand(x)),
        },
        rounds=ROUNDS,
    )
    return Row(claim, times["ours"], times["hand"], "hand-written jit", BAR)


def small(x: Any) -> Any:
    return sow(jnp.sin(x), "h") ** 2


def small_by_hand(x: Any) -> Any:
    h = jnp.sin(x)
    return h**2, {"h": {"primal": h}}


def run() -> list[Row]:
    states = jnp.linspace(0.0, 1.0, 64)
    return [
        *measure(16, with_peer=True),
        *measure(256, with_peer=False),
        measure_pair("save_intermediates of sin(x)²", small, small_by_hand, jnp.float32(1.0)),
        measure_pair("… of a scan of 100 steps", make_recurrence(sow), recurrence_by_hand, states),
    ]


if __name__ == "__main__":
    show(run())
