"""Predictive coding: networks that settle before they learn.

A network is made of layers and *value nodes* (`Vode`). Each node holds a value per sample and is told a
prediction by the layer before it; their disagreement is the node's energy. Inference moves the values,
learning moves the weights, both downhill in the same energy. A `Learner` does both in one compiled program.

The modules, in the order in which to read them:

    _kinds           kinds of parameters, their masks, and the statuses of a network
    _energy_module   modules with an energy and a status; `step`
    _rules           what happens when a slot of a node is set or asked for
    _vode            value nodes, and their energies
    _forward         networks on batches
    _schedules       in which order values and weights move
    _langevin        values that are samples
    _learner         inference and learning as one compiled program
"""

from chainrule.predictive._energy_module import EnergyModule, step
from chainrule.predictive._forward import energies, energies_by_node, forward, predict
from chainrule.predictive._kinds import FREE, STATES, STATUS, WEIGHTS, VodeParam
from chainrule.predictive._langevin import langevin
from chainrule.predictive._learner import Learner
from chainrule.predictive._rules import Ruleset
from chainrule.predictive._schedules import Phase, incremental, inference_learning, settle, z_il
from chainrule.predictive._vode import Vode, ce_energy, se_energy, zero_energy

__all__ = [
    "FREE",
    "STATES",
    "STATUS",
    "WEIGHTS",
    "EnergyModule",
    "Learner",
    "Phase",
    "Ruleset",
    "Vode",
    "VodeParam",
    "ce_energy",
    "energies",
    "energies_by_node",
    "forward",
    "incremental",
    "inference_learning",
    "langevin",
    "predict",
    "se_energy",
    "settle",
    "step",
    "z_il",
    "zero_energy",
]
