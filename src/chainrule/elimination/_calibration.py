"""What work costs on this machine: measured once per backend, kept on disk beside the orders.

Eight small programs, each dominated by one kind of work, are compiled and timed (about half a second in
all). The prices only have to be right to a factor of two or so: they decide between ways of computing a
Jacobian that differ by the number of sweeps, by what is shared, or by whether a kernel is launched at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.elimination._files import cache_folder, write_to_cache
from chainrule.elimination._work import Work

__all__ = ["DEFAULT_PRICES", "Prices", "calibrate", "prices"]

_log = logging.getLogger(__name__)

_VERSION = 1
"""Raised whenever the programs below change."""

COMPONENT_CALL_S = 5e-4
"""What asking a component is taken to cost: between one in this process and one on another host."""


@dataclass(frozen=True)
class Prices:
    """Seconds per unit of work.

    Attributes:
        call: one call of a compiled program.
        result: every array that it returns beside the first.
        kernel: launching one part of the program.
        arithmetic: one operation on one number in a fused loop.
        transcendental: one sine or the like.
        contraction: one multiply-add of a matrix product.
        written: one number written to a result.
    """

    call: float
    result: float
    kernel: float
    arithmetic: float
    transcendental: float
    contraction: float
    written: float

    def seconds(self, work: Work) -> float:
        """What some work takes, calling and returning aside."""
        return (
            (work.arithmetic + work.placed) * self.arithmetic
            + work.transcendental * self.transcendental
            + work.contraction * self.contraction
            + work.kernels * self.kernel
            + work.calls * COMPONENT_CALL_S
        )


DEFAULT_PRICES = Prices(
    call=6e-6, result=1.3e-6, kernel=4e-7, arithmetic=1e-10, transcendental=2e-9,
    contraction=5e-11, written=5e-10,
)  # fmt: skip
"""Those of an ordinary CPU core: for tests, and where measuring fails."""


@cache
def prices() -> Prices:
    """The prices of the default backend: from memory, from disk, or measured now."""
    device = jax.devices()[0]
    path = _file_of(device)
    found = None if path is None else _read(path)
    if found is None:
        try:
            found = calibrate(device)
        except RuntimeError as error:  # a backend that cannot run one of the programs
            _log.warning("Prices of %s could not be measured: %s", device.device_kind, error)
            return DEFAULT_PRICES
        if path is not None:
            write_to_cache(path, json.dumps(asdict(found)).encode())
    return found


def _file_of(device: Any) -> Path | None:
    folder = cache_folder("CHAINRULE_ORDER_CACHE", "orders")
    if folder is None:
        return None
    identity = (_VERSION, jax.__version__, device.platform, device.device_kind, os.cpu_count())
    name = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    return folder / "prices" / f"{device.platform}-{name}.json"


def _read(path: Path) -> Prices | None:
    try:
        found = {key: float(value) for key, value in json.loads(path.read_bytes()).items()}
        return Prices(**found) if all(0 < value < 1 for value in found.values()) else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def calibrate(device: Any) -> Prices:
    """Measure a device's prices."""
    # Large enough to be busy, small enough to stay in a cache where there is one.
    size = 1 << (15 if device.platform == "cpu" else 22)
    x, scalar = np.full(size, 0.5, np.float32), np.float32(0.5)
    side = 192 if device.platform == "cpu" else 2048
    matrix, small = np.full((side, side), 0.01, np.float32), np.full((4, 4), 0.3, np.float32)

    call = _time(lambda x: x + 1, scalar)
    results = _time(lambda x: [x + k for k in range(33)], scalar)
    launched = _time(lambda x: _repeated(lambda y: y @ x, x, 32), small)
    added = _time(lambda x: _repeated(lambda y: y * x + x, x, 64), x)
    evaluated = _time(lambda x: _repeated(jnp.sin, x, 8), x)
    multiplied = _time(lambda a: a @ a, matrix)
    filled = _time(lambda x: jnp.broadcast_to(x, (32, size)) + 1.0, x)

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


def _time(function: Callable[..., Any], argument: Any) -> float:
    """The fastest of some compiled calls. Concrete also where a trace is going on around it."""
    compiled = jax.jit(function).lower(argument).compile()
    with jax.ensure_compile_time_eval():
        placed = jax.device_put(argument)
    taken = []
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(compiled(placed))
        taken.append(time.perf_counter() - start)
    return min(taken[2:])
