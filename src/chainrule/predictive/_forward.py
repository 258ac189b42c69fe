"""Networks on batches: layers and nodes see one sample, these functions map over many.

The first axis of every argument, of every node's value and of every result is the batch; weights are shared.
Inside, the axis is called `"batch"`, for layers that look across samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from chainrule.predictive._energy_module import node_energies, step
from chainrule.predictive._kinds import STATES, STATUS, VodeParam, clear
from chainrule.stateful import jit, vmap

_PER_SAMPLE = {"model": STATES.to((None, 0))}


@vmap(kwargs_mask=_PER_SAMPLE, axis_name="batch")
def _forward(*args: Any, model: Any) -> Any:
    return model(*args)


@vmap(kwargs_mask=_PER_SAMPLE, axis_name="batch")
def measure(*batch: Any, model: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Run the network on a batch; the energy of every sample, and its terms by the paths of the nodes."""
    model(*batch)
    terms = node_energies(model)
    return total(terms), terms


def total(terms: Mapping[str, Any]) -> Any:
    """The sum of the energies of all nodes."""
    return sum(terms.values(), 0.0)


def energies(*batch: Any, model: Any) -> jax.Array:
    """Run the network on a batch and return the energy of every sample.

    Args:
        *batch: the network's arguments, with a first axis for the samples.
        model: the network, an `EnergyModule`; what its nodes are told stays in their caches.
    """
    return measure(*batch, model=model)[0]


def energies_by_node(*batch: Any, model: Any) -> dict[str, jax.Array]:
    """As `energies`, node by node: `{path of the node: energy of every sample}`.

    A part that has its own `energy` method counts as one node.

    Args:
        *batch: the network's arguments, with a first axis for the samples.
        model: the network, an `EnergyModule`; what its nodes are told stays in their caches.
    """
    return measure(*batch, model=model)[1]


def forward(*batch: Any, model: Any, status: Any = STATUS.INIT) -> Any:
    """Run the network on a batch, by default to give its nodes their first values.

    Args:
        *batch: the network's arguments, with a first axis for the samples.
        model: the network. Its caches are empty afterwards.
        status: while it runs.

    Returns:
        What the network returns, per sample.
    """
    with step(model, status, clear_params=VodeParam.Cache):
        return _forward(*batch, model=model)


@jit
def _predict(*batch: Any, model: Any) -> Any:
    # A copy, so that a prediction in between does not disturb the values of the batch in training.
    copy = jax.tree.map(lambda leaf: leaf, model)
    clear(copy, STATES)
    return forward(*batch, model=copy)


def predict(*batch: Any, model: Any) -> Any:
    """What the network returns in a forward pass; its nodes are left as they are.

    Args:
        *batch: the network's arguments, with a first axis for the samples.
        model: the network.
    """
    return _predict(*batch, model=model)
