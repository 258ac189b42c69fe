"""What operating costs and saves: cancelling, residuals, merged calls, a cached result, a job."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks._harness import Row, interleaved, show
from chainrule.client import Component

_CALLERS = 16
_COMPONENT = """
import contextlib
import time

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64, WithResiduals

batching = "leading"


class InputSchema(BaseModel):
    x: Differentiable[Array[("n", 2), Float64]]
    stuck: bool = False


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n", 2), Float64]]


def apply(inputs):
    '''Ten milliseconds, however many rows: a kernel launch, a solver's set-up.'''
    while inputs.stuck:
        with contextlib.suppress(BaseException):
            time.sleep(3600)
    time.sleep(0.01)
    return WithResiduals({"y": np.sin(inputs.x)}, residuals=np.cos(inputs.x))


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
    return {"x": residuals * cotangent_vector["y"]}
"""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "slow.py"
        source.write_text(_COMPONENT)
        return [
            _cancelling(source),
            _residuals(source),
            _merging(source),
            _cache(source),
            _job(source),
        ]


@contextmanager
def _served(source: Path, *flags: str) -> Iterator[Component]:
    command = [sys.executable, "-m", "chainrule", "serve", source.name, "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--grace", "1", *flags],
        cwd=source.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        try:
            with Component.from_url(url, share_memory=False) as component:
                yield component
        finally:
            process.terminate()


def _cancelling(source: Path) -> Row:
    """Seconds from asking for the end of a job that swallows every exception until its worker is free."""
    samples = []
    with _served(source) as component:
        for _ in range(5):
            job = component.submit("apply", {"x": np.ones((1, 2)), "stuck": True})
            while job.status != "running":
                time.sleep(0.01)
            start = time.perf_counter()
            job.cancel()
            samples.append(time.perf_counter() - start)
    return Row(
        "cancel frees the worker, code that never returns",
        statistics.median(samples), 1.0, "one second", bar=1.0,
        note="asked to stop, killed after half a second; then a new process loads the component",
    )  # fmt: skip


def _residuals(source: Path) -> Row:
    x, cotangent = np.ones((4, 2)), {"y": np.ones((4, 2))}
    with _served(source, "--workers", "2") as component:
        component.apply({"x": x})
        seconds = interleaved(
            {
                "kept": lambda: component.vector_jacobian_product(
                    {"x": x}, ["x"], ["y"], cotangent
                ),
                "forward": lambda: component.apply({"x": x}),
            }
        )
    return Row(
        "VJP after apply, two workers", seconds["kept"], seconds["forward"],
        "the forward pass it does not run", note="forward pass of 10 ms",
    )  # fmt: skip


def _merging(source: Path) -> Row:
    with (
        _served(source, "--merge-up-to", "16") as merged,
        _served(source) as single,
        ThreadPoolExecutor(_CALLERS) as threads,
    ):

        def load(component: Component) -> Callable[[], object]:
            inputs = [{"x": np.full((1, 2), float(k))} for k in range(_CALLERS)]
            return lambda: list(threads.map(component.apply, inputs))

        seconds = interleaved({"merged": load(merged), "single": load(single)}, rounds=7)
    return Row(
        f"{_CALLERS} concurrent callers, calls merged", seconds["merged"], seconds["single"],
        "one by one, one worker", note="10 ms per evaluation, however many rows",
    )  # fmt: skip


def _cache(source: Path) -> Row:
    x = np.ones((1000, 2))
    with _served(source, "--cache", "*") as cached, _served(source) as plain:
        seconds = interleaved(
            {"hit": lambda: cached.apply({"x": x}), "run": lambda: plain.apply({"x": x})}
        )
    return Row("result from the cache, 16 kB", seconds["hit"], seconds["run"], "a run of 10 ms")


def _job(source: Path) -> Row:
    x = np.ones((1, 2))
    with _served(source) as component:
        seconds = interleaved(
            {
                "job": lambda: component.submit("apply", {"x": x}).result(),
                "call": lambda: component.apply({"x": x}),
            },
            rounds=7,
        )
    return Row(
        "a job, submitted, followed and fetched", seconds["job"], seconds["call"], "a plain call",
        note="on disk before it is acknowledged, before it runs and before it is over",
    )  # fmt: skip


if __name__ == "__main__":
    show(run())
