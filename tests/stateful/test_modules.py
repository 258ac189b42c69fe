import copy
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule import ChainruleError


class Affine(cs.Module):
    def __init__(self, order=("w", "b")):
        values = {"w": jnp.full(2, 3.0), "b": jnp.ones(2)}
        for name in order:
            setattr(self, name, cs.Param(values[name]))
        self.activation = jnp.tanh
        self.name = "affine"

    def __call__(self, x):
        return self.activation(self.w * x + self.b)


class Stack(cs.Module):
    def __init__(self):
        self.layers = [Affine(), jax.nn.relu, Affine()]
        self.table = {"z": Affine(), "a": cs.Param(1.0)}


def test_structure_does_not_depend_on_the_order_of_assignment():
    a, b = Affine(("w", "b")), Affine(("b", "w"))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [leaf.tolist() for leaf in jax.tree.leaves(a)] == [[1, 1], [3, 3]]


def test_plain_jax_transformations_work_on_copies():
    m = Affine()
    out = jax.jit(lambda m, x: m(x))(m, 1.0)
    np.testing.assert_allclose(out, np.tanh(4.0) * np.ones(2), rtol=1e-6)

    def change(m):
        m.w += 1
        return jnp.sum(m.w)

    assert float(jax.jit(change)(m)) == 8
    assert m.w.get().tolist() == [3, 3]
    gradient = jax.grad(change)(m)
    assert isinstance(gradient, Affine)
    assert gradient.w.get().tolist() == [1, 1]
    assert jax.vmap(lambda m: m(1.0), axis_size=2, in_axes=0)(m).shape == (2,)


def test_functions_in_lists_are_structure():
    assert all(isinstance(leaf, (jax.Array, float)) for leaf in jax.tree.leaves(Stack()))
    copied = jax.tree.map(lambda x: x, Stack())
    assert copied.layers[1] is jax.nn.relu
    assert isinstance(copied.layers[0], Affine)


class Tied(cs.Module):
    def __init__(self):
        self.w = cs.Param(jnp.full(2, 3.0))
        self.parts = [self.w, {"again": self.w}]


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_sharing(twin):
    m = Tied()
    n = twin(m)
    assert n.w is n.parts[0] is n.parts[1]["again"]
    assert n.w is not m.w
    m.w += 1
    assert n.w.get().tolist() == [3, 3]


def test_bare_arrays_are_refused_with_the_fix():
    m = Affine()
    with pytest.raises(ChainruleError, match=r"Affine\.scale.*f32\[2\].*Param\(array\)") as caught:
        m.scale = jnp.ones(2)
    assert caught.value.code == "bare_array"
    with pytest.raises(ChainruleError):
        m.layers = [jnp.ones(2)]


def test_equinox_modules_become_layers():
    m = Affine()
    reference = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    m.net = reference
    assert isinstance(m.net, cs.layers.Layer)
    np.testing.assert_allclose(m.net(jnp.ones(2)), reference(jnp.ones(2)))
    assert m.net.in_size == 2
    paths = [row.path for row in cs.summary(m).rows]
    assert "net.layers.[0].weight" in paths


def test_submodules_finds_the_nearest_of_a_class_once():
    m = Stack()
    m.again = m.layers[0]
    found = list(m.submodules(Affine))
    assert len(found) == 3
    assert found[0] is m.again
    assert list(Affine().submodules()) == []


def test_modes_reach_every_layer_and_count_as_structure():
    net = cs.layers.Sequential(cs.layers.Dropout(0.5), cs.layers.Linear(2, 2))
    assert not net.is_train
    assert not net.is_eval
    net.eval()
    assert net.is_eval
    assert net.layers[0].inference.get() is True
    assert net.layers[1].is_eval
    before = jax.tree.structure(net)
    net.train()
    assert net.is_train
    assert net.layers[0].inference.get() is False
    assert jax.tree.structure(net) != before


def test_repr_shows_what_is_inside():
    text = repr(Stack())
    assert "layers: List(" in text
    assert "w: Param(f32[2])" in text
    m = Stack()
    assert "<pre>" in m._repr_html_()
    assert "<table>" in m._repr_html_()


def test_summary_counts_shared_parameters_once():
    m = Stack()
    m.tied = m.layers[0].w
    table = cs.summary(m)
    assert table.nbytes == 6 * 2 * 4 + 4
    row = next(row for row in table.rows if row.path == "layers.[0].w")
    assert row.aliases == ("tied",)
    assert "shared with" in str(table)
    assert "<table>" in table._repr_html_()


def test_stacked_transformations_of_a_method_all_track_the_module():
    class Net(cs.Module):
        def __init__(self):
            self.w, self.calls = cs.Param(jnp.full(2, 3.0)), cs.Param(0)

        @cs.jit
        @cs.value_and_grad(kwargs_mask=True)
        def loss(self, x):
            self.calls += 1
            return jnp.sum(x * self.w**2)

        @cs.jit
        @cs.vmap
        def scale(self, x):
            return x * self.w

    net = Net()
    value, gradients = net.loss(2.0)
    assert float(value) == 36.0
    np.testing.assert_array_equal(gradients["self"]["w"], jnp.full(2, 12.0))
    assert int(net.calls) == 1
    np.testing.assert_array_equal(net.scale(jnp.arange(2.0)), [[0.0, 0.0], [3.0, 3.0]])


@pytest.mark.parametrize(
    "twin",
    [
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        cs.shared,
        lambda m: jax.tree.map(lambda leaf: leaf, m),
    ],
    ids=["deepcopy", "pickle", "shared", "tree.map"],
)
def test_dictionaries_keep_their_order_in_copies(twin):
    m = cs.Module()
    m.blocks = {"second": cs.Param(2.0), "first": cs.Param(1.0), "name": "x"}
    assert list(twin(m).blocks) == ["second", "first", "name"]


def test_models_that_loop_in_another_order_run_another_program():
    def model(*names):
        m = cs.Module()
        m.blocks = {name: cs.Param({"add": 1.0, "mul": 3.0}[name]) for name in names}
        return m

    @cs.jit
    def run(x, *, m):
        for name, block in m.blocks.items():
            x = x + block if name == "add" else x * block
        return x

    assert float(run(2.0, m=model("add", "mul"))) == 9
    assert float(run(2.0, m=model("mul", "add"))) == 7
