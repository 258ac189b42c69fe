"""How costs grow with the work: each row is an exponent, where 1 means in proportion.

The work grows by a factor of about a thousand. The cost is the CPU time of this process for all of it, the
least of some runs and without Python's garbage collector, so that other programs on the machine count little.
The exponent is between the last two sizes: fixed costs, which hide the growth at first, count least there.
Rows with a peer have its exponent in the same run: compilations by XLA grow faster than the programs, with
and without this library.

`docs/explanation/scale.md` says what follows from the figures.
"""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from starlette.testclient import TestClient

import chainrule.stateful as cs
from benchmarks._harness import Row, show
from benchmarks._virtual_pool import CountedPlace, Situation, simulate
from chainrule import Component, apply_component, component
from chainrule.elimination import find_order, jacobian
from chainrule.elimination.internal import trace_function
from chainrule.harvest import save_intermediates, sow
from chainrule.runtime import Array, Differentiable, Float32
from chainrule.serve import ServeOptions, create_app
from chainrule.serve._jobs._files import FileJobStore
from chainrule.serve._jobs._store import JobRecord, body_digest

BAR = 1.1
_ENOUGH_S = 1.5

Cost = Callable[[int], Callable[[], object]]
"""Makes, for so much work, what is timed; what it needs is prepared first."""


def run() -> list[Row]:
    return [
        *_pools(), *_jobs(), *_mapping(), *_components(), *_parameters(), *_sows(), *_calls(), *_equations(),
    ]  # fmt: skip


def _cpu_s(work: Callable[[], object]) -> float:
    with _timed() as seconds:
        work()
    return seconds()


@contextlib.contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """The CPU time of a block. Python's garbage collector, which looks at all objects, is off meanwhile."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    spent = 0.0
    try:
        yield lambda: spent
    finally:
        spent = time.process_time() - start
        gc.enable()


def _times(cost: Cost, sizes: tuple[int, ...]) -> dict[int, float]:
    """The least CPU time of up to three runs at each size; of fewer where one takes seconds."""
    return {size: _least_s(cost, size) for size in sizes}


def _least_s(cost: Cost, size: int) -> float:
    found: list[float] = []
    while len(found) < 3 and sum(found) < _ENOUGH_S:
        found.append(_cpu_s(cost(size)))
    return min(found)


def _exponent(times: Mapping[int, float]) -> float:
    (few, of_few), (many, of_many) = list(times.items())[-2:]
    return math.log(of_many / of_few) / math.log(many / few)


def _row(claim: str, cost: Cost, sizes: tuple[int, ...]) -> Row:
    return _row_of(claim, _times(cost, sizes))


def _against(
    claim: str, times: Mapping[int, float], peer: str, of_peer: Mapping[int, float]
) -> Row:
    """The exponent of a cost, against that of a peer."""
    note = f"{_each(times)}; {peer}: {_each(of_peer)}"
    return Row(claim, _exponent(times), _exponent(of_peer), peer, unit="", note=note)


def _row_of(claim: str, times: Mapping[int, float], note: str = "") -> Row:
    """The exponent of a cost, against proportion."""
    exponent = _exponent(times)
    return Row(claim, exponent, 1.0, "in proportion", BAR, unit="", note=note or _each(times))


def _each(times: Mapping[int, float]) -> str:
    return "each " + ", ".join(f"{_shown(s / size)} (n = {size:,})" for size, s in times.items())


def _shown(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


# --- replicas, in virtual time ---------------------------------------------------------------------


def _pools() -> list[Row]:
    """Counted, not timed: how often anything of a replica is looked at."""
    rows = []
    for claim, settings in (
        ("ten calls to each of n replicas, 80 % busy: steps", {"load": 0.8}),
        ("… that get three times as much as they can answer", {"load": 3.0}),
        ("… of which half are gradients that prefer a replica", {"load": 0.8, "at_home": 0.5}),
    ):
        steps = {}
        for replicas in (100, 1000, 10_000):
            before = CountedPlace.looks
            simulate(Situation(replicas, 10 * replicas, **settings), CountedPlace)
            steps[replicas] = float(CountedPlace.looks - before)
        each = ", ".join(f"{count / n:.4g} (n = {n:,})" for n, count in steps.items())
        rows.append(_row_of(claim, steps, f"for each replica and its ten calls {each}"))
    return rows


# --- jobs ------------------------------------------------------------------------------------------


def _jobs() -> list[Row]:
    def all_of_them(count: int) -> Callable[[], object]:
        def work() -> None:
            with _job_store() as store:
                _fill(store, count)

        return work

    def with_many(count: int) -> Callable[[], object]:
        stack = contextlib.ExitStack()
        store = stack.enter_context(_job_store())
        _fill(store, count)

        def work() -> None:
            with stack:
                for _ in range(20):
                    store.counts()

        return work

    return [
        _row(
            "n jobs that all wait, then start and end (SQLite)",
            all_of_them,
            (100, 1000, 10_000, 100_000),
        ),
        _row("the states of n jobs counted, for /metrics", with_many, (100, 1000, 10_000)),
    ]


class _Nobody:
    """Hears what a store tells its server."""

    def work_came(self) -> None: ...
    def job_changed(self, job_id: str) -> None: ...
    def cancel_asked(self, job_id: str) -> None: ...
    def lease_lost(self, job_id: str) -> None: ...


@contextlib.contextmanager
def _job_store() -> Iterator[FileJobStore]:
    """In memory, where that is possible: the time of disks is not what is measured."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        store = FileJobStore(Path(folder), retention_s=3600.0, max_bytes=1 << 30)
        store.open(_Nobody(), {"solver"})
        try:
            yield store
        finally:
            store.close()


