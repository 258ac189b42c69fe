"""`make demo`: check the gradient, optimise the board and watch it, leave a plot and a report."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from chainrule import apply_component, save_intermediates, sow, view, watch
from chainrule.view import Watch
from examples.demo import _report
from examples.demo._programs import Programs, started

jax.config.update("jax_enable_x64", True)

COPPER_BUDGET = 3.0  # W/(m·K), averaged over the board
PATCHES = 9

_NEXT = """
Next:
  read      examples/demo/__main__.py: the pipeline is ten lines; change COPPER_BUDGET and run again
  click     {bin}/chainrule serve examples/demo/layout/component.py, then open http://127.0.0.1:8000
  package   {bin}/chainrule init my_program: your own, from a template"""


def starting_design() -> dict[str, jax.Array]:
    """Equal patches, one under every chip: what one would do without a gradient."""
    places = jnp.array([0.25, 0.5, 0.75])
    rows, columns = jnp.meshgrid(places, places, indexing="ij")
    return {
        "centres": jnp.stack([rows.ravel(), columns.ravel()], axis=1),
        "widths": jnp.full(PATCHES, 0.1),
        "amounts": jnp.full(PATCHES, 4.9),
    }


def run_pipeline(programs: Programs, design: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
    """The cost of a design, and what the programs said on the way."""
    board = sow(apply_component(programs.layout, design), "board")
    thermal = sow(
        apply_component(programs.heat, {"conductivity": board["conductivity"]}), "thermal"
    )
    wear = apply_component(programs.reliability, {"temperatures": thermal["chips"]})
    rates = sow(wear["rates"], "rates")
    with jax.named_scope("copper budget"):
        too_much = jax.nn.softplus(20 * (board["copper"] / COPPER_BUDGET - 1))
    with jax.named_scope("rim of the board"):
        outside = 100 * jnp.sum(jnp.maximum(jnp.abs(design["centres"] - 0.5) - 0.5, 0.0) ** 2)
    with jax.named_scope("cost"):
        cost = jnp.log(jnp.sum(rates)) + too_much + outside
    return cost, {**board, **thermal, "rates": rates, "design": design}


def check_gradient(
    cost: Any, design: dict[str, jax.Array], gradient: dict[str, jax.Array]
) -> tuple[float, float]:
    """A directional derivative by the chain rule and by central differences."""
    flat, rebuild = jax.flatten_util.ravel_pytree(design)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=flat.size))
    slopes, _ = jax.flatten_util.ravel_pytree(gradient)
    step = 1e-5
    up, down = (cost(rebuild(flat + sign * step * direction)) for sign in (1, -1))
    return float(slopes @ direction), float((up - down) / (2 * step))


def optimise(
    programs: Programs, design: dict[str, Any], steps: int
) -> tuple[dict[str, Any], Watch]:
    """Adam on the whole pipeline, watched."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.01, steps))
    scale = {"centres": 1.0, "widths": 0.5, "amounts": 30.0}
    state = optimiser.init(design)
    pipeline = jax.value_and_grad(partial(run_pipeline, programs), has_aux=True)
    step = save_intermediates(pipeline)
    watched = watch("One gradient over four programs")
    with watched, Progress(transient=True) as progress:
        for k in progress.track(range(steps + 1), description="optimising"):
            ((value, board), gradient), seen = step(design)
            fields = {name: board[name] for name in ("conductivity", "temperature")}
            watched(
                k, cost=value, gradients=_cotangents(gradient, seen), inputs=design, fields=fields
            )
            if k < steps:
                updates, state = optimiser.update(gradient, state)
                design = _within_bounds({n: design[n] + scale[n] * updates[n] for n in design})
    return design, watched


def _cotangents(gradient: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """What comes back to each program: the cotangent of its result, and at last that of the design."""
    back = {name: entry["cotangent"] for name, entry in seen.items()}
    return {
        "reliability (rates)": back["rates"],
        "heat (chip temperatures)": back["thermal"]["chips"],
        "layout (conductivity)": back["board"]["conductivity"],
        "design": gradient,
    }


def _within_bounds(design: dict[str, Any]) -> dict[str, Any]:
    return {
        **design,
        "widths": jnp.clip(design["widths"], 0.05, 0.4),
        "amounts": jnp.maximum(design["amounts"], 0.0),
    }


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="gradient steps (default 60)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where to write")
    options = parser.parse_args()
    console = Console()
    with contextlib.ExitStack() as stack:
        with console.status("starting three programs"):
            programs = stack.enter_context(started())
        result = study(programs, options.steps, console)
    commands = os.path.relpath(Path(sys.executable).parent)
    plot, page = _report.write(result, options.output, commands=commands)
    console.print(f"\nplot    {plot.resolve()}\nreport  {page.resolve()}", soft_wrap=True)
    console.print(_NEXT.format(bin=commands), soft_wrap=True, highlight=False)


def study(programs: Programs, steps: int, console: Console) -> _report.Result:
    """Check, optimise, look inside."""

    def cost(design: dict[str, Any]) -> jax.Array:
        return run_pipeline(programs, design)[0]

    design = starting_design()
    _introduce(programs, console)
    gradient = jax.grad(cost)(design)
    chain, differences = check_gradient(cost, design, gradient)
    apart = abs(chain - differences) / abs(differences)
    console.print(
        f"gradient  {chain:.8g} by the chain rule, {differences:.8g} by differences: {apart:.0e} apart"
    )
    began = time.perf_counter()
    best, watched = optimise(programs, design, steps)
    costs = [frame.cost for frame in watched.frames]
    result = _report.Result(
        before=run_pipeline(programs, design)[1],
        after=run_pipeline(programs, best)[1],
        gradient=gradient,
        costs=costs,
        check=(chain, differences),
        seconds=time.perf_counter() - began,
        compiler=programs.compiler,
        code=inspect.getsource(run_pipeline),
        run=watched.html(),
        pipeline=view.gradient_flow(cost, best, measure=True).html(),
    )
    console.print(
        f"cost      {costs[0]:.4g} → {costs[-1]:.4g} in {steps} steps, {result.seconds:.1f} s"
    )
    for name, change in result.headlines().items():
        console.print(f"{name}: {change}")
    return result


def _introduce(programs: Programs, console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("layout", "NumPy, derivatives by hand", f"served at {programs.url}")
    table.add_row("heat", "SciPy solver, adjoint", "in a process of its own")
    table.add_row("reliability", "C, finite differences", programs.compiler)
    table.add_row("cost", "plain JAX", "here")
    console.print("One gradient over four programs:", table, "")


if __name__ == "__main__":
    main()
