"""`Learner`: inference and learning on a batch, compiled as one program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import DefinitionError
from chainrule.predictive._energy_module import step
from chainrule.predictive._forward import forward, measure, total
from chainrule.predictive._kinds import FREE, WEIGHTS, VodeParam
from chainrule.predictive._schedules import Phase
from chainrule.stateful import (
    M,
    Mask,
    Module,
    Optim,
    Param,
    jit,
    scan,
    value_and_grad,
    while_loop,
)
from chainrule.stateful.internal import select

Gradients = dict[str, Any]
Energies = dict[str, jax.Array]  # by the paths of the nodes

_UNROLL = 8
"""Inference steps in one piece: what does not change from step to step is then computed once."""

_NOTHING = M(lambda param: False)


class Learner(Module):
    """Moves the values and the weights of a network downhill in its energy.

    A call gives every node its first value by a forward pass and then follows the schedule, all in one
    compiled program. The network is called with the same arguments every time. After the call the nodes
    hold the values they settled at.

    Values move by the gradient of each sample's own energy; weights by that of the mean over the batch.

    Args:
        states: optax optimiser of the values; it starts afresh on every batch, except for the random keys in
            its state: noise is other noise on every batch.
        weights: optax optimiser of the weights, or a dictionary of them per kind (see `Optim`); `None`
            for schedules that only infer.
        schedule: phases, see `inference_learning`, `incremental`, `z_il`, `settle`.
        free: which values move; by default those that are not frozen.
        trained: which weights move; by default all trainable parameters that are not values.
        keep: values that a call takes over from before instead of starting from nothing.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from chainrule.predictive import EnergyModule, Learner, Vode, inference_learning
        >>> from chainrule.stateful import layers
        >>> class Net(EnergyModule):
        ...     def __init__(self):
        ...         self.layer, self.node = layers.Linear(2, 1), Vode(frozen=True)
        ...     def __call__(self, x, y=None):
        ...         u = self.layer(x)
        ...         self.node(u)
        ...         if y is not None:
        ...             self.node.set("h", y)
        ...         return u
        >>> net, x = Net(), jnp.eye(2)
        >>> learner = Learner(optax.sgd(0.1), optax.sgd(0.5), inference_learning(1))
        >>> before, *_, after = [float(learner(x, x[:, :1], model=net)) for _ in range(9)]
        >>> after < before / 2
        True
    """

    def __init__(
        self,
        states: Any,
        weights: Any = None,
        schedule: Iterable[Phase] = (),
        *,
        free: Any = FREE,
        trained: Any = WEIGHTS,
        keep: Any = None,
    ) -> None:
        self.schedule = tuple(schedule)
        if not self.schedule:
            raise DefinitionError(
                "A learner needs a schedule with at least one phase, for example "
                "`inference_learning(8)`.",
                code="bad_schedule",
            )
        self.free = M(free)
        self.trained = M(trained)
        self.started_anew = M(VodeParam) if keep is None else M(VodeParam) - M(keep)
        self.states = Optim(states, self.free)
        self.weights = None if weights is None else Optim(weights, self.trained)
        self.batches = Param(jnp.zeros((), jnp.uint32), frozen=True)
        if self.weights is None and any(phase.weights is not False for phase in self.schedule):
            raise DefinitionError(
                "The schedule moves weights, but the learner has no optimiser for them. Pass "
                "`weights=optax.adam(1e-3)`, or use the schedule `settle(steps)`.",
                code="missing_optimiser",
            )

    def __call__(self, *batch: Any, model: Any) -> jax.Array:
        """Infer and learn on one batch.

        Args:
            *batch: the network's arguments, with a first axis for the samples.
            model: the network, an `EnergyModule`.

        Returns:
            The mean energy per sample before the last update.
        """
        return self._start(_run, batch, model)

    def record(self, *batch: Any, model: Any) -> jax.Array:
        """The same as a call, but returns the mean energy per sample before every update.

        Where a phase stops before its last repetition, the energy at which it stopped is repeated.
        """
        return total(self.record_nodes(*batch, model=model))

    def record_nodes(self, *batch: Any, model: Any) -> dict[str, jax.Array]:
        """As `record`, node by node: `{path of the node: mean energy per sample before every update}`."""
        return self._start(_run_and_record, batch, model)

    def _start(self, program: Any, batch: tuple[Any, ...], model: Any) -> Any:
        # Made out here, so that the first batch and all others run the same program.
        if self.weights is not None and self.weights.state.get() is None:
            self.weights.init(model)
        return program(*batch, model=model, learner=self)


def _started_anew(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Values that begin empty, so that the first batch and all others run the same program."""
    return {"model": kwargs["learner"].started_anew}


@jit(empty=_started_anew)
def _run(*batch: Any, model: Any, learner: Learner) -> Any:
    last = _follow(batch, model, learner, is_recorded=False)[-1]
    return total(last)


@jit(empty=_started_anew)
def _run_and_record(*batch: Any, model: Any, learner: Learner) -> Energies:
    history = _follow(batch, model, learner, is_recorded=True)
    return jax.tree.map(lambda *e: jnp.concatenate([jnp.atleast_1d(part) for part in e]), *history)


def _follow(batch: Any, model: Any, learner: Learner, is_recorded: bool) -> list[Energies]:
    """Follow the schedule; returns the energies before every update, or only before the last one."""
    forward(*batch, model=model)
    _start_states(model, learner)
    history: list[Energies] = []
    waiting: Gradients = {}
    for phase in learner.schedule:
        energy, waiting = _update(phase, waiting, batch, model, learner)
        history.append(energy)
        if phase.repeat > 1:
            _check_nothing_waits(waiting, model, learner)
            repeat = _repeat if phase.tolerance is None else _repeat_until_settled
            history.append(repeat(phase, energy, batch, model, learner, is_recorded))
    _check_nothing_waits(waiting, model, learner)
    learner.states.reset()
    learner.batches.set(learner.batches.get() + 1)
    return history