def _fill(store: FileJobStore, count: int) -> None:
    """All jobs wait, then each is taken, started and ended."""
    blank = JobRecord(
        component="solver", endpoint="apply", run_id="", content_type="application/json",
        body_digest=body_digest(b"{}"),
    )  # fmt: skip
    for number in range(count):
        record = replace(blank, id=f"{number:024x}", idempotency_key=str(number))
        store.add(record, b"{}", max_waiting=count)
    for _ in range(count):
        taken = store.take("solver")
        assert taken is not None
        store.finish(replace(store.start(taken), state="succeeded"), [b"{}"])


# --- calls of one component, and components of one server ------------------------------------------


def _doubling() -> Any:
    @component
    def double(x: Differentiable[Array[(2,), Float32]]) -> Differentiable[Array[(2,), Float32]]:
        return 2 * x

    return double


def _mapping() -> list[Row]:
    handle = Component.from_api(_doubling())
    x = np.ones(2, np.float32)

    def many(count: int) -> Callable[[], object]:
        return lambda: deque(handle.map([{"x": x}] * count), maxlen=0)

    return [_row("Component.map over n inputs", many, (100, 1000, 10_000, 100_000))]


def _components() -> list[Row]:
    starts, scrapes = {}, {}
    for count in (10, 100, 1000):
        functions = [_named(number) for number in range(count)]
        options = ServeOptions(workers=0, same_host=False)
        with contextlib.ExitStack() as stack:
            with _timed() as seconds:
                app = create_app(functions, options=options)
                client = stack.enter_context(TestClient(app, base_url="http://localhost"))
            starts[count] = seconds()
            for number in range(count):
                client.post(f"/c/double-{number}/apply", json={"inputs": {"x": 1.0}})
            scrapes[count] = min(_cpu_s(partial(client.get, "/metrics")) for _ in range(3))
    return [
        _row_of("a server with n components starts", starts),
        _row_of("… /metrics, each component called once", scrapes),
    ]


def _named(number: int) -> Any:
    @component(name=f"double-{number}")
    def double(x: float) -> float:
        return 2 * x

    return double


# --- programs --------------------------------------------------------------------------------------


class _Model(cs.Module):
    def __init__(self, count: int) -> None:
        self.params = [cs.Param(jnp.ones(4)) for _ in range(count)]


def _parameters() -> list[Row]:
    def tracked(count: int) -> Callable[[], object]:
        @cs.jit
        def step(*, model: _Model) -> None:
            for param in model.params:
                param.set(0.9 * param.get())

        model = _Model(count)
        return lambda: step(model=model)

    def plain(count: int) -> Callable[[], object]:
        step = jax.jit(lambda values: [0.9 * value for value in values])
        values = [jnp.ones(4) for _ in range(count)]
        return lambda: step(values)

    def measured(make: Cost) -> tuple[dict[int, float], dict[int, float]]:
        first, later = {}, {}
        for count in (100, 1000, 10_000):
            step = make(count)
            first[count] = _cpu_s(step)
            later[count] = min(_cpu_s(step) for _ in range(5))
        return first, later

    (first, later), (first_of_peer, later_of_peer) = measured(tracked), measured(plain)
    return [
        _against("stateful.jit with n parameters: first call", first, "jax.jit", first_of_peer),
        _against("… later calls", later, "jax.jit", later_of_peer),
    ]


def _sows() -> list[Row]:
    def network(count: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for number in range(count):
                x = sow(jnp.sin(x) + 0.1, f"layer-{number}")
            return jnp.sum(x)

        return run

    def captured(count: int) -> Callable[[], object]:
        function = save_intermediates(network(count))
        return lambda: function(jnp.ones(4))

    def by_hand(count: int) -> Callable[[], object]:
        def run(x: Any) -> Any:
            values = []
            for _ in range(count):
                x = jnp.sin(x) + 0.1
                values.append(x)
            return jnp.sum(x), values

        return lambda: jax.jit(run)(jnp.ones(4))

    def traced(count: int) -> Callable[[], object]:
        return lambda: jax.make_jaxpr(save_intermediates(network(count)))(jnp.ones(4))

    return [
        _row("save_intermediates of n sows: trace", traced, (10, 100, 1000)),
        _against(
            "… trace, compilation and first run", _times(captured, (10, 100, 1000)),
            "jax.jit that returns all", _times(by_hand, (10, 100, 200)),
        ),
    ]  # fmt: skip


def _calls() -> list[Row]:
    double = _doubling()

    def program(count: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(count):
                x = apply_component(double, {"x": x})["result"]
            return jnp.sum(x)

        return run

    def traced(count: int) -> Callable[[], object]:
        x = jnp.ones(2, jnp.float32)
        return lambda: jax.make_jaxpr(program(count))(x)

    return [_row("a program with n calls of components: trace", traced, (5, 50, 500))]


def _equations() -> list[Row]:
    def chain(count: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            a, b = x[0], x[1]
            for _ in range(count // 2):
                a, b = b * a, jnp.sin(a)
            return jnp.stack([a, b])

        return run

    x = jnp.ones(2)

    def traced(count: int) -> Callable[[], object]:
        return lambda: trace_function(chain(count), (0,), (x,), {})

    def ordered(count: int) -> Callable[[], object]:
        return lambda: find_order(chain(count), x, budget_s=0)

    def eliminated(count: int) -> Callable[[], object]:
        return lambda: jax.make_jaxpr(jacobian(chain(count), method="elimination"))(x)

    sizes = (100, 1000, 10_000)
    return [
        _row("elimination of n equations: trace", traced, sizes),
        _row("… find_order(budget_s=0)", ordered, sizes),
        _row("… jacobian(method='elimination'), without XLA", eliminated, sizes),
    ]


if __name__ == "__main__":
    show(run())
