"""A heating plate becomes evenly warm: current and heat, coupled."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import chainrule
from chainrule import Component, apply_component
from chainrule.runtime import Bounds
from examples._running import compare_gradient, read_options

HERE = Path(__file__).parent
VOLTAGE = 1.5


def main():
    small, folder = read_options(__doc__)
    rows, columns, iterations = (6, 12, 2) if small else (16, 32, 30)
    shape = (rows, columns)

    with (
        Component.from_source(HERE / "electric.py") as electric,
        Component.from_source(HERE / "thermal.py") as thermal,
    ):

        def around(state, thickness):
            """Temperature → resistance → heat → temperature."""
            plate = {"thickness": thickness, "temperature": state}
            heat = apply_component(electric, {**plate, "voltage": VOLTAGE})[
                "heat"
            ]
            return apply_component(
                thermal, {"thickness": thickness, "heat": heat}
            )["temperature"]

        def temperature(design):
            """The one that both programs agree on, with its gradient."""
            thickness = jax.image.resize(
                design["thickness"], shape, "linear"
            )
            found = chainrule.fixed_point(
                around,
                jnp.full(shape, 50.0),
                thickness,
                method="iterate",
                tolerance=1e-9,
            )
            return found.x

        def unevenness(design):
            t = temperature(design)
            return jnp.std(t) / jnp.mean(t)

        start = {"thickness": np.ones((4, 8))}
        compare_gradient(unevenness, start)
        with chainrule.watch(
            "A heating plate becomes evenly warm"
        ) as record:

            def note(step):
                record(step.evaluation, cost=step.value, fields=step.x)

            found = chainrule.minimize(
                unevenness, start, bounds={"thickness": (0.3, 3.0)},
                constraints=[
                    (
                        lambda design: design["thickness"].mean(),
                        Bounds(ge=1.0, le=1.0),
                    )
                ],
                callback=note, options={"maxiter": iterations},
            )  # fmt: skip
        record.save(folder / "heater.html")
        designs = {"before": start, "after": found.x}
        plates = {
            name: (
                jax.image.resize(design["thickness"], shape, "linear"),
                temperature(design),
            )
            for name, design in designs.items()
        }
    for name, (_, t) in plates.items():
        print(
            f"{name:7} {t.min():.0f} to {t.max():.0f} K above the room,",
            f"spread {t.std() / t.mean():.1%}",
        )
    draw(plates, folder / "heater.png")
    print(f"Wrote {folder / 'heater.png'} and {folder / 'heater.html'}")


def draw(plates, path):
    figure, panels = plt.subplots(
        2, 2, figsize=(9, 4.4), layout="constrained"
    )
    for row, (title, which) in zip(
        panels, (("thickness", 0), ("temperature, K", 1)), strict=True
    ):
        images = [np.asarray(plate[which]) for plate in plates.values()]
        low, high = (
            min(i.min() for i in images),
            max(i.max() for i in images),
        )
        for panel, image, name in zip(row, images, plates, strict=True):
            picture = panel.imshow(
                image,
                vmin=low,
                vmax=high,
                cmap=("viridis", "inferno")[which],
            )
            panel.set(xticks=[], yticks=[], title=name)
        figure.colorbar(picture, ax=row, label=title)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
