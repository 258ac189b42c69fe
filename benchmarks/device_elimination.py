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
from chainrule.elimination._calibration import calibrate

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


def _show_calibration() -> None:
    start = time.perf_counter()
    found = calibrate(jax.devices()[0])
    print(f"calibration, {time.perf_counter() - start:.1f} s; nanoseconds per unit of work:")
    print("  " + ", ".join(f"{kind} {1e9 * price:.4g}" for kind, price in asdict(found).items()))


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
    _show_calibration()
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
