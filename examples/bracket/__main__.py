"""A bracket becomes stiffer: outline in JAX, stresses by scikit-fem."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import chainrule
from chainrule import Component, apply_component
from chainrule.runtime import Bounds
from examples._running import compare_gradient, read_options
from examples.bracket.outline import curve, outline

HERE = Path(__file__).parent


def square(columns, rows):
    """Triangles on the unit square, without what becomes the hole."""
    s, t = np.meshgrid(
        np.linspace(0, 1, columns + 1),
        np.linspace(0, 1, rows + 1),
        indexing="ij",
    )
    number = np.arange(s.size).reshape(s.shape)
    a, b, c, d = (
        number[:-1, :-1],
        number[1:, :-1],
        number[1:, 1:],
        number[:-1, 1:],
    )
    cells = np.stack([a, b, c, d], axis=-1).reshape(-1, 4)
    x, y = s.ravel()[cells].mean(axis=1), t.ravel()[cells].mean(axis=1)
    cells = cells[~((x > 0.2) & (x < 0.8) & (np.abs(y - 0.5) < 1 / 6))]
    used, cells = np.unique(cells, return_inverse=True)
    cells = cells.reshape(-1, 4)
    lattice = np.stack([s.ravel(), t.ravel()], axis=1)[used]
    return lattice, np.concatenate(
        [cells[:, [0, 1, 2]], cells[:, [0, 2, 3]]]
    )


def main():
    small, folder = read_options(__doc__)
    lattice, triangles = square(*((20, 9) if small else (80, 27)))
    clamped, tip = (np.flatnonzero(lattice[:, 0] == end) for end in (0, 1))
    loads = np.zeros_like(lattice)
    loads[tip, 1] = -2e6 / tip.size  # 20 kN on a plate of 10 mm
    plate = {"triangles": triangles, "clamped": clamped, "loads": loads}

    with Component.from_source(HERE / "solver.py") as solver:

        def bracket(design):
            points = apply_component(
                outline, {**design, "lattice": lattice}
            )["result"]
            return points, apply_component(
                solver, {**plate, "points": points}
            )

        def work(design):
            return bracket(design)[1]["compliance"]

        def area(design):
            return bracket(design)[1]["area"]

        def thinnest_leg(design):
            s = jnp.linspace(0, 1, 15)
            return curve(design["outer"], s) - curve(design["hole"], s)

        start = {"outer": np.full(7, 0.25), "hole": np.full(5, 0.08)}
        compare_gradient(work, start)
        with chainrule.watch("A bracket becomes stiffer") as record:
            found = chainrule.minimize(
                work, start,
                bounds={"outer": (0.04, 0.5), "hole": (0.02, 0.45)},
                constraints=[
                    (area, Bounds(le=float(area(start)))),
                    (thinnest_leg, Bounds(ge=0.04)),
                ],
                callback=record.callback,
                options={"maxiter": 8 if small else 60},
            )  # fmt: skip
        record.save(folder / "bracket.html")
        shapes = {"before": bracket(start), "after": bracket(found.x)}
    for name, (_, result) in shapes.items():
        work_done = float(result["compliance"]) / 1e3
        peak = float(result["stress"].max()) / 1e6
        print(
            f"{name:7} work {work_done:4.1f} kJ/m,",
            f"area {float(result['area']):.3f} m²,",
            f"highest stress {peak:4.0f} MPa",
        )
    draw(shapes, folder / "bracket.png")
    print(f"Wrote {folder / 'bracket.png'} and {folder / 'bracket.html'}")


def draw(shapes, path):
    figure, panels = plt.subplots(
        1, 2, figsize=(9, 3), sharey=True, layout="constrained"
    )
    highest = (
        max(float(result["stress"].max()) for _, result in shapes.values())
        / 1e6
    )
    for panel, (name, (points, result)) in zip(
        panels, shapes.items(), strict=True
    ):
        picture = panel.tripcolor(
            *points.T,
            result["triangles"],
            facecolors=result["stress"] / 1e6,
            vmin=0,
            vmax=highest,
            cmap="viridis",
            edgecolors="face",
            linewidth=0.2,
        )
        panel.set(title=name, aspect="equal", xlabel="m")
    figure.colorbar(picture, ax=panels, label="von Mises stress, MPa")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
