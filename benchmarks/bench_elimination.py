"""Jacobians by elimination against `jax.jacrev`, `jax.jacfwd` and, for stencils, asdex and bands by hand.

All contestants are jitted. Scalar tasks run under `vmap` over a batch, outside the Jacobian.
"""

from __future__ import annotations

import os

# One thread against one thread: the native kernel has one. Without these two, and what `run` says first, XLA
# has up to five: it runs the parts of a program side by side, and all of it beside the caller.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("NPROC", "1")

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._harness import Row, interleaved, show
from benchmarks._memory import keep_freed_memory
from chainrule.elimination import find_order, jacobian
from chainrule.elimination.examples import TASKS, Task

BATCHES = (512, 10_000)
SCALAR_TASKS = TASKS[:5]
_FEW = 16
"""Elements of a batch that are computed in no time: what is left is calling and returning."""
NATIVE_BARS = {
    "RoeFlux_1d": 1 / 3,
    "RobotArm_6DOF": 1 / 3,
    "HumanHeartDipole": 1 / 3,
    "PropaneCombustion": 1 / 2,
    "BlackScholes_Jacobian": 1 / 2,
}


def run() -> list[Row]:
    # A process each: where a hundred results go in a heap that others have left in pieces is chance, and
    # worth a tenth of the time, for every contestant.
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=_settle, max_tasks_per_child=1
    ) as processes:
        tables = [
            processes.submit(_of_scalars, measure, number, size)
            for number in range(len(SCALAR_TASKS))
            for measure, size in (*((_batched, b) for b in BATCHES), (_of_a_vector, BATCHES[-1]))
        ]
        rows = [row for table in tables for row in table.result()]
    _settle()
    for task in TASKS[len(SCALAR_TASKS) :]:
        rows += _of_arrays(task, BATCHES[0])
    return rows + _stencil(100_000) + _five_point(316)


def _of_scalars(measure: Callable[[Task, int], list[Row]], number: int, size: int) -> list[Row]:
    return measure(SCALAR_TASKS[number], size)


def _settle() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_freed_memory()


