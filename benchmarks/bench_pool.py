"""Pools: how replicas add up, and what a pool costs over bare Ray actors.

The cluster runs in a network namespace with nothing but loopback (see tests/deploy/test_ray.py), so this
module starts itself again there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Row, interleaved, show
from chainrule.client import Component
from chainrule.deploy import local

_COMPONENT = """
import time
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    busy_s: float = 0.0

class OutputSchema(BaseModel):
    y: Differentiable[Float64]

def apply(inputs):
    end = time.process_time() + inputs.busy_s
    while time.process_time() < end:
        pass
    return OutputSchema(y=np.sum(inputs.x**2))
"""
_BUSY = {"x": np.ones(8), "busy_s": 0.05}
_SMALL = {"x": np.ones(8)}
_BUSY_CALLS = 40  # so many that the first and the last do not count
_ENSEMBLE = 10_000
_NAMESPACE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        settings = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": folder,
        }
        done = subprocess.run(
            [*_NAMESPACE, sys.executable, "-m", __spec__.name, "--inside"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [Row(**facts) for facts in json.loads(done.stdout.splitlines()[-1])]


def _run_inside() -> list[Row]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        source = Path(folder) / "component.py"
        source.write_text(_COMPONENT)
        rows = _local(source)
        stack.enter_context(_cluster())
        return [*rows, *_on_ray(source)]


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, namespace="benchmarks")
    yield
    ray.shutdown()


def _local(source: Path) -> list[Row]:
    with (
        local.deploy(source, replicas=1) as one,
        local.deploy(source, replicas=2) as two,
        Component.from_source(source) as alone,
    ):
        seconds = interleaved(
            {"pool": lambda: one.apply(_SMALL), "alone": lambda: alone.apply(_SMALL)}, rounds=25
        )
        return [
            *_throughput("processes", one, two),
            Row("call, pool of processes", seconds["pool"], seconds["alone"], "from_source"),
        ]


def _on_ray(source: Path) -> list[Row]:
    import ray

    from chainrule.deploy import ray as pools

    bare: Any = ray.remote(_Bare)
    actors = [bare.remote() for _ in range(2)]

    def busy() -> None:
        ray.get([actors[k % 2].apply.remote(_BUSY) for k in range(_BUSY_CALLS)])

    with pools.deploy(source, replicas=1) as one, pools.deploy(source, replicas=2) as two:
        return [
            *_throughput("Ray", one, two, busy),
            _call(one, actors[0]),
            _ensemble(two, actors),
            _large(one, actors[0]),
        ]


class _Bare:
    """The same work, with nothing around it."""

    def apply(self, inputs: dict[str, Any]) -> dict[str, Any]:
        end = time.process_time() + inputs.get("busy_s", 0.0)
        while time.process_time() < end:
            pass
        return {"y": np.sum(inputs["x"] ** 2)}


def _throughput(
    name: str, one: Component, two: Component, bare: Callable[[], object] | None = None
) -> list[Row]:
    """Cores that other programs use as well give less than 1.8: bare actors show how much there is."""
    inputs = [_BUSY] * _BUSY_CALLS
    contestants: dict[str, Callable[[], object]] = {
        "one": lambda: list(one.map(inputs)),
        "two": lambda: list(two.map(inputs)),
    }
    if bare is not None:
        contestants["bare"] = bare
    seconds = interleaved(contestants, rounds=5)
    claim = f"{_BUSY_CALLS} evaluations of 50 ms, 2 replicas, {name}"
    note = f"{seconds['one'] / seconds['two']:.2f} × the throughput; the bar is 1.8 ×"
    rows = [Row(claim, seconds["two"], seconds["one"], "1 replica", bar=1 / 1.8, note=note)]
    if bare is not None:
        rows.append(Row(claim, seconds["two"], seconds["bare"], "2 bare actors"))
    return rows


def _call(component: Component, actor: Any) -> Row:
    import ray

    seconds = interleaved(
        {
            "pool": lambda: component.apply(_SMALL),
            "bare": lambda: ray.get(actor.apply.remote(_SMALL)),
        },
        rounds=41,
        min_round_s=0.03,
    )
    return Row("call, pool on Ray", seconds["pool"], seconds["bare"], "bare actor call", bar=1.5)


def _large(component: Component, actor: Any) -> Row:
    import ray

    inputs = {"x": np.ones(4_000_000)}
    seconds = interleaved(
        {
            "pool": lambda: component.apply(inputs),
            "bare": lambda: ray.get(actor.apply.remote(inputs)),
        },
        rounds=9,
    )
    return Row("call with 32 MB, pool on Ray", seconds["pool"], seconds["bare"], "bare actor call")


def _ensemble(component: Component, actors: list[Any]) -> Row:
    import ray

    def bare() -> None:
        ray.get([actors[k % 2].apply.remote(_SMALL) for k in range(_ENSEMBLE)])

    def pool() -> None:
        for _ in component.map([_SMALL] * _ENSEMBLE):
            pass

    samples: dict[str, list[float]] = {"bare": [], "pool": []}
    for _ in range(3):
        for name, contestant in (("bare", bare), ("pool", pool)):
            start = time.perf_counter()
            contestant()
            samples[name].append(time.perf_counter() - start)
    seconds = {name: min(values) for name, values in samples.items()}
    note = f"{seconds['bare'] / seconds['pool']:.2f} × the throughput; the bar is 0.7 ×"
    claim = "10 000 small evaluations, 2 replicas on Ray"
    return Row(claim, seconds["pool"], seconds["bare"], "bare actor calls", bar=1 / 0.7, note=note)


if __name__ == "__main__":
    if "--inside" in sys.argv:
        print("\n" + json.dumps([asdict(row) for row in _run_inside()]))
    else:
        show(run())
