"""Where is the leak? A posterior by NUTS over a served solver."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, init_to_median

from chainrule import Component, apply_component
from examples._running import read_options, served
from examples.leak import plume

TRUTH = {"position": np.array([0.7, 1.25]), "rate": 2.0, "mixing": 0.06}
NOISE = 0.05
SENSORS = np.array(
    [
        [1.2, 0.5],
        [1.3, 1.6],
        [1.6, 1.0],
        [1.9, 1.4],
        [2.2, 0.7],
        [2.5, 1.2],
        [2.7, 1.7],
    ]
)


def main():
    small, folder = read_options(__doc__)
    columns, warmup, samples = (24, 20, 20) if small else (45, 150, 300)
    known = {"sensors": SENSORS, "columns": columns}
    with (
        served(Path(plume.__file__)) as url,
        Component.from_url(url) as solver,
    ):
        clean = solver.apply({**TRUTH, **known})["readings"]
        measured = clean + NOISE * np.random.default_rng(1).normal(
            size=clean.size
        )

        def model():
            half = jnp.array([plume.WIDTH, plume.HEIGHT]) / 2
            unknown = {
                "position": half
                + half
                * numpyro.sample("place", dist.Uniform(-jnp.ones(2), 1)),
                "rate": numpyro.sample("rate", dist.Uniform(0.1, 10.0)),
                "mixing": numpyro.sample(
                    "mixing", dist.Uniform(0.05, 0.07)
                ),
            }
            readings = apply_component(solver, {**unknown, **known})[
                "readings"
            ]
            numpyro.deterministic("position", unknown["position"])
            numpyro.sample(
                "measured", dist.Normal(readings, NOISE), obs=measured
            )

        sampler = MCMC(
            NUTS(
                model,
                init_strategy=init_to_median,
                max_tree_depth=4 if small else 8,
            ),
            num_warmup=warmup, num_samples=samples,
            progress_bar=not small,
        )  # fmt: skip
        sampler.run(jax.random.key(0))
        found, divergent = jax.device_get(
            (
                sampler.get_samples(),
                sampler.get_extra_fields()["diverging"],
            )
        )  # JAX waits here, while the server runs
    for name, unit in (
        ("position", "km"),
        ("rate", "kg/h"),
        ("mixing", "km²/h"),
    ):
        mean, spread = found[name].mean(axis=0), found[name].std(axis=0)
        print(
            f"{name:8} {_shown(mean)} ± {_shown(spread)} {unit},",
            f"true {_shown(TRUTH[name])}",
        )
    independent = min(
        effective_sample_size(found[name][None]).min()
        for name in ("position", "rate", "mixing")
    )
    print(
        f"{samples} samples, {independent:.0f} independent,",
        f"{divergent.sum()} divergent",
    )
    draw(found["position"], columns, folder / "leak.png")
    print(f"Wrote {folder / 'leak.png'}")


def _shown(number):
    return np.array2string(
        np.asarray(number),
        precision=3,
        floatmode="fixed",
        suppress_small=True,
    )


def draw(positions, columns, path):
    inputs = plume.InputSchema(**TRUTH, sensors=SENSORS, columns=columns)
    image = plume.field(inputs).reshape(columns, -1).T
    figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
    extent = (0, plume.WIDTH, 0, plume.HEIGHT)
    picture = panel.imshow(
        image, origin="lower", extent=extent, cmap="Blues"
    )
    panel.plot(
        *positions.T, ".", color="tab:orange", alpha=0.3, label="posterior"
    )
    panel.plot(*SENSORS.T, "s", color="black", label="sensors")
    panel.plot(
        *TRUTH["position"],
        "*",
        color="red",
        markersize=14,
        label="the leak",
    )
    panel.set(
        xlabel="km, along the wind",
        ylabel="km",
        xlim=extent[:2],
        ylim=extent[2:],
    )
    panel.legend(loc="lower left")
    figure.colorbar(picture, label="kg/km²")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
