"""Schedules: in which order values and weights move.

A schedule is a sequence of phases. Each phase computes the gradient of the energy once per repetition, and
moves what it names:

    inference_learning(T)   values T times, then weights once
    incremental(T)          values and weights together, T times (incremental predictive coding)
    z_il(layers)            values once per layer; the weights of a layer when the error gets there
    settle(T)               values only: to infer, complete or generate
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chainrule._errors import InputError
from chainrule.predictive._kinds import STATUS
from chainrule.stateful import M, Mask


@dataclass(frozen=True)
class Phase:
    """What moves, and how often.

    Attributes:
        states: whether the values of free nodes move.
        weights: which weights get a gradient: `True` for all the learner trains, `False` for none, or a
            mask. Weights move as soon as all of them have one, so phases can divide them among themselves.
        repeat: how many times, at most.
        status: of the network meanwhile.
        tolerance: stop earlier, as soon as an update changes the mean energy by no more than this, relative
            to the energy before; `None` for all repetitions.
    """

    states: bool = True
    weights: Mask | bool = False
    repeat: int = 1
    status: Any = STATUS.INFERENCE
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise InputError(
                f"A phase happens once or more; found {self.repeat}.", code="bad_argument"
            )
        if self.tolerance is not None and self.tolerance <= 0:
            raise InputError(
                f"The tolerance of a phase is positive, or None; found {self.tolerance}.",
                code="bad_argument",
            )


def settle(steps: int, *, tolerance: float | None = None) -> tuple[Phase, ...]:
    """Inference alone: values move `steps` times, or until the energy has settled; weights stay."""
    return (Phase(repeat=steps, tolerance=tolerance),)


def inference_learning(steps: int, *, tolerance: float | None = None) -> tuple[Phase, ...]:
    """Values move `steps` times, or until the energy has settled; then weights once."""
    return (
        *(settle(steps, tolerance=tolerance) if steps else ()),
        Phase(states=False, weights=True, status=STATUS.LEARNING),
    )


def incremental(steps: int) -> tuple[Phase, ...]:
    """Values and weights move together, `steps` times, by the same gradient."""
    return (Phase(weights=True, repeat=steps),)


def z_il(layers: Iterable[Any]) -> tuple[Phase, ...]:
    """Weights get their gradient at the moment the error arrives, one layer per inference step.

    Started from a forward pass, with values moved by `optax.sgd(1.0)`, these are exactly the gradients of
    backpropagation: at that moment the error of a node is the product of all Jacobians above it with the
    error of the output.

    Args:
        layers: from the output to the input, a mask or a pattern of paths (`"layers.[0].*"`) each.
    """
    masks = (M().at(layer) if isinstance(layer, str) else M(layer) for layer in layers)
    return tuple(Phase(weights=mask) for mask in masks)
