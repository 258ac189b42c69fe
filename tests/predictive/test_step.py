"""`step` leaves a network as it was."""

from contextlib import suppress

import jax.numpy as jnp
import pytest

import chainrule.stateful as cs
from chainrule.errors import InputError
from chainrule.predictive import STATES, STATUS, EnergyModule, Vode, VodeParam, step


class Net(EnergyModule):
    def __init__(self):
        self.nodes = [Vode(), Vode()]
        self.part = Part()


class Part(EnergyModule):
    def __init__(self):
        self.holder = Holder()


class Holder(cs.Module):
    def __init__(self):
        self.node = Vode()


def statuses(net):
    return [
        net.status,
        *(n.status for n in net.nodes),
        net.part.status,
        net.part.holder.node.status,
    ]


def test_status_reaches_every_module_and_each_gets_its_own_back():
    net = Net()
    net.nodes[1].status = "special"
    before = statuses(net)
    with step(net, "inside") as same:
        assert same is net
        assert statuses(net) == ["inside"] * 5
    assert statuses(net) == before == [None, None, "special", None, None]


def test_steps_nest():
    net = Net()
    with step(net, "outer"):
        with step(net.part, "inner"):
            assert statuses(net) == ["outer", "outer", "outer", "inner", "inner"]
            with step(net):
                assert statuses(net) == [None] * 5
        assert statuses(net) == ["outer"] * 5
    assert statuses(net) == [None] * 5


def test_a_body_that_raises_leaves_no_status_and_no_cache():
    net = Net()

    def fail():
        with step(net, "inside", clear_params=VodeParam.Cache):
            net.nodes[0](jnp.ones(2))
            net.nodes[0].h.set(jnp.ones(2))
            1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert statuses(net) == [None] * 5
    assert net.nodes[0].get("u") is None
    assert net.nodes[0].h.get().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("fails", [False, True])
def test_pair_of_statuses_leaves_the_second_unless_the_body_raises(fails):
    net = Net()
    try:
        with step(net, ("during", "after")):
            assert net.status == "during"
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert statuses(net) == [None if fails else "after"] * 5


def test_clearing_after_or_before_and_after():
    node = Vode().set("u", 1.0).set("h", 2.0)
    with step(node, clear_params=VodeParam.Cache):
        assert node.get("u") == 1.0
    assert node.get("u") is None
    node.set("u", 1.0)
    with step(node, clear_params=(VodeParam.Cache, VodeParam)):
        assert (node.get("u"), node.get("h")) == (None, 2.0)
        node.set("u", 3.0)
    assert (node.get("u"), node.get("h")) == (3.0, None)


@pytest.mark.parametrize("fails", [False, True])
def test_an_inner_step_gives_the_outer_one_its_caches_back(fails):
    node = Vode().set("h", 2.0)
    with step(node, "outer", clear_params=VodeParam.Cache):
        node.set("u", 1.0)
        with suppress(KeyError), step(node, "inner", clear_params=VodeParam.Cache):
            assert node.get("u") == 1.0
            node.set("u", 5.0).set("more", 6.0)
            if fails:
                raise KeyError
        assert (node.status, node.get("u"), node.get("more")) == ("outer", 1.0, None)
        with step(node, clear_params=(VodeParam.Cache, VodeParam.Cache)):
            assert node.get("u") is None
        assert node.get("u") == 1.0
        with step(node, "inner"):
            node.set("u", 7.0)
        assert node.get("u") == 7.0  # a step that clears nothing leaves what was written
    assert (node.status, node.get("u"), node.get("h")) == (None, None, 2.0)


def test_nested_steps_restore_caches_inside_transformations():
    node = Vode()

    @cs.jit
    def inner(x, *, node):
        with step(node, "inner", clear_params=VodeParam.Cache):
            node.set("u", x)

    def outer(x, *, node):
        with step(node, "outer", clear_params=VodeParam.Cache):
            node.set("u", 10 * x)
            inner(x, node=node)
            node.h.set(node.get("u"))

    node.set("u", jnp.array(3.0))
    inner(jnp.array(2.0), node=node)
    assert node.cache.get() is None  # no step around it: cleared
    for run in (outer, cs.jit(outer), cs.vmap(outer, kwargs_mask={"node": STATES.to((None, 0))})):
        x = jnp.arange(3.0) if run is not outer else jnp.array(4.0)
        node.h.set(jnp.zeros_like(x))
        run(x, node=node)
        assert node.h.get().tolist() == (10 * x).tolist()
        assert node.cache.get() is None


def test_pairs_have_two_entries():
    with (
        pytest.raises(InputError, match="`status` is one value or a pair"),
        step(Vode(), (1, 2, 3)),
    ):
        pass


def test_a_container_of_networks():
    nets = {"a": Net(), "b": [Vode()]}
    with step(nets, "inside", clear_params=VodeParam.Cache):
        assert statuses(nets["a"]) == ["inside"] * 5
        assert nets["b"][0].status == "inside"
        nets["b"][0].set("u", 1.0)
    assert nets["b"][0].status is None
    assert nets["b"][0].get("u") is None


def test_inside_transformations_and_loops_nothing_is_left_behind():
    node = Vode()

    @cs.jit
    def run(x, *, node):
        with step(node, STATUS.INIT, clear_params=VodeParam.Cache):
            node(x)

        def body(carry, _, *, node):
            with step(node, STATUS.INFERENCE, clear_params=VodeParam.Cache):
                assert node.status == "inference"
                grads = cs.grad(energy, kwargs_mask={"node": VodeParam})(carry, node=node)
            node.h -= 0.5 * grads["node"]["h"]
            return carry, None

        def energy(u, *, node):
            node(u)
            return node.energy()

        cs.scan(body, jnp.zeros(2), None, length=3, node=node)

    for _ in range(2):
        run(jnp.full(2, 8.0), node=node)
        assert node.h.get().tolist() == [1.0, 1.0]
        assert node.status is None
        assert node.cache.get() is None


def test_jitted_function_sees_the_status_it_is_called_in():
    node = Vode(ruleset={"half": ["h -> h:half"]}, tforms={"half": lambda v, k, x, r: x / 2})
    node.h.set(jnp.array(4.0))
    read = cs.jit(lambda *, node: node.get("h"))
    assert float(read(node=node)) == 4.0
    with step(node, "half", clear_params=VodeParam.Cache):
        assert float(read(node=node)) == 2.0
    assert float(read(node=node)) == 4.0