def _start_states(model: Any, learner: Learner) -> None:
    """A new state for the optimiser of the values, with random keys that no other batch has had."""
    if not select(model, learner.free):
        return
    learner.states.init(model)

    def renewed(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        fold = jax.vmap(lambda key: jax.random.fold_in(key, learner.batches.get()))
        return fold(leaf.reshape(-1)).reshape(leaf.shape)

    state = learner.states.state
    state.set(jax.tree.map(renewed, state.get()))


def _repeat(
    phase: Phase, energy: Any, batch: Any, model: Any, learner: Learner, is_recorded: bool
) -> Any:
    """All repetitions of a phase but the first."""

    # Energies that are not asked for would cost a tenth of the time: gradients do not need them.
    def body(last: Any, x: None, *, model: Any, learner: Learner) -> tuple[Any, Any]:
        energy, _ = _update(phase, {}, batch, model, learner)
        return energy, energy if is_recorded else None

    last, recorded = scan(
        body, energy, None, length=phase.repeat - 1, unroll=_UNROLL, model=model, learner=learner
    )
    return recorded if is_recorded else last


def _repeat_until_settled(
    phase: Phase, energy: Any, batch: Any, model: Any, learner: Learner, is_recorded: bool
) -> Any:
    """As `_repeat`, until the energy hardly changes any more."""
    length, tolerance = phase.repeat - 1, phase.tolerance or 0.0
    history = jax.tree.map(lambda e: jnp.zeros((length, *e.shape), e.dtype), energy)

    def is_moving(state: Any, *, model: Any, learner: Learner) -> Any:
        number, before, now, _ = state
        old, new = total(before), total(now)
        has_settled = jnp.abs(new - old) <= tolerance * jnp.abs(old)
        # `before` and `now` are one energy at first, the one before any repetition: nothing has settled yet.
        return (number < length) & ((number == 0) | ~has_settled)

    def body(state: Any, *, model: Any, learner: Learner) -> Any:
        number, _, before, history = state
        now, _ = _update(phase, {}, batch, model, learner)
        # All entries from here on: the last one stays where the loop stops early.
        at = jnp.arange(length) >= number
        history = jax.tree.map(lambda past, e: jnp.where(at, e, past), history, now)
        return number + 1, before, now, history

    start = (jnp.zeros((), jnp.int32), energy, energy, history)
    _, _, last, history = while_loop(is_moving, body, start, model=model, learner=learner)
    return history if is_recorded else last


def _update(
    phase: Phase, waiting: Gradients, batch: Any, model: Any, learner: Learner
) -> tuple[Energies, Gradients]:
    """Move what a phase names, by one gradient.

    Returns:
        The mean energy of each node before, and the gradients of weights that wait for those of others.
    """
    states = learner.free if phase.states else _NOTHING
    weights = _weights(phase, learner)
    with step(model, phase.status, clear_params=VodeParam.Cache):
        if select(model, states | weights):
            loss = value_and_grad(_total, has_aux=True, kwargs_mask={"model": states | weights})
            (_, (terms, count)), by_keyword = loss(*batch, model=model)
            gradients = by_keyword["model"]
        else:
            (_, (terms, count)), gradients = _total(*batch, model=model), {}
    if select(model, states):
        learner.states.step(model, gradients)
    arrived = {
        path: jax.tree.map(lambda leaf: leaf / count, gradients[path])
        for path in select(model, weights)
    }
    energy = {path: jnp.sum(term) / count for path, term in terms.items()}
    return energy, _learn({**waiting, **arrived}, model, learner)


def _weights(phase: Phase, learner: Learner) -> Mask:
    if isinstance(phase.weights, bool):
        return learner.trained if phase.weights else _NOTHING
    return learner.trained & phase.weights


def _total(*batch: Any, model: Any) -> tuple[jax.Array, tuple[Energies, int]]:
    # The sum, not the mean: a value occurs in the energy of its own sample only, so ∂(Σ E)/∂h_i = ∂E_i/∂h_i,
    # and the step of a value does not depend on the size of the batch. Weights occur in all energies; their
    # gradient is divided by the number of samples later (`_update`).
    per_sample, terms = measure(*batch, model=model)
    return jnp.sum(per_sample), (terms, per_sample.shape[0])


def _learn(waiting: Gradients, model: Any, learner: Learner) -> Gradients:
    """Move the weights if all of them have a gradient; returns the gradients that still wait.

    One optimiser has one state for all weights, so they move together. Under Z-IL that changes nothing:
    a layer's new weights would reach only values above it, whose gradients are already there.
    """
    is_complete = waiting and waiting.keys() >= select(model, learner.trained).keys()
    if learner.weights is None or not is_complete:
        return waiting
    learner.weights.step(model, waiting)
    return {}


def _check_nothing_waits(waiting: Gradients, model: Any, learner: Learner) -> None:
    if waiting:
        missing = sorted(select(model, learner.trained).keys() - waiting.keys())
        raise DefinitionError(
            f"The schedule gives no gradient to {len(missing)} of {len(missing) + len(waiting)} weights: "
            f"{', '.join(f'`{path}`' for path in missing[:8])}. Weights move when all of them have one; add "
            "phases for these, or leave them out with the learner's `trained` mask.",
            code="incomplete_schedule",
            path=missing[0],
        )
