"""Claim: on a GPU, elimination beats `jacfwd` and `jacrev`, one kernel comes near the byte floor, and `auto`
chooses well.

Not part of `make bench`, which runs on a CPU: `python -m benchmarks.device_elimination` on a machine with
one; about two minutes. The byte floor reads every input once and writes every entry of the Jacobian once at
the memory bandwidth given with `--bandwidth` (4.3 TB/s for an H200). Times are per call of ten in flight,
which is how a solver uses them; a single call that is waited for costs a quarter of a millisecond more.
Contestants take turns; the median of their turns counts. Set-up is what `auto` takes once: search, trace,
compile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._harness import interleaved
from chainrule.elimination import examples, find_order, jacobian
from chainrule.elimination._work import Prices

_TASKS: dict[str, tuple[tuple[float, ...], float]] = {
    "roe_flux_1d": ((0.01, 0.02, 0.02, 0.01, 0.03, 0.03), 2.0),
    "robot_arm_6dof": ((0.02,) * 6, 2.0),
    "human_heart_dipole": ((0.15,) * 8, 1.3),
    "propane_combustion": ((0.15,) * 11, 1.3),
}
_BATCHES = (8 * 10**6, 10**6)
"""The bars of speed-up and floor are for the first; `auto` has to choose well at both."""
_ROUNDS, _IN_FLIGHT = 61, 10


def _contestants(name: str, point: tuple[float, ...]) -> dict[str, Callable[..., Any]]:
    function = getattr(examples, name)
    argnums = tuple(range(len(point)))
    scalars = [jnp.float32(value) for value in point]
    order = find_order(function, *scalars, argnums=argnums, objective="nontrivial", budget_s=1.0)
    return {
        "jacfwd": jax.jacfwd(function, argnums),
        "jacrev": jax.jacrev(function, argnums),
        "xla": jacobian(function, argnums, method="elimination", order=order, backend="xla"),
        "kernel": jacobian(function, argnums, method="elimination", order=order, backend="native"),
        "auto": jacobian(function, argnums),
    }


def _milliseconds(
    contestants: dict[str, Callable[..., Any]], vectors: list[Any]
) -> dict[str, float]:
    compiled = {}
    for label, contestant in contestants.items():
        start = time.perf_counter()
        compiled[label] = jax.jit(jax.vmap(contestant)).lower(*vectors).compile()
        setup_s = time.perf_counter() - start
        jax.block_until_ready(compiled[label](*vectors))
    calls = {label: _in_flight(function, vectors) for label, function in compiled.items()}
    seconds = interleaved(calls, rounds=_ROUNDS, min_round_s=0.0)
    times = {label: taken / _IN_FLIGHT * 1e3 for label, taken in seconds.items()}
    return {**times, "setup_s": setup_s}


def _in_flight(function: Callable[..., Any], vectors: list[Any]) -> Callable[[], Any]:
    def call() -> None:
        for _ in range(_IN_FLIGHT):
            result = function(*vectors)
        jax.block_until_ready(result)

    return call


def _measure(name: str, point: tuple[float, ...], batch: int, bandwidth: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    vectors = [jnp.asarray(value * (1 + 0.1 * rng.random(batch)), jnp.float32) for value in point]
    outputs = jax.eval_shape(getattr(examples, name), *(v[0] for v in vectors))
    entries = len(point) * len(jax.tree.leaves(outputs))
    floor = (len(point) + entries) * 4 * batch / bandwidth * 1e3
    return {**_milliseconds(_contestants(name, point), vectors), "floor": floor}


def _measured_prices() -> Prices:
    """What work costs on this machine, from eight small programs, each dominated by one kind of work."""
    is_cpu = jax.default_backend() == "cpu"
    # Large enough to be busy, small enough to stay in a cache where there is one.
    size, side = (1 << 15, 192) if is_cpu else (1 << 22, 2048)
    x, scalar = np.full(size, 0.5, np.float32), np.float32(0.5)
    matrix, small = np.full((side, side), 0.01, np.float32), np.full((4, 4), 0.3, np.float32)

    call = _fastest(lambda x: x + 1, scalar)
    results = _fastest(lambda x: [x + k for k in range(33)], scalar)
    launched = _fastest(lambda x: _repeated(lambda y: y @ x, x, 32), small)
    added = _fastest(lambda x: _repeated(lambda y: y * x + x, x, 64), x)
    evaluated = _fastest(lambda x: _repeated(jnp.sin, x, 8), x)
    multiplied = _fastest(lambda a: a @ a, matrix)
    filled = _fastest(lambda x: jnp.broadcast_to(x, (32, size)) + 1.0, x)

    def price(seconds: float, amount: float) -> float:
        # A quarter of a call is within the noise: what is cheaper than that is nearly free.
        return max(seconds - call, call / 4) / amount

    return Prices(
        call=call,
        result=price(results, 32),
        kernel=price(launched, 32),
        arithmetic=price(added, 128 * size),
        transcendental=price(evaluated, 8 * size),
        contraction=price(multiplied, side**3),
        written=price(filled, 32 * size),
    )


def _repeated(step: Callable[[Any], Any], value: Any, count: int) -> Any:
    for _ in range(count):
        value = step(value)
    return value


def _fastest(function: Callable[..., Any], argument: Any) -> float:
    compiled = jax.jit(function).lower(argument).compile()
    placed = jax.device_put(argument)
    taken = []
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(compiled(placed))
        taken.append(time.perf_counter() - start)
    return min(taken[2:])


def _show_prices() -> None:
    found = asdict(_measured_prices())
    print("prices, nanoseconds per unit of work (those in use: chainrule/elimination/_prices.py):")
    print("  " + ", ".join(f"{kind} {1e9 * price:.4g}" for kind, price in found.items()))


def _show_row(name: str, batch: int, bar: float, ms: dict[str, float]) -> None:
    speed_up = min(ms["jacfwd"], ms["jacrev"]) / ms["xla"]
    candidates = {label: ms[label] for label in ("jacfwd", "jacrev", "xla", "kernel")}
    best = min(candidates, key=candidates.__getitem__)
    columns = " ".join(f"{ms[key]:6.3f}" for key in (*candidates, "auto", "floor"))
    wanted = f"(≥ {bar:g})" if batch == _BATCHES[0] else "       "
    print(
        f"{name:18} {batch:8} {columns} | {speed_up:5.2f} {wanted} | {ms['kernel'] / ms['floor']:.2f} "
        f"| {ms['auto'] / candidates[best]:.3f} of {best} | {ms['setup_s']:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes per second")
    options = parser.parse_args()
    start = time.perf_counter()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, ms per call")
    _show_prices()
    print(
        f"{'task':18} {'batch':>8} jacfwd jacrev    xla kernel   auto  floor "
        "| xla's speed-up (bar) | kernel/floor (bar 1.6) | auto/best (bar 1.05) | set-up, s"
    )
    for batch in _BATCHES:
        for name, (point, bar) in _TASKS.items():
            _show_row(name, batch, bar, _measure(name, point, batch, options.bandwidth))
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
