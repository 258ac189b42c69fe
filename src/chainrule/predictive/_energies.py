"""Energies: how much a node's value disagrees with its prediction, one term per element.

An energy is any function `energy(vode, rkg) -> array`. It reads the node's slots with `vode.require`, and
what it returns is summed over all elements by `Vode.energy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from chainrule._errors import InputError
from chainrule.stateful import RKG, RandomKeyGenerator

if TYPE_CHECKING:
    from chainrule.predictive._vode import Vode

__all__ = ["ce_energy", "se_energy", "zero_energy"]


def _value_and_prediction(vode: Vode, rkg: RandomKeyGenerator) -> tuple[jax.Array, jax.Array]:
    """Both slots, element for element: broadcasting would count elements several times."""
    value, prediction = (jnp.asarray(vode.require(slot, rkg=rkg)) for slot in ("h", "u"))
    if value.shape != prediction.shape:
        raise InputError(
            f"A node's value `h` has the shape {value.shape} and its prediction `u` the shape "
            f"{prediction.shape}, for one sample; an energy compares them element by element. Give the "
            "labels the shape of what the network returns.",
            code="slot_shapes",
        )
    return value, prediction


def se_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Squared error `(h - u)² / 2`: the value is Gaussian around its prediction."""
    value, prediction = _value_and_prediction(vode, rkg)
    error = value - prediction
    return 0.5 * error * error


def ce_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Cross-entropy `-h log softmax(u)`: the value is a distribution, the prediction its logits.

    Classes lie along the last axis.
    """
    value, prediction = _value_and_prediction(vode, rkg)
    return -value * jax.nn.log_softmax(prediction)


def zero_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Nothing: the value is not tied to its prediction."""
    return jnp.zeros_like(vode.require("h", rkg=rkg))
