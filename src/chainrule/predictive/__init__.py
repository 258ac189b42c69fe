"""Predictive coding: networks that settle before they learn.

A network is made of layers and *value nodes* (`Vode`). Each node holds a value per sample and is told a
prediction by the layer before it; their disagreement is the node's energy. Inference moves the values,
learning moves the weights, both downhill in the same energy. A `Learner` does both in one compiled program.
"""

from chainrule.predictive._energies import ce_energy, se_energy, zero_energy
from chainrule.predictive._energy_module import EnergyModule
from chainrule.predictive._forward import energies, forward, predict
from chainrule.predictive._kinds import FREE, STATES, WEIGHTS, VodeParam
from chainrule.predictive._learner import Learner
from chainrule.predictive._rules import Ruleset
from chainrule.predictive._schedules import Phase, incremental, inference_learning, settle, z_il
from chainrule.predictive._status import STATUS
from chainrule.predictive._step import step
from chainrule.predictive._vode import Vode

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
    "forward",
    "incremental",
    "inference_learning",
    "predict",
    "se_energy",
    "settle",
    "step",
    "z_il",
    "zero_energy",
]
