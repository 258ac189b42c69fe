"""Jacobians with `method="auto"` against every candidate it chooses from, each in its own compiled program.

The tasks of the literature under `vmap`, as scalars and as one vector, and functions for which each of
the candidates is the right answer. What `auto` chose stands in the note, with its set-up: search, trace,
compile.

Most of the time `auto` compiles, instruction for instruction, the program of its choice. Two copies of one
program differ by up to a tenth, by where their memory happens to lie; so copies share their fastest turn.
"""

from __future__ import annotations

import os

# One thread against one thread: the native kernel has one.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._harness import Row, show
from benchmarks._memory import keep_freed_memory
from chainrule.elimination import explain_jacobian, jacobian
from chainrule.elimination.examples import TASKS

_LIMIT = 1.05
_ROUNDS = 40


@dataclass(frozen=True)
class _Case:
    name: str
    function: Callable[..., Any]
    point: tuple[Any, ...]
    batch: int | None = None

    @property
    def argnums(self) -> tuple[int, ...]:
        return tuple(range(len(self.point)))

    @property
    def arguments(self) -> tuple[Any, ...]:
        if self.batch is None:
            return self.point
        factors = jnp.linspace(0.9, 1.1, self.batch)
        return tuple(
            jnp.asarray(x)[None] * factors.reshape(self.batch, *(1,) * jnp.ndim(x))
            for x in self.point
        )

    def compiled(self, **settings: Any) -> tuple[Callable[[], Any], float, str]:
        """The compiled call, the seconds it took to make it, and its instructions."""
        function = jacobian(self.function, self.argnums, **settings)
        mapped = function if self.batch is None else jax.vmap(function)
        start = time.perf_counter()
        ready = jax.jit(mapped).lower(*self.arguments).compile()
        seconds = time.perf_counter() - start
        arguments = self.arguments
        return lambda: jax.block_until_ready(ready(*arguments)), seconds, _instructions(ready)


def _instructions(compiled: Any) -> str:
    """A program without what says where in Python it comes from."""
    text = re.sub(r", metadata=\{[^}]*\}", "", compiled.as_text())
    return re.split(r"^(?=%|ENTRY)", text, maxsplit=1, flags=re.M)[-1]


def _as_vector(function: Callable[..., Any], count: int) -> Callable[[Any], Any]:
    return lambda x: jnp.stack(function(*(x[k] for k in range(count))))


def _cases() -> Iterator[_Case]:
    for task in TASKS[:5]:
        point = task.arguments()
        for batch in (512, 10_000):
            yield _Case(f"{task.name}, batch {batch}", task.function, point, batch)
        vector = (jnp.stack(point),)
        yield _Case(
            f"{task.name} of a vector, batch 10000",
            _as_vector(task.function, len(point)), vector, 10_000,
        )  # fmt: skip
    for task in TASKS[5:]:
        yield _Case(task.name, task.function, task.arguments())
    yield _Case("network 64-128-128-10", _network(), (jnp.linspace(-1, 1, 64),))
    yield _Case("Bratu residual, n = 1000", _bratu, (jnp.linspace(0.0, 1.0, 1000),))
    yield _Case("loop of 200 steps, 300 → 300", _loop, (jnp.linspace(0.1, 1.0, 300),))
    yield _Case(
        "loop of 200 steps, 300 → 1", lambda x: _loop(x).sum(), (jnp.linspace(0.1, 1, 300),)
    )
    yield _Case("R^4 → R^1000", _wide, (jnp.ones(4),))


def _network() -> Callable[[Any], Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((128, 64), (128, 128), (10, 128))
    weights = [jax.random.normal(k, size) / 10 for k, size in zip(keys, sizes, strict=True)]

    def network(x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(weight @ x)
        return x

    return network


def _bratu(u: Any) -> Any:
    padded = jnp.pad(u, 1)
    return 1e6 * (padded[2:] - 2 * u + padded[:-2]) + jnp.exp(u)


def _loop(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=200)[0]


def _wide(x: Any) -> Any:
    return jnp.sin(jnp.outer(jnp.arange(1000.0), x)).sum(axis=1)


def _fastest(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The fastest turn of every contestant: on a shared machine the minimum is what the code takes."""
    repeats = {}
    for name, call in contestants.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(50, int(2e-3 / (time.perf_counter() - start))))
    best = dict.fromkeys(contestants, float("inf"))
    turns = list(contestants.items())
    shuffled = random.Random(0)
    for _ in range(_ROUNDS):
        # Which contestant follows a program that fragments the memory is a matter of luck.
        shuffled.shuffle(turns)
        for name, call in turns:
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return best


def run() -> list[Row]:
    keep_freed_memory()
    rows = []
    for case in _cases():
        auto, setup, chosen = case.compiled()
        ways, copies = {"auto": auto}, ["auto"]
        found = explain_jacobian(case.function, *case.point, argnums=case.argnums).candidates
        for candidate in found:
            settings = {"method": candidate.method, "backend": candidate.backend}
            if candidate.method == "elimination" or candidate.backend == "xla":
                ways[candidate.name], _, program = case.compiled(**settings)
                copies += [candidate.name] * (program == chosen)
        times = _fastest(ways)
        times |= dict.fromkeys(copies, min(times[name] for name in copies))
        best = min(times.keys() - {"auto"}, key=times.__getitem__)
        others = ", ".join(f"{n} {s * 1e6:.0f}" for n, s in times.items() if n != "auto")
        rows.append(
            Row(
                f"{case.name}: auto", times["auto"], times[best], f"best candidate: {best}", _LIMIT,
                note=f"{_same(copies[1:])}set-up {setup:.2g} s; µs: {others}",
            )
        )  # fmt: skip
    return rows


def _same(names: list[str]) -> str:
    return f"the program of {names[0]}; " if names else ""


if __name__ == "__main__":
    show(run())
