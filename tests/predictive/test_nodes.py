"""Nodes and their energies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import chainrule.stateful as cs
from chainrule.errors import DefinitionError, InputError
from chainrule.predictive import (
    STATES,
    STATUS,
    EnergyModule,
    Vode,
    VodeParam,
    ce_energy,
    se_energy,
    step,
    zero_energy,
)

arrays = hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=4),
                    elements=st.floats(-3, 3, width=32))  # fmt: skip


def node_with(h, u, **options):
    return Vode(**options).set("h", jnp.asarray(h)).set("u", jnp.asarray(u))


@given(h=arrays, seed=st.integers(0, 100))
def test_energies_have_one_term_per_element_and_the_right_value(h, seed):
    u = np.random.default_rng(seed).normal(size=h.shape).astype(np.float32)
    expected = {
        se_energy: (h - u) ** 2 / 2,
        ce_energy: -h * scipy.special.log_softmax(u, axis=-1),
        zero_energy: np.zeros_like(h),
    }
    for energy_fn, terms in expected.items():
        node = node_with(h, u, energy_fn=energy_fn)
        assert node.terms().shape == h.shape
        np.testing.assert_allclose(node.terms(), terms, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(node.energy(), terms.sum(), rtol=1e-4, atol=1e-4)


def test_energy_does_not_depend_on_how_the_prediction_came():
    h, u = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))
    by_set, by_call = node_with(h, u), Vode().set("h", h)
    by_call(u)
    assert by_set.energy() == by_call.energy()
    assert by_set.energy().shape == ()


def test_energy_is_never_stale():
    node = node_with(jnp.ones(3), jnp.zeros(3))
    assert float(node.energy()) == 1.5
    node.h.set(jnp.zeros(3))
    assert float(node.energy()) == 0.0


def test_node_without_energy_and_custom_energy():
    assert node_with(1.0, 0.0, energy_fn=None).energy() == 0.0
    node = node_with(jnp.array([1.0, -2.0]), jnp.zeros(2),
                     energy_fn=lambda vode, rkg: jnp.abs(vode.require("h") - vode.require("u")))  # fmt: skip
    assert float(node.energy()) == 3.0


@pytest.mark.parametrize("energy_fn", [(2,), "se", 3])
def test_what_is_no_energy_is_refused(energy_fn):
    with pytest.raises(DefinitionError, match="`energy_fn` is a function") as caught:
        Vode(energy_fn)
    assert caught.value.code == "bad_energy"


def test_empty_slot_says_what_to_do():
    node = Vode().set("h", jnp.ones(2))
    with pytest.raises(InputError, match=r"Slot 'u' of a node is empty.*filled are: h\.") as caught:
        node.energy()
    assert caught.value.code == "empty_slot"


def test_fresh_node_reads_as_empty():
    node = Vode(ruleset={".*": ["out -> u"]})
    assert node.get("out") is None
    assert node.get("u", 1.0) == 1.0
    assert "u" not in node.cache


def test_call_sets_slots_and_returns_what_is_asked_for():
    node = Vode().set("h", 5.0)
    assert node(1.0) == 5.0
    assert node(2.0, output="u", extra=3.0) == 2.0
    assert node.get("extra") == 3.0
    assert node(output=None) is node
    assert node.get("u") == 2.0


def test_user_slot_with_its_own_parameter_survives_the_cache():
    node = Vode()
    node.precision = VodeParam(jnp.ones(2))
    node.set("precision", jnp.zeros(2)).set("other", jnp.zeros(2))
    node.clear_params(VodeParam.Cache)
    assert node.get("precision").tolist() == [0.0, 0.0]
    assert node.get("other") is None


class Shared(EnergyModule):
    def __init__(self):
        node = Vode()
        self.parts = [node, {"again": node}]
        self.inner = Part(node)
        self.plain = Holder(node)


class Part(EnergyModule):
    def __init__(self, node):
        self.node = node


class Holder(cs.Module):
    def __init__(self, node):
        self.node, self.own = node, Vode()


class Penalised(EnergyModule):
    def __init__(self):
        self.node = Vode()

    def energy(self):
        return super().energy() + 100.0


def test_every_node_counts_once_and_own_energies_are_asked():
    model = Shared()
    for node in (model.parts[0], model.plain.own):
        node.set("h", jnp.ones(2)).set("u", jnp.zeros(2))
    assert float(model.energy()) == 2.0
    model.extra = Penalised()
    model.extra.node.set("h", jnp.ones(2)).set("u", jnp.zeros(2))
    assert float(model.energy()) == 103.0
    assert EnergyModule().energy() == 0.0


def test_per_sample_energies_come_from_vmap():
    node = Vode()
    h, u = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 2))
    node.h.set(h)

    @cs.vmap(kwargs_mask={"node": STATES.to((None, 0))})
    def energy(u, *, node):
        node(u)
        return node.energy()

    np.testing.assert_allclose(energy(u, node=node), ((h - u) ** 2 / 2).sum(1))


def test_gradient_goes_through_output_rules_and_answers_computed_outside():
    node = Vode(
        ruleset={".*": ["h -> h:square"]}, tforms={"square": lambda v, k, value, r: value**2}
    )
    node.h.set(jnp.array(3.0))
    node.set("u", jnp.array(1.0))
    assert float(node.energy()) == 32.0
    grads = cs.grad(lambda *, node: node.energy(), kwargs_mask={"node": VodeParam})(node=node)
    assert float(grads["node"]["h"]) == (9 - 1) * 6


def test_a_network_runs_under_jit_and_its_structure_stays():
    node = Vode()

    @cs.jit
    def run(u, *, node):
        with step(node, STATUS.INIT, clear_params=VodeParam.Cache):
            node(u)
            return node.energy()

    before = jax.tree.structure(node)
    assert float(run(jnp.ones(2), node=node)) == 0.0
    assert node.h.get().tolist() == [1.0, 1.0]
    assert node.cache.get() is None
    assert jax.tree.structure(node.set("h", None)) == before


@pytest.mark.parametrize("energy_fn", [se_energy, ce_energy])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_value_and_prediction_are_compared_element_by_element(energy_fn, shape):
    node = node_with(jnp.zeros(shape), jnp.zeros(3), energy_fn=energy_fn)
    with pytest.raises(InputError, match="element by element") as caught:
        node.energy()
    assert caught.value.code == "slot_shapes"
