"""Value nodes and energies."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from chainrule import predictive
from chainrule.compat.pcx.core import RKG, Module
from chainrule.predictive import (
    STATUS,
    VodeParam,
    ce_energy,
    se_energy,
    zero_energy,
)
from chainrule.stateful import static

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


class Ruleset(predictive.Ruleset):
    """`chainrule.predictive.Ruleset` with the ancestor's argument names."""

    def __init__(self, rules: Any, tforms: Any = None) -> None:
        super().__init__(rules, tforms)


class EnergyModule(Module, predictive.EnergyModule):
    """`chainrule.predictive.EnergyModule` with the ancestor's argument names."""

    def clear_params(self, filter: Any) -> None:
        """Empty the parameters of a kind, or that a predicate accepts."""
        super().clear_params(filter)


class _Seen:
    """The shape of a node's last prediction. All are equal: compiled programs do not depend on it."""

    __slots__ = ("shape",)

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seen)

    def __hash__(self) -> int:
        return 0


class Vode(predictive.Vode, EnergyModule):
    """`chainrule.predictive.Vode` that takes its generator by position, and has an energy per sample.

    Args:
        energy_fn: as there.
        ruleset: as there.
        tforms: as there.
        param_type: kind of the value.
        *param_args: of the value's constructor.
        **param_kwargs: likewise.
    """

    def __init__(
        self,
        energy_fn: Any = se_energy,
        ruleset: Any = None,
        tforms: Any = None,
        param_type: type[Any] = VodeParam,
        *param_args: Any,
        **param_kwargs: Any,
    ) -> None:
        is_energy = energy_fn is None or callable(energy_fn)
        super().__init__(
            energy_fn if is_energy else None, ruleset, tforms, param_type, **param_kwargs
        )
        self.energy_fn = energy_fn  # anything, as there; what is no function fails when it is asked
        self.seen = static(_Seen())
        if param_args:
            self.h = param_type(*param_args, **param_kwargs)

    def __call__(
        self,
        u: Any = None,
        rkg: Any = RKG,
        output: str | None = "h",
        **slots: Any,
    ) -> Any:
        """Set the prediction and other slots, and return the value of a slot."""
        result = super().__call__(u, rkg=rkg, output=output, **slots)
        if (prediction := self.get("u")) is not None:
            self.seen.get().shape = jnp.shape(prediction)
        return result

    def set(self, key: str, value: Any, rkg: Any = RKG) -> Vode:
        """Set a slot as the rules of the current status say."""
        super().set(key, value, rkg=rkg)
        return self

    def get(self, key: str, default: Any = None, rkg: Any = RKG) -> Any:
        """A slot as the rules of the current status answer for it."""
        return super().get(key, default, rkg=rkg)

    def energy(self, rkg: Any = RKG) -> Any:
        """The energy of the one sample the node was called with, as inside `vmap`; else one per sample."""
        shape = jnp.shape(self.h.get())
        if self.energy_fn is None or not shape or shape == self.seen.get().shape:
            return super().energy(rkg=rkg)
        return jnp.sum(jnp.reshape(self.terms(rkg=rkg), (shape[0], -1)), axis=1)
