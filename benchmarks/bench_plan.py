"""Jacobians of pipelines: products and time of plans, of JAX's sweeps and of local Jacobians.

The floor of a chain in which all products cost the same has a closed form: every site costs at least the
smallest size of the chain, because the Jacobian of what is before it, or behind it, has that rank; and with
columns to the right of the smallest array and rows to the left of it no site costs more.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _servers
from benchmarks._harness import Row, interleaved, show
from chainrule import apply_component
from chainrule.client import Component
from chainrule.elimination import jacobian, plan_jacobian
from chainrule.elimination._planning._network import Network, SiteNodes
from chainrule.elimination._planning._prices import SitePrices
from chainrule.elimination._planning._search import find_steps, sweeps

TABLE = [(3, 5, 5), (8, 2, 8), (6, 6, 1, 6, 6), (2, 9, 9, 3), (9, 3, 9, 2, 9), (9, 1, 5, 8, 2, 8)]
"""The chains of the literature."""

SLOW = """
import time
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

MATRIX = np.random.default_rng({seed}).normal(size=({m}, {n}))

class InputSchema(BaseModel):
    x: Differentiable[Array[({n},), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[({m},), Float64]]

def apply(inputs):
    return {{"y": MATRIX @ inputs.x}}

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    time.sleep({seconds})
    return {{"y": MATRIX @ tangent_vector["x"]}}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    time.sleep({seconds})
    return {{"x": cotangent_vector["y"] @ MATRIX}}
"""


def run() -> list[Row]:
    """All rows."""
    return [*_products(), *_planning_time(), *_served()]


def _chain(sizes: Sequence[int]) -> Network:
    sites = [
        SiteNodes(f"site {number}", (number,), (number + 1,), SitePrices())
        for number in range(len(sizes) - 1)
    ]
    return Network(tuple(sizes), (0,) * len(sizes), tuple(sites), (0,), (len(sizes) - 1,))


def _products() -> Iterator[Row]:
    rng = random.Random(0)
    drawn = [[rng.randint(1, 50) for _ in range(rng.randint(3, 9))] for _ in range(200)]
    for claim, chains in (("the chains of the literature", TABLE), ("200 random chains", drawn)):
        ratios = [find_steps(_chain(s)).price / ((len(s) - 1) * min(s)) for s in chains]
        yield Row(f"products for {claim}, largest ratio", max(ratios), 1.0, "optimum", 1.0, "")
    ratios = []
    for _ in range(100):
        network = random_graph(rng, rng.randint(2, 12))
        known = sweeps(network)
        least = min(sum(s.price for s in known[name]) for name in ("jacfwd", "jacrev"))
        ratios.append(find_steps(network).price / least)
    note = f"median {np.median(ratios):.2f}"
    yield Row(
        "products for 100 random graphs of 2-12 sites, largest ratio", max(ratios), 1.0,
        "better of jacfwd and jacrev", 1.0, "", note,
    )  # fmt: skip


def random_graph(rng: random.Random, count: int) -> Network:
    """Sites that read one or two of the last arrays; what nothing reads is an output."""
    sizes = [rng.randint(1, 50)]
    sites = []
    for number in range(count):
        pool = range(max(0, len(sizes) - 4), len(sizes))
        read = tuple(sorted(rng.sample(pool, min(len(pool), rng.choice([1, 1, 2])))))
        sites.append(SiteNodes(f"site {number}", read, (len(sizes),), SitePrices()))
        sizes.append(rng.randint(1, 50))
    read_somewhere = {node for site in sites for node in site.operands}
    outputs = tuple(node for node in range(1, len(sizes)) if node not in read_somewhere)
    return Network(tuple(sizes), (0,) * len(sizes), tuple(sites), (0,), outputs)


def _planning_time() -> Iterator[Row]:
    rng = random.Random(1)
    cases = {
        "planning a chain of 10 sites": (_chain([rng.randint(1, 50) for _ in range(11)]), 5e-3),
        "planning a graph of 10 sites": (random_graph(rng, 10), 5e-3),
        "planning a chain of 100 sites": (_chain([rng.randint(1, 50) for _ in range(101)]), 0.2),
        "planning a graph of 30 sites": (random_graph(rng, 30), 1.0),
    }
    for claim, (network, limit) in cases.items():
        seconds = min(_seconds(lambda network=network: find_steps(network)) for _ in range(5))
        yield Row(claim, seconds, limit, "limit", 1.0)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _served() -> Iterator[Row]:
    """Products of 2 ms over HTTP; 40 numbers become 3 and 40 again."""
    with contextlib.ExitStack() as stack, jax.enable_x64(True):
        stages = _serve(stack, (40, 40, 3, 40))

        def f(x: jax.Array) -> jax.Array:
            for stage in stages:
                x = apply_component(stage, {"x": x}, max_concurrency=1)["y"]
            return x

        x = jnp.linspace(0.0, 1.0, 40)
        plan = plan_jacobian(f)(x)
        ways: dict[str, Callable[..., Any]] = {
            "us": jax.jit(jacobian(f)),
            "jacfwd": jax.jit(jax.jacfwd(f)),
            "jacrev": jax.jit(jax.jacrev(f)),
            "every local Jacobian": jax.jit(jacobian(f, method="elimination")),
        }
        expected = ways["jacrev"](x)
        for way in ways.values():
            np.testing.assert_allclose(way(x), expected, rtol=1e-9)
        found = interleaved(
            {name: lambda way=way: jax.block_until_ready(way(x)) for name, way in ways.items()},
            rounds=5,
        )
        claim = "Jacobian over three served components, 40-40-3-40, 2 ms per product"
        for name in ("jacfwd", "jacrev", "every local Jacobian"):
            yield Row(claim, found["us"], found[name], name, 0.5, note=f"{plan.products} products")
        yield _with_workers(stack)


def _with_workers(stack: contextlib.ExitStack) -> Row:
    stages = _serve(stack, (60, 30, 60))

    def f(x: jax.Array) -> jax.Array:
        inner = apply_component(stages[0], {"x": x})["y"]
        return apply_component(stages[1], {"x": inner})["y"]

    x = jnp.linspace(0.0, 1.0, 60)
    plans = {workers: plan_jacobian(f, workers=workers, objective="time")(x) for workers in (1, 2)}
    found = interleaved(
        {
            str(workers): lambda plan=plan: jax.block_until_ready(plan.execute(x))
            for workers, plan in plans.items()
        },
        rounds=9,
    )
    note = f"estimated {plans[2].makespan / plans[1].makespan:.2f}"
    claim = "the two halves of 60-30-60, 2 ms per product, with two workers"
    return Row(claim, found["2"], found["1"], "one worker", 0.6, note=note)


def _serve(stack: contextlib.ExitStack, sizes: Sequence[int]) -> list[Component]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    components = []
    for number, (n, m) in enumerate(pairwise(sizes)):
        path = folder / f"stage{number}.py"
        path.write_text(SLOW.format(n=n, m=m, seed=number, seconds=0.002))
        port = stack.enter_context(_servers.ours(path, 2))
        components.append(stack.enter_context(Component.from_url(f"http://127.0.0.1:{port}")))
    return components


if __name__ == "__main__":
    show(run())
