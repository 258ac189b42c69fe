"""Claim: a component on a GPU is handed device memory inside compiled programs of JAX on the same GPU.

Not part of `make bench`, which runs on a CPU: `python -m benchmarks.device_components` on a machine with a
GPU; about two minutes. `y = sin(2x) + 1` in float32; microseconds per call of twenty in flight; contestants
take turns and the median of their turns counts. "torch" is the floor: the same function without JAX, and
"by hand" the same by JAX's `buffer_callback`, without schema, copies of operands or derivatives. The
figures of the peer were measured on the same kind of GPU with its own packages, which this machine does not
have; they are printed beside ours and say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.buffer_callback import buffer_callback

import chainrule
from benchmarks._harness import interleaved
from chainrule.runtime import Array, Differentiable, Float32

_SIZES = (1, 10**4, 10**6, 10**8)
_IN_FLIGHT = 20
_BARS = {1: 160, 10**4: 170, 10**6: 170, 10**8: 750}
_PEER = {1: (981, 1780), 10**4: (908, 1859), 10**6: (2923, 11706), 10**8: (583708, 1529047)}

Vector = Differentiable[Array[("n",), Float32]]


@chainrule.component(framework="torch", device="cuda-only")
def in_torch(x: Vector) -> Vector:
    """The sine by torch."""
    return torch.sin(2 * x) + 1


@chainrule.component(framework="cupy")
def in_cupy(x: Array[("n",), Float32]) -> Array[("n",), Float32]:
    """The sine by CuPy."""
    return cupy.sin(2 * x) + 1


@chainrule.component
def on_host(x: Array[("n",), Float32]) -> Array[("n",), Float32]:
    """The sine by NumPy."""
    return np.sin(2 * x) + 1


def _applied(component: Any) -> Callable[[Any], Any]:
    return lambda x: chainrule.apply_component(component, {"x": x})["result"]


def _on_callback(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.sin(2 * x) + 1, x, x)


def _by_hand(x: Any) -> Any:
    """What users write without us: the floor inside of a program."""

    def callback(context: Any, out: Any, operand: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(context.stream)):
            given = torch.from_dlpack(operand.__dlpack__())
            result = torch.from_dlpack(out.__dlpack__())
            torch.sin(2 * given, out=result).add_(1)

    return buffer_callback(callback, x)(x)


def _plain(x: Any) -> Any:
    return jnp.sin(2 * x) + 1


def _in_flight(
    function: Callable[[Any], Any], x: Any, count: int = _IN_FLIGHT
) -> Callable[[], None]:
    compiled = jax.jit(function)

    def call() -> None:
        for _ in range(count):
            y = compiled(x)
        jax.block_until_ready(y)

    return call


def _gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        value, slope = jax.value_and_grad(lambda x: function(x).sum())(x)
        return slope + value * 0

    return step


def _torch_alone(x: Any) -> Callable[[], None]:
    given = torch.from_dlpack(x)

    def call() -> None:
        for _ in range(_IN_FLIGHT):
            torch.sin(2 * given) + 1
        torch.cuda.synchronize()

    return call


def _row(size: int) -> None:
    x = jnp.linspace(0, 3, size, dtype=jnp.float32)
    found = np.asarray(jax.jit(_applied(in_torch))(x[:1000]))
    np.testing.assert_allclose(found, np.asarray(_plain(x[:1000])), atol=1e-5)
    calls = {
        "plain": _in_flight(_plain, x),
        "torch": _torch_alone(x),
        "by hand": _in_flight(_by_hand, x),
        "ours": _in_flight(_applied(in_torch), x),
        "cupy": _in_flight(_applied(in_cupy), x),
        "grad": _in_flight(_gradient(_applied(in_torch)), x),
        "plain grad": _in_flight(_gradient(_plain), x),
    }
    seconds = interleaved(calls, rounds=15, min_round_s=0.0)
    us = {name: taken / _IN_FLIGHT * 1e6 for name, taken in seconds.items()}
    peer, peer_grad = _PEER[size]
    print(
        f"{size:>10} {us['plain']:9.0f} {us['torch']:9.0f} {us['by hand']:9.0f} {us['ours']:9.0f} "
        f"(≤ {_BARS[size]}) {peer:9} {us['cupy']:9.0f} | {us['plain grad']:9.0f} {us['grad']:9.0f} "
        f"{us['grad'] / us['ours']:6.2f} (≤ 2.5) {peer_grad:9}",
        flush=True,
    )


def _host_row(size: int) -> None:
    x = jnp.linspace(0, 3, size, dtype=jnp.float32)
    calls = {
        "ours": _in_flight(_applied(on_host), x, 4),
        "callback": _in_flight(_on_callback, x, 4),
    }
    seconds = interleaved(calls, rounds=9, min_round_s=0.0)
    ratio = seconds["ours"] / seconds["callback"]
    us = {name: taken / 4 * 1e6 for name, taken in seconds.items()}
    print(
        f"{size:>10} {us['ours']:9.0f} {us['callback']:9.0f} {ratio:6.2f} (≤ 0.7 at 10⁶)",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    start = time.perf_counter()
    versions = f"JAX {jax.__version__}, torch {torch.__version__}, CuPy {cupy.__version__}"
    print(f"{jax.devices()[0].device_kind}, {versions}; microseconds per call")
    print("The figures of the peer were measured on the same kind of GPU at another time.")
    print(
        f"{'n':>10} {'plain JAX':>9} {'torch':>9} {'by hand':>9} {'ours':>9} (goal)  {'peer':>9} "
        f"{'CuPy':>9} | with gradient: plain JAX, ours, × forward, peer"
    )
    for size in _SIZES:
        _row(size)
    print(
        f"A NumPy component on this GPU, and jax.pure_callback\n{'n':>10} {'ours':>9} {'callback':>9}"
    )
    for size in (1, 10**6):
        _host_row(size)
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