def _blocking(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(function(*arguments))


def _compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    """The compiled function and the seconds that tracing and compiling took."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def _batched(task: Task, size: int) -> list[Row]:
    """One array per entry of the Jacobian, for every contestant: returning each costs about a microsecond."""
    point = task.arguments()
    argnums = tuple(range(len(point)))
    noise = jax.random.uniform(jax.random.key(0), (len(point), size), minval=0.9, maxval=1.1)
    batch = tuple(value * noise[k] for k, value in enumerate(point))
    order = find_order(task.function, *point, objective="nontrivial", budget_s=1.0)
    ways = {
        "jacrev": jax.jacrev(task.function, argnums),
        "jacfwd": jax.jacfwd(task.function, argnums),
        "reverse": jacobian(task.function, argnums, order="reverse", backend="xla"),
        "forward": jacobian(task.function, argnums, order="forward", backend="xla"),
        "searched": jacobian(task.function, argnums, order=order, backend="xla"),
        "native": jacobian(task.function, argnums, order=order, backend="native"),
        "filling": jacobian(_linear(task), argnums, order="reverse", backend="native"),
    }
    made = {name: _compiled(jax.vmap(way), batch) for name, way in ways.items()}
    few = tuple(value[:_FEW] for value in batch)
    returning, _ = _compiled(jax.vmap(ways["native"]), few)
    calls = {name: _blocking(f, *batch) for name, (f, _) in made.items()}
    calls["returning"] = _blocking(returning, *few)
    through_xla = {name: calls.pop(name) for name in ("reverse", "forward", "searched")}
    peers = {name: calls[name] for name in ("jacrev", "jacfwd")}
    native, xla = interleaved(calls), interleaved(peers | through_xla)
    setup = {name: seconds for name, (_, seconds) in made.items()}
    label = f"{task.name}, batch {size}"
    is_largest = size == BATCHES[-1]
    rows = [
        Row(
            f"{label}: order reverse", xla["reverse"], xla["jacrev"], "jax.jacrev", 1.1,
            note=_compile_note(setup, "reverse"),
        ),
        Row(
            f"{label}: order forward", xla["forward"], xla["jacfwd"], "jax.jacfwd", 1.1,
            note=_compile_note(setup, "forward"),
        ),
        Row(
            f"{label}: searched order", xla["searched"], _better(xla), "better of jacrev, jacfwd", 1.05,
            note=f"{order.cost} nontrivial multiplications, found in {order.seconds:.2g} s; "
            + _compile_note(setup, "searched"),
        ),
        Row(
            f"{label}: native kernel", native["native"], _better(native), "better of jacrev, jacfwd",
            NATIVE_BARS[task.name] if is_largest else 1.05, note=_compile_note(setup, "native"),
        ),
        Row(
            f"{label}: native kernel", native["native"], native["filling"],
            "arrays filled with constants",
        ),
    ]  # fmt: skip
    if is_largest:
        rows += [
            Row(
                f"{label}: filling the arrays with constants",
                native["filling"],
                _better(native),
                "better of jacrev, jacfwd",
                note="by a native kernel that computes nothing: none that writes them is below",
            ),
            Row(
                f"{label}: returning the arrays alone",
                native["returning"],
                _better(native),
                "better of jacrev, jacfwd",
                note=f"the native kernel on {_FEW} of them: no kernel is below",
            ),
            Row(f"{label}: compile, reverse", setup["reverse"], setup["jacrev"], "jax.jacrev", 3.0),
            Row(f"{label}: compile, forward", setup["forward"], setup["jacfwd"], "jax.jacfwd", 3.0),
        ]
    return rows


def _better(times: dict[str, float]) -> float:
    return min(times["jacrev"], times["jacfwd"])


def _of_arrays(task: Task, size: int) -> list[Row]:
    """A task whose arguments are arrays, under `vmap`."""
    point = task.arguments()
    argnums = tuple(range(len(point)))
    factors = jnp.linspace(0.9, 1.1, size)
    batch = tuple(
        jnp.asarray(value) * factors.reshape(size, *(1,) * jnp.ndim(value)) for value in point
    )
    rows = []
    for order, peer in (("reverse", jax.jacrev), ("forward", jax.jacfwd)):
        ours, our_setup = _compiled(
            jax.vmap(jacobian(task.function, argnums, order=order, backend="xla")), batch
        )
        theirs, their_setup = _compiled(jax.vmap(peer(task.function, argnums)), batch)
        times = interleaved({"ours": _blocking(ours, *batch), "theirs": _blocking(theirs, *batch)})
        label, name = f"{task.name}, batch {size}", f"jax.{peer.__name__}"
        note = f"trace and compile {our_setup:.2g} s"
        rows += [
            Row(f"{label}: order {order}", times["ours"], times["theirs"], name, 1.1, note=note),
            Row(f"{label}: compile, {order}", our_setup, their_setup, name, 3.0),
        ]
    return rows


def _compile_note(setup: dict[str, float], name: str) -> str:
    return f"trace and compile {setup[name]:.2g} s"


def _linear(task: Task) -> Callable[..., tuple[jax.Array, ...]]:
    """As many arguments and results as a task; its Jacobian is constant, and every entry another one."""
    point = task.arguments()
    count = len(jax.eval_shape(task.function, *point))

    def function(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            sum(
                ((row * len(point) + k + 1.0) * value for k, value in enumerate(arguments)),
                start=jnp.float32(0),
            )
            for row in range(count)
        )

    return function


def _of_a_vector(task: Task, size: int) -> list[Row]:
    """The task as a function of one vector: the Jacobian is one array, and one foreign call fills it.

    Against the same function under JAX, and against the function of scalars, whose Jacobian XLA computes
    faster: as one array per entry.
    """
    point = jnp.stack(task.arguments())
    argnums = tuple(range(len(point)))

    def stacked(scalars: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.stack(scalars(*(x[k] for k in range(len(point)))))

    function = stacked(task.function)
    noise = jax.random.uniform(jax.random.key(0), (size, len(point)), minval=0.9, maxval=1.1)
    batch = point * noise
    order = find_order(function, point, objective="nontrivial", budget_s=1.0)
    ways = {
        "jacrev": jax.jacrev(function),
        "jacfwd": jax.jacfwd(function),
        "native": jacobian(function, order=order, backend="native"),
        "filling": jacobian(stacked(_linear(task)), order="reverse", backend="native"),
    }
    made = {name: _compiled(jax.vmap(way), (batch,)) for name, way in ways.items()}
    calls = {name: _blocking(f, batch) for name, (f, _) in made.items()}
    columns = tuple(jnp.asarray(batch[:, k]) for k in argnums)
    for name, peer in (("jacrev", jax.jacrev), ("jacfwd", jax.jacfwd)):
        of_scalars, _ = _compiled(jax.vmap(peer(task.function, argnums)), columns)
        calls[f"{name} of scalars"] = _blocking(of_scalars, *columns)
    times = interleaved(calls)
    setup = {name: seconds for name, (_, seconds) in made.items()}
    label = f"{task.name} of a vector, batch {size}: native kernel"
    return [
        Row(
            label, times["native"], _better(times), "better of jacrev, jacfwd",
            NATIVE_BARS[task.name],
            note=f"order found in {order.seconds:.2g} s; " + _compile_note(setup, "native"),
        ),
        Row(
            label, times["native"],
            min(times["jacrev of scalars"], times["jacfwd of scalars"]),
            "better of jacrev, jacfwd of scalars", NATIVE_BARS[task.name],
            note="theirs is one array per entry",
        ),
        Row(label, times["native"], times["filling"], "the same array filled with constants"),
    ]  # fmt: skip


def _stencil(n: int) -> list[Row]:
    """The Bratu residual on a line."""
    import asdex

    scale = float(n) ** 2

    def residual(u: jax.Array) -> jax.Array:
        padded = jnp.pad(u, 1)
        return scale * (padded[2:] - 2 * u + padded[:-2]) + jnp.exp(u)

    def by_hand(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        return -2 * scale + jnp.exp(u), jnp.full(n - 1, scale)

    u = jnp.linspace(0.0, 1.0, n, dtype=jnp.float32)
    return _sparse_rows(f"tridiagonal residual, n = {n}", residual, by_hand, u, asdex)


def _five_point(side: int) -> list[Row]:
    """The Bratu residual on a square."""
    import asdex

    def residual(flat: jax.Array) -> jax.Array:
        u = flat.reshape(side, side)
        p = jnp.pad(u, 1)
        laplacian = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u
        return (laplacian + jnp.exp(u)).reshape(-1)

    def by_hand(u: jax.Array) -> jax.Array:
        return jnp.exp(u) - 4

    u = jnp.linspace(0.0, 1.0, side * side, dtype=jnp.float32)
    name = f"five-point residual, n = {side * side}"
    return _sparse_rows(name, residual, by_hand, u, asdex)


def _sparse_rows(
    name: str, residual: Callable[..., Any], by_hand: Callable[..., Any], u: jax.Array, asdex: Any
) -> list[Row]:
    start = time.perf_counter()
    coloring = asdex.jacobian_coloring(residual, u)
    peer = jax.jit(asdex.jacobian_from_coloring(residual, coloring))
    jax.block_until_ready(peer(u).data)
    peer_setup = time.perf_counter() - start
    start = time.perf_counter()
    ours = jax.jit(jacobian(residual, sparse=True))
    jax.block_until_ready(ours(u))
    our_setup = time.perf_counter() - start
    bcoo = jax.jit(lambda u: jacobian(residual, sparse=True)(u).to_bcoo())
    hand = jax.jit(by_hand)
    times = interleaved(
        {
            "ours": _blocking(ours, u),
            "ours as BCOO": lambda: jax.block_until_ready(bcoo(u).data),
            "asdex": lambda: jax.block_until_ready(peer(u).data),
            "by hand": _blocking(hand, u),
        }
    )
    setup = f"set-up {our_setup:.2g} s against {peer_setup:.2g} s"
    return [
        Row(f"{name}: bands", times["ours"], times["asdex"], "asdex", 1.0, note=setup),
        Row(f"{name}: as BCOO", times["ours as BCOO"], times["asdex"], "asdex", 1.0),
        Row(f"{name}: bands", times["ours"], times["by hand"], "written by hand"),
        Row(f"{name}: set-up", our_setup, peer_setup, "asdex", 1.0),
    ]


if __name__ == "__main__":
    show(run())
