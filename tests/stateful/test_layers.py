import copy
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule.stateful import layers as L  # noqa: N812

KEY = jax.random.split(jax.random.key(3))[1]  # what a generator with seed 3 gives first


def rng():
    return cs.RandomKeyGenerator(3)


CASES = [
    (L.Linear(3, 2, rkg=rng()), eqx.nn.Linear(3, 2, key=KEY), [(3,)]),
    (L.Conv(2, 1, 2, 3, padding=1, rkg=rng()), eqx.nn.Conv(2, 1, 2, 3, padding=1, key=KEY), [(1, 4, 4)]),
    (L.ConvTranspose(1, 2, 1, 3, rkg=rng()), eqx.nn.ConvTranspose(1, 2, 1, 3, key=KEY), [(2, 5)]),
    (L.MaxPool(2, 2), eqx.nn.MaxPool2d(2), [(1, 4, 4)]),
    (L.AvgPool(1, 2, stride=2), eqx.nn.AvgPool1d(2, stride=2), [(1, 4)]),
    (L.LayerNorm(3), eqx.nn.LayerNorm(3), [(3,)]),
    (L.RMSNorm(3), eqx.nn.RMSNorm(3), [(3,)]),
    (L.GroupNorm(2, 4), eqx.nn.GroupNorm(2, 4), [(4, 3)]),
    (L.Attention(2, 4, rkg=rng()), eqx.nn.MultiheadAttention(2, 4, key=KEY), [(3, 4)] * 3),
    (L.GRUCell(2, 3, rkg=rng()), eqx.nn.GRUCell(2, 3, key=KEY), [(2,), (3,)]),
    (L.Layer(eqx.nn.MLP(2, 2, 3, 1, key=KEY)), eqx.nn.MLP(2, 2, 3, 1, key=KEY), [(2,)]),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "reference", "shapes"), CASES, ids=lambda x: type(x).__name__)
def test_equals_equinox(ours, reference, shapes):
    args = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    np.testing.assert_allclose(ours(*args), reference(*args), rtol=1e-6)
    arrays = jax.tree.leaves(eqx.filter(reference, eqx.is_array))
    assert len(cs.tree_extract(ours, L.LayerParam)) == len(arrays)


@pytest.mark.parametrize(
    "twin",
    [
        copy.deepcopy,
        copy.copy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: jax.tree.map(lambda leaf: leaf, m),
        lambda m: jax.tree.unflatten(jax.tree.structure(m), jax.tree.leaves(m)),
        lambda m: eqx.tree_at(jax.tree.leaves, m, [leaf + 0 for leaf in jax.tree.leaves(m)]),
    ],
    ids=["deepcopy", "copy", "pickle", "tree.map", "tree.unflatten", "tree_at"],
)
def test_copies_compute_the_same_and_share_programs(twin):
    traces = []

    @cs.jit
    def run(x, *, net):
        traces.append(1)
        return net(x)

    net = L.Sequential(L.Linear(4, 4, rkg=rng()), jax.nn.relu, L.GroupNorm(2, 4), jnp.tanh)
    other, x = twin(net), jnp.arange(4.0)
    np.testing.assert_array_equal(run(x, net=other), run(x, net=net))
    np.testing.assert_array_equal(other(x), net(x))
    assert len(traces) == 1


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("case", [case for case in CASES if type(case[0]) is not L.Layer],
                         ids=lambda case: type(case[0]).__name__)  # fmt: skip
def test_deep_copies_are_independent(case, twin):
    ours, _, shapes = case
    args = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    before = ours(*args)
    other = twin(ours)
    for param in cs.tree_extract(other):
        param.set(jnp.zeros_like(param.get()))
    np.testing.assert_array_equal(ours(*args), before)


def test_embedding_and_lstm():
    table = L.Embedding(4, 3, rkg=rng())
    np.testing.assert_array_equal(table(2), table.weight[2])
    h, c = L.LSTMCell(2, 3, rkg=rng())(jnp.ones(2), (jnp.zeros(3), jnp.zeros(3)))
    assert h.shape == c.shape == (3,)


def test_dropout_draws_and_switches_off():
    drop, x = L.Dropout(0.5), jnp.ones(1000)
    y = cs.jit(lambda x, *, drop: drop(x))(x, drop=drop)
    assert 0.35 < float(jnp.mean(y == 0)) < 0.65
    assert set(np.unique(y)) == {0.0, 2.0}
    assert (drop(x) != drop(x)).any()
    drop.eval()
    np.testing.assert_array_equal(drop(x), x)
    own = L.Dropout(0.5, rkg=cs.RandomKeyGenerator(0))
    np.testing.assert_array_equal(own(x), L.Dropout(0.5, rkg=cs.RandomKeyGenerator(0))(x))


def test_tied_weights_stay_tied():
    a, b = L.Linear(2, 2), L.Linear(2, 2)
    b.weight = a.weight
    grads = cs.grad(lambda x, *, ab: jnp.sum(ab[1](ab[0](x))), kwargs_mask=True)(
        jnp.ones(2), ab=[a, b]
    )
    assert len(grads["ab"]) == 3


