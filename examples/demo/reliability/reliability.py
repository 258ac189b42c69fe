"""The twin of reliability.c for machines without a compiler: same arguments, same files, same numbers."""

import json
import math
import sys

ACTIVATION_OVER_BOLTZMANN = 0.7 / 8.617333e-5  # K
REFERENCE, BASE_RATE = 328.15, 10.0


def main(source: str, target: str) -> None:
    with open(source) as file:
        temperatures = json.load(file)["temperatures"]
    rates = [
        BASE_RATE * math.exp(ACTIVATION_OVER_BOLTZMANN * (1 / REFERENCE - 1 / kelvin))
        for kelvin in temperatures
    ]
    with open(target, "w") as file:
        json.dump({"rates": rates}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
