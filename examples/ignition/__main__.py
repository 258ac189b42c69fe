"""The cheapest charge that ignites in time and makes little NO."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import chainrule
from chainrule import Component, apply_component
from chainrule.runtime import Bounds
from examples._running import read_options
from examples.ignition.reactor import TIMES

HERE = Path(__file__).parent
LATEST = 0.5e-3  # seconds
MOST_NO = 0.9e-2
LEAST_HEAT = 1100.0


def main():
    small, folder = read_options(__doc__)
    with Component.from_source(HERE / "reactor.py:reactor") as reactor:

        def price(charge):
            """Of fuel and heat before ignition, for each kelvin gained."""
            gained = apply_component(reactor, charge)["heat"]
            fuel = charge["richness"] * (1 + charge["hydrogen"])
            return (
                1000
                * (fuel + (charge["temperature"] - 1000) / 100)
                / gained
            )

        def excess(charge):
            """What is above the limits."""
            found = apply_component(reactor, charge)
            return jnp.stack(
                [
                    found["delay"] - np.log10(LATEST),
                    found["nitric_oxide"] - np.log10(MOST_NO),
                    (LEAST_HEAT - found["heat"]) / 1000,
                ]
            )

        start = {"hydrogen": 0.5, "richness": 1.0, "temperature": 1200.0}
        with chainrule.watch("A charge becomes cheaper") as record:
            found = chainrule.minimize(
                price, start,
                bounds={
                    "hydrogen": (0, 1),
                    "richness": (0.3, 1.2),
                    "temperature": (1000, 1500),
                },
                constraints=[(excess, Bounds(le=0))], method="SLSQP",
                callback=record.callback,
                options={"maxiter": 1 if small else 40},
            )  # fmt: skip
        record.save(folder / "ignition.html")
        charges = {"before": start, "after": found.x}
        answers = {
            name: reactor.apply(charge) for name, charge in charges.items()
        }
        prices = {
            name: float(price(charge)) for name, charge in charges.items()
        }

    print(found.message)
    for name, charge in charges.items():
        answer = answers[name]
        print(
            f"{name:7} {charge['hydrogen']:.0%} hydrogen,",
            f"richness {charge['richness']:.2f},",
            f"{charge['temperature']:.0f} K: price {prices[name]:.2f},",
            f"ignites after {1e3 * 10 ** answer['delay']:.2f} ms,",
            f"NO {10 ** answer['nitric_oxide']:.2%}",
        )
    draw(answers, folder / "ignition.png")
    print(f"Wrote {folder / 'ignition.png'} and {folder / 'ignition.html'}")


def draw(answers, path):
    figure, panel = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for (name, answer), color in zip(
        answers.items(), ("tab:gray", "tab:red"), strict=True
    ):
        panel.semilogx(
            1e3 * TIMES, answer["course"], color=color, label=name
        )
    panel.axvline(
        1e3 * LATEST, color="black", linestyle=":", label="latest ignition"
    )
    panel.set(xlabel="time, ms", ylabel="temperature, K", xlim=(1e-2, 20))
    panel.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
