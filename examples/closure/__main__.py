"""A network in torch learns what a coarse solver does not resolve."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import chainrule
from chainrule import Component, apply_component
from examples._running import compare_gradient, read_options
from examples.closure import flow
from examples.closure.closure import stress

CELLS, FINE = 32, 8  # a coarse cell is FINE fine ones
DT = 0.05
FLOWS = 6


def first_velocities(seed):
    """Random smooth flows on the fine grid."""
    random = np.random.default_rng(seed)
    x = np.arange(CELLS * FINE) * 2 * np.pi / (CELLS * FINE)
    waves = np.arange(1, 4)[:, None] * x
    amplitudes = random.normal(size=(2, FLOWS, 3)) / np.arange(1, 4)
    return amplitudes[0] @ np.sin(waves) + amplitudes[1] @ np.cos(waves)


def averaged(u):
    """A fine flow on the coarse grid."""
    return u.reshape(FLOWS, CELLS, FINE).mean(axis=-1)


def resolved(u, steps):
    """The flow on the fine grid, as the coarse grid sees it."""
    seen = []
    for _ in range(steps):
        for _ in range(2 * FINE):
            inputs = flow.InputSchema(
                u=u, stress=np.zeros_like(u), dt=DT / (2 * FINE)
            )
            u = flow.apply(inputs).u
        seen.append(averaged(u))
    return np.stack(seen)


def main():
    small, folder = read_options(__doc__)
    steps, updates, horizon = (5, 8, 10) if small else (20, 150, 60)
    fine = first_velocities(0)
    truth = resolved(fine, steps)

    with Component.from_source(Path(flow.__file__)) as solver:

        def run(weights, u, steps):
            """The coarse flow after every step, with the network inside."""

            def advance(u, _):
                tau = 0 * u
                if weights is not None:
                    tau = apply_component(
                        stress, {"u": u, "weights": weights}
                    )["result"]
                u = apply_component(
                    solver, {"u": u, "stress": tau, "dt": DT}
                )["u"]
                return u, u

            return jax.lax.scan(advance, u, None, length=steps)[1]

        def error(weights):
            return jnp.mean(
                (run(weights, jnp.asarray(averaged(fine)), steps) - truth)
                ** 2
            )

        keys = jax.random.split(jax.random.key(0), 2)
        weights = {
            "first": 0.5 * jax.random.normal(keys[0], (8, 2, 4)),
            "bias": jnp.zeros(8),
            "second": 0.5 * jax.random.normal(keys[1], (1, 8, 1)),
        }
        compare_gradient(error, weights)
        optimiser = optax.adam(0.03)
        state = optimiser.init(weights)
        step = jax.jit(jax.value_and_grad(error))
        with chainrule.watch(
            "A closure is trained inside its solver"
        ) as record:
            for k in range(updates):
                value, gradient = step(weights)
                record(k, cost=value, gradients=gradient)
                change, state = optimiser.update(gradient, state)
                weights = optax.apply_updates(weights, change)
        record.save(folder / "closure.html")

        # Other flows, for longer than the network was trained for.
        fine = first_velocities(1)
        truth = resolved(fine, horizon)
        runs = {
            "without the network": run(
                None, jnp.asarray(averaged(fine)), horizon
            ),
            "with the network": run(
                weights, jnp.asarray(averaged(fine)), horizon
            ),
        }
        runs = {name: np.asarray(u) for name, u in runs.items()}
    for name, u in runs.items():
        print(
            f"{name:20} error of other flows",
            f"{np.sqrt(np.mean((u - truth) ** 2)):.3f}",
        )
    draw(truth, runs, folder / "closure.png")
    print(f"Wrote {folder / 'closure.png'} and {folder / 'closure.html'}")


def draw(truth, runs, path):
    figure, panels = plt.subplots(
        1, 2, figsize=(9, 3.4), layout="constrained"
    )
    x = (np.arange(CELLS) + 0.5) * 2 * np.pi / CELLS
    middle = len(truth) // 2
    panels[0].plot(x, truth[middle, 0], color="black", label="fine grid")
    for (name, u), color in zip(
        runs.items(), ("tab:red", "tab:blue"), strict=True
    ):
        panels[0].plot(x, u[middle, 0], ".-", color=color, label=name)
        panels[1].plot(
            DT * np.arange(1, len(u) + 1),
            np.sqrt(np.mean((u - truth) ** 2, axis=(1, 2))),
            color=color,
        )
    panels[0].set(
        xlabel="x",
        ylabel="velocity",
        title=f"One flow at time {DT * middle:.2g}",
    )
    panels[0].legend()
    panels[1].set(
        xlabel="time", title="Error of six flows not seen in training"
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
