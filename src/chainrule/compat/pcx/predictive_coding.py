"""Value nodes and energies."""

from __future__ import annotations

from typing import Any

from chainrule import predictive
from chainrule.predictive import (
    STATUS,
    EnergyModule,
    Ruleset,
    VodeParam,
    ce_energy,
    se_energy,
    zero_energy,
)
from chainrule.stateful import RKG, RandomKeyGenerator

__all__ = [
    "STATUS",
    "EnergyModule",
    "Ruleset",
    "Vode",
    "VodeParam",
    "ce_energy",
    "se_energy",
    "zero_energy",
]


class Vode(predictive.Vode):
    """`chainrule.predictive.Vode` that takes its generator by position too."""

    def __call__(
        self,
        u: Any = None,
        rkg: RandomKeyGenerator = RKG,
        output: str | None = "h",
        **slots: Any,
    ) -> Any:
        """Set the prediction and other slots, and return the value of a slot."""
        return super().__call__(u, rkg=rkg, output=output, **slots)

    def set(self, key: str, value: Any, rkg: RandomKeyGenerator = RKG) -> Vode:
        """Set a slot as the rules of the current status say."""
        super().set(key, value, rkg=rkg)
        return self

    def get(self, key: str, default: Any = None, rkg: RandomKeyGenerator = RKG) -> Any:
        """A slot as the rules of the current status answer for it."""
        return super().get(key, default, rkg=rkg)

    def energy(self, rkg: RandomKeyGenerator = RKG) -> Any:
        """The energy, summed over all elements the node holds."""
        return super().energy(rkg=rkg)