def test_batch_norm_against_formulas():
    bn = L.BatchNorm(2, "batch", momentum=0.9)
    x = jax.random.normal(jax.random.key(0), (8, 2, 3)) * 2 + 1
    run = cs.vmap(lambda x, *, bn: bn(x), axis_name="batch")
    y = run(x, bn=bn)
    mean, var = np.mean(x, (0, 2)), np.var(x, (0, 2))
    shape = (1, 2, 1)
    expected = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bn.mean.get(), 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(bn.var.get(), 0.9 + 0.1 * var, rtol=1e-5)
    bn.eval()
    running = bn.mean.get()
    z = run(x, bn=bn)
    np.testing.assert_array_equal(bn.mean.get(), running)
    moved = (x - running.reshape(shape)) / np.sqrt(bn.var.get().reshape(shape) + 1e-5)
    np.testing.assert_allclose(z, moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_eval", [False, True])
def test_batch_norm_keeps_its_statistics_in_full_precision(is_eval):
    """What comes out has the precision that was asked for, so that what follows computes in it too."""
    low, full = L.BatchNorm(2, "batch"), L.BatchNorm(2, "batch")
    x = (100 + jax.random.normal(jax.random.key(0), (64, 2))).astype(jnp.bfloat16)
    run = cs.vmap(lambda x, *, bn: bn(x), axis_name="batch")
    for bn in (low, full):
        bn.mode(cs.Mode.EVAL if is_eval else cs.Mode.TRAIN)
        bn.mean.set(jnp.full(2, 99.0))
    found = cs.precision(run, compute=jnp.bfloat16)(x, bn=low)
    expected = run(x.astype(jnp.float32), bn=full)
    assert (found.dtype, low.mean.dtype, low.var.dtype) == (jnp.bfloat16, *2 * [jnp.float32])
    np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=1e-2)
    np.testing.assert_allclose(low.mean.get(), full.mean.get(), rtol=1e-6)
    np.testing.assert_allclose(low.var.get(), full.var.get(), rtol=1e-6)


def test_equinox_batch_norm_in_another_precision():
    norm = L.StatefulLayer(*eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="ema"))
    run = cs.precision(
        cs.vmap(lambda x, *, norm: norm(x), axis_name="batch"),
        compute=jnp.bfloat16,
        kwargs_mask=True,
    )
    assert run(jnp.ones((4, 2)), norm=norm).dtype == jnp.bfloat16
    assert jax.tree.leaves(norm.state)[-1].dtype == jnp.float32


def test_equinox_inference_flags_follow_the_mode():
    layer = L.Layer(eqx.nn.Dropout(0.5))
    x = jnp.ones(100)
    assert (layer(x, key=jax.random.key(0)) == 0).any()
    layer.eval()
    np.testing.assert_array_equal(layer(x), x)


def test_methods_of_an_equinox_module_see_the_parameters():
    class Affine(eqx.Module):
        weight: jax.Array
        power: int

        def encode(self, x):
            return self.weight * x**self.power

    layer = L.Layer(Affine(jnp.ones(2), 2))
    layer.weight.set(jnp.array([2.0, 3.0]))
    np.testing.assert_array_equal(layer.encode(3.0), [18.0, 27.0])
    assert layer.power == 2


class Sampler(eqx.Module):
    """Draws from its key, as the middle of a variational autoencoder does."""

    def __call__(self, x, *, key):
        return x + jax.random.normal(key, x.shape)


class Positional(eqx.Module):
    dropout: eqx.nn.Dropout

    def __call__(self, x, key):
        return self.dropout(x, key=key)


class Named(eqx.Module):
    dropout: eqx.nn.Dropout

    def __call__(self, x, noise):
        return self.dropout(x, key=noise)


class Passing(eqx.Module):
    dropout: eqx.nn.Dropout

    def __call__(self, x, **options):
        return self.dropout(x, **options)


@pytest.mark.parametrize(
    "make",
    [Sampler, *(lambda kind=kind: kind(eqx.nn.Dropout(0.5)) for kind in (Positional, Passing))],
    ids=["required", "positional", "options"],
)
def test_a_call_that_needs_a_key_draws_it(make):
    layer, x = L.Layer(make(), rkg=rng()), jnp.ones((4, 16))
    lanes = cs.jit(cs.vmap(layer))(x)
    assert len({tuple(lane) for lane in lanes.tolist()}) == 4
    np.testing.assert_array_equal(layer(x, key=KEY), make()(x, key=KEY))
    assert (layer(x) != layer(x)).any()


def test_keys_that_are_passed_in_another_way_are_left_alone():
    x = jnp.ones(16)
    for kind in (Positional, Named):
        module = kind(eqx.nn.Dropout(0.5))
        np.testing.assert_array_equal(L.Layer(module)(x, KEY), module(x, KEY))


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_parts_with_inference_flags_of_their_own_keep_them(flags):
    class Two(eqx.Module):
        parts: tuple

        def __call__(self, x, *, key=None):
            return [part(x, key=key) for part in self.parts]

    module = Two(tuple(eqx.nn.Dropout(0.5, inference=flag) for flag in flags))
    layer, x = L.Layer(module), jnp.ones(16)
    np.testing.assert_array_equal(layer(x, key=KEY), module(x, key=KEY))
    np.testing.assert_array_equal(copy.deepcopy(layer)(x, key=KEY), module(x, key=KEY))
    np.testing.assert_array_equal(layer.eval()(x), [x, x])
    expected = eqx.nn.inference_mode(module, value=False)(x, key=KEY)
    np.testing.assert_array_equal(layer.train()(x, key=KEY), expected)
