"""Claim: on a GPU, elimination beats `jacfwd` and `jacrev`, and one kernel comes near the byte floor.

Not part of `make bench`, which runs on a CPU: `python -m benchmarks.device_elimination` on a machine with
one. The byte floor reads every input once and writes every entry of the Jacobian once at the memory
bandwidth given with `--bandwidth` (4.3 TB/s for an H200). Times are per call of ten calls in flight, which
is how a solver uses them; a single call that is waited for costs a quarter of a millisecond more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.elimination import examples, find_order, jacobian

_TASKS: dict[str, tuple[tuple[float, ...], float]] = {
    "roe_flux_1d": ((0.01, 0.02, 0.02, 0.01, 0.03, 0.03), 2.0),
    "robot_arm_6dof": ((0.02,) * 6, 2.0),
    "human_heart_dipole": ((0.15,) * 8, 1.3),
    "propane_combustion": ((0.15,) * 11, 1.3),
}


def _milliseconds(function: Callable[..., Any], arguments: list[Any], in_flight: int = 10) -> float:
    jax.block_until_ready(function(*arguments))
    samples = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(in_flight):
            result = function(*arguments)
        jax.block_until_ready(result)
        samples.append((time.perf_counter() - start) / in_flight * 1e3)
    return statistics.median(samples)


def _measure(name: str, point: tuple[float, ...], batch: int, bandwidth: float) -> dict[str, float]:
    function = getattr(examples, name)
    argnums = tuple(range(len(point)))
    scalars = [jnp.float32(value) for value in point]
    order = find_order(function, *scalars, argnums=argnums, objective="nontrivial", budget_s=1.0)
    rng = np.random.default_rng(0)
    vectors = [jnp.asarray(value * (1 + 0.1 * rng.random(batch)), jnp.float32) for value in point]
    contestants = {
        "jacfwd": jax.jacfwd(function, argnums),
        "jacrev": jax.jacrev(function, argnums),
        "xla": jacobian(function, argnums, method="elimination", order=order),
        "kernel": jacobian(function, argnums, method="elimination", order=order, backend="native"),
    }
    entries = len(point) * len(jax.tree.leaves(jax.eval_shape(function, *scalars)))
    times = {
        label: _milliseconds(jax.jit(jax.vmap(contestant)), vectors)
        for label, contestant in contestants.items()
    }
    return {**times, "floor": (len(point) + entries) * 4 * batch / bandwidth * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8 * 10**6)
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes per second")
    options = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, batch {options.batch}, ms per call"
    )
    print(
        f"{'task':20} jacfwd jacrev    xla kernel  floor | speed-up (bar) | kernel/floor (bar 1.6)"
    )
    for name, (point, bar) in _TASKS.items():
        ms = _measure(name, point, options.batch, options.bandwidth)
        speed_up = min(ms["jacfwd"], ms["jacrev"]) / ms["xla"]
        columns = " ".join(
            f"{ms[key]:6.3f}" for key in ("jacfwd", "jacrev", "xla", "kernel", "floor")
        )
        print(
            f"{name:20} {columns} | {speed_up:5.2f} (≥ {bar:g}) | {ms['kernel'] / ms['floor']:.2f}"
        )


if __name__ == "__main__":
    main()
