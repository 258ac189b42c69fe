"""Modules that have an energy and a status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chainrule.predictive._kinds import clear
from chainrule.stateful import Module, StaticParam

__all__ = ["EnergyModule"]


class EnergyModule(Module):
    """A network, or a part of one, whose energy is the sum over the nodes inside.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.predictive import EnergyModule, Vode
        >>> class Pair(EnergyModule):
        ...     def __init__(self):
        ...         self.a, self.b = Vode(), Vode()
        >>> pair = Pair()
        >>> for node in (pair.a, pair.b, pair.a):
        ...     _ = node.set("u", jnp.zeros(2)).set("h", jnp.ones(2))
        >>> float(pair.energy())
        2.0
    """

    _status: StaticParam
    # Whether a `step` is open. Tracked as the status is, so that a jitted function that was compiled
    # outside a step is not taken for one inside.
    _in_step: StaticParam

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls, *args, **kwargs)
        self.__dict__["_status"] = StaticParam(None)
        self.__dict__["_in_step"] = StaticParam(False)
        return self

    @property
    def status(self) -> Any:
        """What this module is doing, see `STATUS`; `step` sets it in a whole network for a while."""
        return self._status.get()

    @status.setter
    def status(self, status: Any) -> None:
        self._status.set(status)

    def energy(self) -> Any:
        """The sum of the energies of all nodes inside, each node once, however often it is referred to.

        A part that has its own `energy` method is asked, and not looked into.
        """
        return sum((part.energy() for part in _parts_with_energy(self, set())), 0.0)

    def clear_params(self, select: Any) -> None:
        """Set the selected parameters to `None`.

        Args:
            select: a kind, a tuple of kinds, a mask, or a predicate of the parameter.
        """
        clear(self, select)


def _parts_with_energy(module: Module, seen: set[int]) -> Iterator[EnergyModule]:
    for part in module.submodules():
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, EnergyModule) and type(part).energy is not EnergyModule.energy:
            yield part
        else:
            yield from _parts_with_energy(part, seen)
