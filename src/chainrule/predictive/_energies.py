"""Energies: how much a node's value disagrees with its prediction, one term per element.

An energy is any function `energy(vode, rkg) -> array`. It reads the node's slots with `vode.require`, and
what it returns is summed over all elements by `Vode.energy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from chainrule.stateful import RKG, RandomKeyGenerator

if TYPE_CHECKING:
    from chainrule.predictive._vode import Vode

__all__ = ["ce_energy", "se_energy", "zero_energy"]


def se_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Squared error `(h - u)² / 2`: the value is Gaussian around its prediction."""
    error = vode.require("h", rkg=rkg) - vode.require("u", rkg=rkg)
    return 0.5 * error * error


def ce_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Cross-entropy `-h log softmax(u)`: the value is a distribution, the prediction its logits.

    Classes lie along the last axis.
    """
    return -vode.require("h", rkg=rkg) * jax.nn.log_softmax(vode.require("u", rkg=rkg))


def zero_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Nothing: the value is not tied to its prediction."""
    return jnp.zeros_like(vode.require("h", rkg=rkg))
