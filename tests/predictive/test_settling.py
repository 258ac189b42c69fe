"""Inference that stops when it has settled, energies node by node over time, and values that are samples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chainrule.errors import InputError
from chainrule.predictive import (
    EnergyModule,
    Learner,
    Phase,
    Vode,
    energies,
    energies_by_node,
    inference_learning,
    langevin,
    settle,
)


class Chain(EnergyModule):
    """A free value between 0 and a clamped 1: at rest at 1/2. A rate of 1/4 halves the way per update."""

    def __init__(self):
        self.nodes = [Vode(), Vode(frozen=True)]

    def __call__(self, x):
        value = self.nodes[0](x)
        self.nodes[1](value)
        self.nodes[1].set("h", jnp.ones_like(x))


def test_energies_by_node_over_time():
    chain, x = Chain(), jnp.zeros((3, 1))
    learner = Learner(optax.sgd(0.25), schedule=settle(4))
    found = learner.record_nodes(x, model=chain)
    values = 0.5 - 0.5 ** np.arange(1, 5)  # before each update
    np.testing.assert_allclose(found["nodes.[0]"], values**2 / 2, rtol=1e-6)
    np.testing.assert_allclose(found["nodes.[1]"], (1 - values) ** 2 / 2, rtol=1e-6)
    np.testing.assert_allclose(learner.record(x, model=chain), sum(found.values()), rtol=1e-6)
    by_node = energies_by_node(x, model=chain)
    assert {path: term.shape for path, term in by_node.items()} == {
        "nodes.[0]": (3,),
        "nodes.[1]": (3,),
    }
    np.testing.assert_allclose(sum(by_node.values()), energies(x, model=chain))


def test_inference_stops_when_it_has_settled():
    chain, x = Chain(), jnp.zeros((2, 1))
    learner = Learner(optax.sgd(0.25), schedule=settle(50, tolerance=1e-2))
    history = np.asarray(learner.record(x, model=chain))
    values = 0.5 - 0.5 ** np.arange(1, 51)
    expected = (values**2 + (1 - values) ** 2) / 2
    settled = np.flatnonzero(np.abs(np.diff(expected)) <= 1e-2 * expected[:-1])[0] + 1
    assert 2 < settled < 10
    np.testing.assert_allclose(history[: settled + 1], expected[: settled + 1], rtol=1e-5)
    np.testing.assert_allclose(history[settled:], expected[settled], rtol=1e-5)
    assert float(learner(x, model=chain)) == pytest.approx(expected[settled], rel=1e-5)
    assert inference_learning(3, tolerance=0.1)[0].tolerance == 0.1
    with pytest.raises(InputError, match="positive"):
        Phase(tolerance=0.0)


class Alone(EnergyModule):
    def __init__(self):
        self.node = Vode()

    def __call__(self, x):
        self.node(x)


def test_langevin_values_are_samples():
    model, x = Alone(), jnp.zeros((4000, 1))
    sampler = Learner(langevin(0.1, temperature=2.0), schedule=settle(60))
    sampler(x, model=model)
    samples = model.node.h.get()
    assert abs(float(samples.mean())) < 0.1
    # of h ← (1 − η) h + √(2 η T) ξ
    assert float(samples.var()) == pytest.approx(2.0 / (1 - 0.05), rel=0.1)
    sampler(x, model=model)
    assert (samples != model.node.h.get()).all()
    assert jax.tree.leaves(langevin(0.1, seed=3).init(None))[0] == jax.random.key(3)
