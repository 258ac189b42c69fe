"""pcx's names: what its specification says of masks, gradients, optimisers, keys and checkpoints."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.compat.pcx as px
from chainrule.compat.pcx import functional as pxf
from chainrule.compat.pcx import nn as pxnn
from chainrule.compat.pcx import predictive_coding as pxc
from chainrule.compat.pcx import utils as pxu

WEIGHTS = pxu.M(pxnn.LayerParam).to((False, True))


def layer():
    return pxnn.Linear(2, 3, rkg=px.RandomKeyGenerator(0))


def test_masks():
    model = {"a": layer(), "b": px.Param(jnp.ones(2))}
    either = (pxu.M(px.ParamDict) | pxnn.LayerParam) & ~pxu.M_has(px.Param, shape=(3,))
    assert either.apply(model["a"].nn.weight)
    assert not either.apply(model["a"].nn.bias)
    assert pxu.M_is(px.Param, pxnn.LayerParam).apply(model["a"].nn.bias)
    model["b"].frozen = True
    assert not pxu.M_hasnot(px.Param, frozen=True).apply(model["b"])
    kept = pxu.M(pxnn.LayerParam)(model, is_pytree=True)
    assert kept["a"].nn.weight is model["a"].nn.weight
    assert kept["b"] is None


def test_gradients_are_parameters_where_selected_and_none_elsewhere():
    a = layer()
    both = {"first": a, "again": pxnn.shared(a), "other": px.Param(jnp.array([1.0, 2.0]))}

    @pxf.value_and_grad(WEIGHTS)
    def loss(*, model):
        x = model["other"].get()
        return jnp.sum(model["first"](x)) + 2 * jnp.sum(model["again"](x)), "dropped"

    value, grads = loss(model=both)
    assert set(grads) == {"model"}
    found = grads["model"]
    assert found["other"] is None
    holder = next(
        entry for entry in (found["first"], found["again"]) if entry.nn.weight is not None
    )
    other = found["again"] if holder is found["first"] else found["first"]
    assert isinstance(holder.nn.weight, pxnn.LayerParam)
    np.testing.assert_allclose(holder.nn.weight.get(), 3 * np.tile([1.0, 2.0], (3, 1)))
    assert other.nn.weight is None  # a shared parameter has one gradient, the sum
    assert value.shape == ()


def test_optim_follows_optax_and_refuses_missing_gradients():
    model = layer()
    optim = pxu.Optim(lambda: optax.adam(0.1), pxu.M(pxnn.LayerParam)(model))
    weight = {"w": model.nn.weight.get(), "b": model.nn.bias.get()}
    reference = optax.adam(0.1)
    state = reference.init(weight)

    def loss(w, b):
        return jnp.sum((w @ jnp.array([1.0, -1.0]) + b) ** 2)

    @pxf.jit()
    def train(*, model, optim):
        at = pxf.value_and_grad(WEIGHTS)(
            lambda *, model: loss(model.nn.weight.get(), model.nn.bias.get())
        )
        _, grads = at(model=model)
        optim.step(model, grads["model"], scale_by=0.5)

    for _ in range(3):
        train(model=model, optim=optim)
        grads = jax.grad(lambda p: 0.5 * loss(p["w"], p["b"]))(weight)
        updates, state = reference.update(grads, state, weight)
        weight = optax.apply_updates(weight, updates)
    np.testing.assert_allclose(model.nn.weight.get(), weight["w"], rtol=1e-5)

    only_bias = pxf.value_and_grad(pxu.M_has(pxnn.LayerParam, shape=(3,)).to((False, True)))
    _, grads = only_bias(lambda *, model: jnp.sum(model.nn.bias.get()))(model=model)
    assert optim.step(model, grads["model"], allow_none=True) is None
    with pytest.raises(ValueError, match=r"nn\.weight"):
        optim.step(model, grads["model"])


def test_optim_tree_leaves_parts_without_gradients_alone():
    model = [layer(), layer()]
    before = [part.nn.weight.get() for part in model]
    optim = pxu.OptimTree(
        lambda: optax.sgd(0.5),
        lambda node: isinstance(node, pxnn.Linear),
        pxu.M(pxnn.LayerParam)(model),
    )
    assert len(optim.groups.get()) == 2

    @pxf.jit()
    def train(*, model, optim):
        first = pxf.value_and_grad({"first": WEIGHTS, "second": False})
        _, grads = first(lambda *, first, second: jnp.sum(first.nn.weight.get() ** 2))(
            first=model[0], second=model[1]
        )
        optim.step(model, [grads["first"], grads["second"]], scale_by=0.5)

    train(model=model, optim=optim)
    np.testing.assert_allclose(model[0].nn.weight.get(), before[0] / 2)
    np.testing.assert_array_equal(model[1].nn.weight.get(), before[1])


def test_updates_can_be_applied_later():
    model = px.Param(jnp.array([1.0, 2.0]))
    optim = pxu.Optim(lambda: optax.sgd(0.5), model)
    _, grads = pxf.value_and_grad(pxu.M(px.Param).to((False, True)))(
        lambda *, model: jnp.sum(model.get() ** 2)
    )(model=model)
    updates = optim.step(model, grads["model"], apply_updates=False)
    assert model.get().tolist() == [1.0, 2.0]
    optim.apply_updates(model, updates)
    assert model.get().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda *parameters: pxu.Optim(lambda: optax.sgd(0.5), *parameters),
        lambda *parameters: pxu.OptimTree(lambda: optax.sgd(0.5), lambda node: False, *parameters),
    ],
)
def test_a_step_without_parameters_is_no_silent_one(make):
    model = layer()
    weights = pxu.M(pxnn.LayerParam)(model)
    optim = make()
    for _ in range(2):
        with pytest.raises(ValueError, match="call `init`"):
            optim.step(model, weights)
        optim.init(weights)
        optim.step(model, weights)
        optim.clear()
    np.testing.assert_allclose(model.nn.bias.get(), layer().nn.bias.get() / 4, rtol=1e-6)


def test_lane_keys_are_rows_of_one_split():
    px.RKG.seed(5)
    start = jax.random.PRNGKey(5)
    keys = pxf.vmap(in_axes=(0,), axis_name="lanes")(lambda x: px.RKG())(jnp.zeros(3))
    lanes = jax.random.split(start, 4)[1:]
    expected = [jax.random.split(lane, 2)[1] for lane in lanes]
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(px.RKG.key.get(), jax.random.split(lanes[0], 2)[0])


def test_checkpoints_by_path(tmp_path):
    model = {"net": [layer(), layer()]}
    pxu.save_params(model, str(tmp_path / "m"))
    with np.load(tmp_path / "m.npz") as file:
        assert set(file.files) >= {"['net'][0].nn.weight", "['net'][1].nn.bias"}
    other = {"net": [pxnn.Linear(2, 3), pxnn.Linear(2, 3)]}
    pxu.load_params(other, str(tmp_path / "m"))
    np.testing.assert_array_equal(other["net"][1].nn.weight.get(), layer().nn.weight.get())
    with pytest.raises(ValueError, match="shape"):
        pxu.load_params({"net": [pxnn.Linear(4, 3)]}, str(tmp_path / "m"))
    with pytest.raises(KeyError):
        pxu.load_params({"elsewhere": layer()}, str(tmp_path / "m"))


def test_reduce_axes_are_refused():
    with pytest.raises(NotImplementedError, match="psum"):
        pxf.value_and_grad(WEIGHTS, reduce_axes=("batch",))(jnp.sum)


def test_trees():
    model = layer()
    shapes = px.tree_extract(model, extract_fn=lambda p: p.get().shape, is_pytree=True)
    assert set(shapes) == {(3, 2), (3,)}
    zeros = px.tree_extract(model, extract_fn=lambda p: 0 * p.get())
    assert px.tree_inject(model, values=zeros) is model
    assert not np.any(model.nn.weight.get())
    px.tree_inject(model, params=layer(), inject_fn=lambda param, value: param.set(2 * value))
    np.testing.assert_array_equal(model.nn.weight.get(), 2 * layer().nn.weight.get())
    with pytest.raises(ValueError, match="2 values, one for each parameter; found 1"):
        px.tree_inject(model, values=zeros[:1])
    assert px.tree_inject(model, values=(*zeros, 1.0), strict=False) is model
    pairs = px.tree_extract(model, model, extract_fn=lambda one, other: (one, other))
    assert all(one is other for one, other in pairs)
    visited = []
    px.tree_apply(visited.append, lambda x: isinstance(x, px.Param), {"m": model})
    assert len(visited) == 2
    assert px.set(px.Param(jnp.zeros(1)), jnp.ones(1)).get().tolist() == [1.0]


def test_vode_takes_its_generator_by_position():
    vode = pxc.Vode()
    generator = px.RandomKeyGenerator(0)
    with pxu.step(vode, pxc.STATUS.INIT):
        assert vode(jnp.ones(2), generator).tolist() == [1.0, 1.0]
    vode.set("h", jnp.array([2.0, 1.0]), generator)
    assert vode.get("h", None, generator).tolist() == [2.0, 1.0]
    assert float(vode.energy(generator)) == 0.5


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: pxnn.Conv2d(1, 2, 3), (2, 4, 4)),
        (lambda: pxnn.ConvTranspose(2, 1, 2, 3), (2, 8, 8)),
        (lambda: pxnn.MaxPool2d(2, 2), (1, 3, 3)),
        (lambda: pxnn.AvgPool2d(2, 2), (1, 3, 3)),
        (lambda: pxnn.Pool(0.0, jax.lax.add, 2, 2), (1, 5, 5)),
        (lambda: pxnn.AdaptivePool((2, 2), 2, jnp.max), (1, 2, 2)),
        (lambda: pxnn.AdaptiveAvgPool2d((2, 2)), (1, 2, 2)),
        (lambda: pxnn.AdaptiveMaxPool2d((3, 2)), (1, 3, 2)),
        (lambda: pxnn.LayerNorm((1, 6, 6)), (1, 6, 6)),
        (lambda: pxnn.Dropout(0.5, inference=True), (1, 6, 6)),
    ],
)
def test_layers(make, shape):
    assert make()(jnp.ones((1, 6, 6))).shape == shape


def test_batch_norm_normalises_over_the_batch():
    norm = pxnn.BatchNorm(2, "batch", mode="batch")
    x = jnp.arange(6.0).reshape(3, 2)
    y = pxf.vmap({"norm": None}, in_axes=(0,), axis_name="batch")(lambda x, *, norm: norm(x))(
        x, norm=norm
    )
    np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-5)


class Counting(eqx.Module):
    """Multiplies by a weight, and counts its calls."""

    weight: jax.Array
    count: eqx.nn.StateIndex

    def __init__(self, size):
        self.weight = jnp.full(size, 2.0)
        self.count = eqx.nn.StateIndex(jnp.array(0))

    def __call__(self, x, state, *, key=None):
        return self.weight * x, state.set(self.count, state.get(self.count) + 1)


def test_layers_with_state_keep_it_from_call_to_call():
    layer = pxnn.StatefulLayer(Counting, 3)

    @pxf.jit()
    def call(x, *, layer):
        return layer(x)

    np.testing.assert_array_equal(layer(jnp.ones(3)), 2 * np.ones(3))
    np.testing.assert_array_equal(call(jnp.ones(3), layer=layer), 2 * np.ones(3))
    assert isinstance(layer.state, pxnn.StateParam)
    assert jax.tree.leaves(layer.state) == [2]
    assert isinstance(layer.nn.weight, pxnn.LayerParam)
    at = pxf.value_and_grad(pxu.M(pxnn.LayerParam).to((False, True)))
    _, grads = at(lambda x, *, layer: jnp.sum(layer(x)))(jnp.arange(3.0), layer=layer)
    np.testing.assert_array_equal(grads["layer"].nn.weight.get(), np.arange(3.0))
