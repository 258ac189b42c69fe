"""Inference and learning, against backpropagation, closed forms and plain JAX."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule.errors import DefinitionError, InputError
from chainrule.predictive import (
    FREE,
    WEIGHTS,
    EnergyModule,
    Learner,
    Phase,
    Vode,
    VodeParam,
    ce_energy,
    energies,
    forward,
    incremental,
    inference_learning,
    predict,
    se_energy,
    settle,
    z_il,
)


class Net(EnergyModule):
    """A multi-layer perceptron with a node after every layer; the last one is clamped to the label."""

    def __init__(self, sizes, energy_fn=se_energy, activation=jnp.tanh, dtype=None):
        cs.RKG.seed(0)
        self.layers = [cs.layers.Linear(a, b, dtype=dtype) for a, b in itertools.pairwise(sizes)]
        self.nodes = [Vode() for _ in sizes[2:]] + [Vode(energy_fn, frozen=True)]
        self.activation = activation

    def __call__(self, x, y=None):
        for layer, node in zip(self.layers[:-1], self.nodes[:-1], strict=True):
            x = node(self.activation(layer(x)))
        u = self.nodes[-1](self.layers[-1](x), output="u")
        if y is not None:
            self.nodes[-1].set("h", y)
        return u

    def arrays(self):
        return [(layer.weight.get(), layer.bias.get()) for layer in self.layers]


def data(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.result_type(float))


def network_output(weights, x, activation=jnp.tanh):
    *hidden, (w, b) = weights
    for v, c in hidden:
        x = activation(x @ v.T + c)
    return x @ w.T + b


def network_energy(weights, values, x, y, activation=jnp.tanh):
    """The energy of all samples, written by hand."""
    below = [x, *values]
    predictions = [h @ w.T + b for (w, b), h in zip(weights, below, strict=True)]
    predictions = [*map(activation, predictions[:-1]), predictions[-1]]
    return sum(jnp.sum((h - u) ** 2) / 2 for h, u in zip([*values, y], predictions, strict=True))


def loss_se(weights, x, y):
    return jnp.mean(jnp.sum((network_output(weights, x) - y) ** 2, 1)) / 2


def loss_ce(weights, x, y):
    return jnp.mean(optax.softmax_cross_entropy(network_output(weights, x), y))


@pytest.mark.parametrize(
    ("sizes", "energy_fn", "loss", "optimiser"),
    [
        ((3, 5, 2), se_energy, loss_se, optax.sgd(1.0)),
        ((3, 4, 6, 4, 2), se_energy, loss_se, optax.adam(0.01)),
        ((3, 4, 5, 3), ce_energy, loss_ce, optax.sgd(1.0)),
    ],
    ids=["one hidden layer", "deep, adam", "cross-entropy"],
)
def test_z_il_is_backpropagation(sizes, energy_fn, loss, optimiser):
    net = Net(sizes, energy_fn)
    x, y = data(6, sizes[0]), jax.nn.softmax(data(6, sizes[-1], seed=1))
    before = net.arrays()
    state, gradient = optimiser.init(before), jax.jit(jax.grad(loss))
    layers = [f"layers.[{i}].*" for i in reversed(range(len(sizes) - 1))]
    learner = Learner(optax.sgd(1.0), optimiser, z_il(layers))
    for _ in range(2):
        updates, state = optimiser.update(gradient(before, x, y), state, before)
        before = optax.apply_updates(before, updates)
        learner(x, y, model=net)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), net.arrays(), before)


def test_linear_network_settles_at_its_closed_form():
    with jax.enable_x64(True):
        net = Net((3, 4, 2), activation=lambda x: x, dtype=jnp.float64)
        (w1, b1), (w2, b2) = net.arrays()
        x, y = data(5, 3), data(5, 2, seed=1)
        energy = Learner(optax.sgd(0.3), schedule=settle(300))(x, y, model=net)
        # h minimises |h - W1 x - b1|² + |y - W2 h - b2|².
        below = x @ w1.T + b1
        value = jnp.linalg.solve(jnp.eye(4) + w2.T @ w2, (below + (y - b2) @ w2).T).T
        np.testing.assert_allclose(net.nodes[0].h.get(), value, atol=1e-10)
        # Its energy is |e|² / 2 in the metric (1 + W2 W2ᵀ)⁻¹, e the error of the forward pass.
        error = y - below @ w2.T - b2
        metric = jnp.linalg.inv(jnp.eye(2) + w2 @ w2.T)
        expected = jnp.einsum("bi,ij,bj->", error, metric, error) / 2 / 5
        np.testing.assert_allclose(energy, expected, rtol=1e-10)


def test_energy_gradients_agree_with_finite_differences():
    with jax.enable_x64(True):
        net = Net((2, 3, 2), ce_energy, dtype=jnp.float64)
        x, y = data(4, 2), jax.nn.softmax(data(4, 2, seed=1))
        forward(x, y, model=net)
        for param in cs.tree_extract(net, FREE):
            param.set(param.get() + data(*param.shape, seed=2))

        def total(*, net):
            return jnp.sum(energies(x, y, model=net))

        gradients = cs.grad(total, kwargs_mask={"net": FREE | WEIGHTS})(net=net)["net"]
        params = cs.tree_extract(net, FREE | WEIGHTS)
        assert len(params) == len(gradients) == 5
        evaluate = cs.jit(total)
        for param, gradient in zip(params, gradients.values(), strict=True):
            value, direction, step = param.get(), data(*param.shape, seed=3), 1e-6
            ends = []
            for sign in (1, -1):
                param.set(value + sign * step * direction)
                ends.append(evaluate(net=net))
            param.set(value)
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(jnp.vdot(gradient, direction), slope, rtol=1e-7)


def hand_written(schedule, weights, x, y, rate, optimiser, steps):
    """What a schedule should do, in plain JAX."""
    values, h = [], x
    for w, b in weights[:-1]:
        h = jnp.tanh(h @ w.T + b)
        values.append(h)
    state, history = optimiser.init(weights), []
    gradient = jax.jit(jax.value_and_grad(network_energy, argnums=(0, 1)))

    def learn(weights, state, slope):
        mean = jax.tree.map(lambda g: g / len(x), slope)
        updates, state = optimiser.update(mean, state, weights)
        return optax.apply_updates(weights, updates), state

    for _ in range(steps):
        energy, (for_weights, for_values) = gradient(weights, values, x, y)
        history.append(energy / len(x))
        values = [v - rate * g for v, g in zip(values, for_values, strict=True)]
        if schedule is incremental:
            weights, state = learn(weights, state, for_weights)
    if schedule is inference_learning:
        energy, (for_weights, _) = gradient(weights, values, x, y)
        history.append(energy / len(x))
        weights, state = learn(weights, state, for_weights)
    return weights, values, jnp.stack(history)


@pytest.mark.parametrize("schedule", [inference_learning, incremental, settle])
@pytest.mark.parametrize("steps", [1, 11])
def test_schedules_do_what_a_hand_written_loop_does(schedule, steps):
    net = Net((3, 4, 4, 2))
    x, y = data(5, 3), data(5, 2, seed=1)
    expected = hand_written(schedule, net.arrays(), x, y, 0.1, optax.adam(0.01), steps)
    weights = None if schedule is settle else optax.adam(0.01)
    history = Learner(optax.sgd(0.1), weights, schedule(steps)).record(x, y, model=net)
    found = (net.arrays(), [node.h.get() for node in net.nodes[:-1]], history)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


def test_call_and_record_are_the_same_but_for_the_answer():
    x, y = data(5, 3), data(5, 2, seed=1)
    nets = [Net((3, 4, 2)) for _ in range(2)]
    learners = [Learner(optax.sgd(0.1), optax.sgd(0.1), inference_learning(4)) for _ in nets]
    last = learners[0](x, y, model=nets[0])
    history = learners[1].record(x, y, model=nets[1])
    assert history.shape == (5,)
    assert last.shape == ()
    np.testing.assert_allclose(last, history[-1], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, nets[0].arrays(), nets[1].arrays())


def test_state_and_weight_optimisers_are_separate_and_masks_are_heeded():
    net = Net((3, 4, 4, 2))
    net.layers[1].bias.frozen = True
    net.nodes[0].h.frozen = True
    before = net.arrays()
    x, y = data(5, 3), data(5, 2, seed=1)
    learner = Learner(
        optax.sgd(0.1, momentum=0.9),
        optax.adam(0.01),
        inference_learning(4),
        trained=WEIGHTS - cs.M().at("layers.[2].*"),
    )
    learner(x, y, model=net)
    changed = [[bool((a != b).any()) for a, b in zip(p, q, strict=True)]
               for p, q in zip(before, net.arrays(), strict=True)]  # fmt: skip
    # The first node does not move, so its error is zero and the first layer has no gradient.
    assert changed == [[False, False], [True, False], [False, False]]
    start = [jnp.tanh(network_output(before[:depth], x)) for depth in (1, 2)]
    moved = [bool(jnp.abs(n.h - s).max() > 1e-3) for n, s in zip(net.nodes, start, strict=False)]
    assert moved == [False, True]
    assert learner.states.state.get() is None
    assert int(learner.weights.count) == 1


def test_clamped_output_and_free_output():
    x, y = data(4, 3), data(4, 2, seed=1)
    net = Net((3, 4, 2))
    learner = Learner(optax.sgd(0.1), schedule=settle(5))
    learner(x, y, model=net)
    np.testing.assert_array_equal(net.nodes[-1].h.get(), y)
    output = predict(x, model=net)
    # Nothing holds a free output: the forward pass is the minimum already, and inference stays there.
    assert float(learner(x, model=net)) == 0.0
    np.testing.assert_allclose(net.nodes[-1].h.get(), output, rtol=1e-6)
    np.testing.assert_allclose(output, network_output(net.arrays(), x), rtol=1e-5, atol=1e-6)


def test_batches_of_any_size_follow_each_other_and_each_size_compiles_once():
    net = Net((3, 4, 2))
    learner = Learner(optax.sgd(0.1), optax.sgd(0.01), inference_learning(2))
    traces = []
    net.activation = lambda x: traces.append(x.shape) or jnp.tanh(x)
    for size in (4, 4, 2, 4, 2):
        learner(data(size, 3), data(size, 2), model=net)
        if size == 4:
            after_first = len(traces)
    assert len(traces) == after_first == 2 * (len(traces) // 2)
    assert net.nodes[0].h.shape == (2, 4)


def test_equal_networks_share_a_program():
    x, y = data(4, 3), data(4, 2)
    learner = Learner(optax.sgd(0.1), schedule=settle(2))
    traces, seen = [], []
    activation = lambda h: traces.append(h.shape) or jnp.tanh(h)  # noqa: E731
    for net in (Net((3, 4, 2)), Net((3, 4, 2))):
        net.activation = activation
        learner(x, y, model=net)
        seen.append(len(traces))
    assert seen[0] == seen[1] > 0


def test_nodes_added_later_are_found():
    net = Net((3, 4, 2))
    learner = Learner(optax.sgd(0.1), schedule=settle(2))
    learner(data(4, 3), data(4, 2), model=net)
    net.layers.insert(1, cs.layers.Linear(4, 4))
    net.nodes.insert(1, Vode())
    for size in (4, 3):
        learner(data(size, 3), data(size, 2), model=net)
        assert [node.h.shape[0] for node in net.nodes] == [size] * 3


def test_prediction_leaves_values_alone():
    net = Net((3, 4, 2))
    x, y = data(4, 3), data(4, 2)
    Learner(optax.sgd(0.1), schedule=settle(2))(x, y, model=net)
    before = net.nodes[0].h.get()
    assert predict(data(7, 3), model=net).shape == (7, 2)
    assert net.nodes[0].h.get() is before


def test_a_network_without_free_nodes_learns_by_the_gradient_of_its_output():
    net = Net((3, 2))
    x, y = data(4, 3), data(4, 2)
    before = net.arrays()
    Learner(optax.sgd(0.1), optax.sgd(0.5), inference_learning(3))(x, y, model=net)
    slope = jax.grad(loss_se)(before, x, y)
    expected = jax.tree.map(lambda w, g: w - 0.5 * g, before, slope)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), net.arrays(), expected)


def test_kept_values_are_where_inference_starts():
    class Latent(EnergyModule):
        def __init__(self):
            self.code, self.image = Vode(None), Vode(frozen=True)
            self.layer = cs.layers.Linear(2, 3)

        def __call__(self, y):
            self.image(self.layer(self.code.get("h")))
            self.image.set("h", y)

    net = Latent()
    net.code.h.set(jnp.zeros((4, 2)))
    learner = Learner(optax.sgd(0.1), schedule=settle(3), keep=cs.M().at("code.*"))
    y = data(4, 3)
    first = learner.record(y, model=net)
    second = learner.record(y, model=net)
    np.testing.assert_array_less(second, first[-1])


def test_mistakes_are_named():
    with pytest.raises(DefinitionError, match="no optimiser for them") as caught:
        Learner(optax.sgd(0.1), schedule=incremental(2))
    assert caught.value.code == "missing_optimiser"
    with pytest.raises(DefinitionError, match="at least one phase") as caught:
        Learner(optax.sgd(0.1))
    assert caught.value.code == "bad_schedule"
    with pytest.raises(InputError, match="once or more; found 0"):
        Phase(repeat=0)
    net = Net((3, 4, 2))
    half = Learner(optax.sgd(1.0), optax.sgd(1.0), z_il(["layers.[1].*"]))
    with pytest.raises(
        DefinitionError, match=r"no gradient to 2 of 4 weights: `layers.\[0\].bias`"
    ):
        half(data(4, 3), data(4, 2), model=net)


def test_a_call_that_fails_leaves_everything_as_it_was():
    net = Net((3, 4, 2))
    learner = Learner(optax.sgd(0.1), optax.adam(0.1), incremental(2))
    learner(data(4, 3), data(4, 2), model=net)
    before = [param.get() for param in cs.tree_extract([net, learner])]
    with pytest.raises(TypeError):
        learner(data(4, 5), data(4, 2), model=net)
    assert net.status is None
    assert all(
        param.get() is value
        for param, value in zip(cs.tree_extract([net, learner]), before, strict=True)
    )


def test_an_epoch_can_be_one_program():
    x, y = data(3, 4, 3), data(3, 4, 2, seed=1)
    nets = [Net((3, 4, 2)) for _ in range(2)]
    learners = [Learner(optax.sgd(0.1), optax.adam(0.01), inference_learning(2)) for _ in nets]
    one_by_one = [learners[0](*batch, model=nets[0]) for batch in zip(x, y, strict=True)]

    @cs.jit
    def epoch(x, y, *, net, learner):
        def body(carry, batch, *, net, learner):
            return carry, learner(*batch, model=net)

        return cs.scan(body, None, (x, y), net=net, learner=learner)[1]

    learners[1](x[0], y[0], model=nets[1])
    energies = epoch(x[1:], y[1:], net=nets[1], learner=learners[1])
    np.testing.assert_allclose(energies, jnp.stack(one_by_one[1:]), rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
                 nets[0].arrays(), nets[1].arrays())  # fmt: skip


def test_a_scan_may_begin_with_the_first_batch():
    x, y = data(3, 4, 3), data(3, 4, 2, seed=1)
    nets = [Net((3, 4, 2)) for _ in range(2)]
    learners = [Learner(optax.sgd(0.1), optax.adam(0.01), inference_learning(2)) for _ in nets]
    expected = [learners[0](*batch, model=nets[0]) for batch in zip(x, y, strict=True)]

    def body(carry, batch, *, net, learner):
        return carry, learner(*batch, model=net)

    _, energies = cs.scan(body, None, (x, y), net=nets[1], learner=learners[1])
    np.testing.assert_allclose(energies, jnp.stack(expected), rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
                 nets[0].arrays(), nets[1].arrays())  # fmt: skip


def test_noise_is_other_noise_on_every_batch():
    net = Net((3, 4, 2))
    make = lambda: Learner(optax.noisy_sgd(0.1, key=0), None, settle(2))  # noqa: E731
    learner, batch, seen = make(), (data(4, 3), data(4, 2)), []
    for _ in range(3):
        learner(*batch, model=net)
        seen.append(np.concatenate([np.ravel(v.get()) for v in cs.tree_extract(net, FREE)]))
    assert all((a != b).any() for a, b in itertools.combinations(seen, 2))
    make()(*batch, model=net)  # the same seed gives the same noise again
    again = np.concatenate([np.ravel(v.get()) for v in cs.tree_extract(net, FREE)])
    np.testing.assert_array_equal(again, seen[0])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_precision_throughout(dtype):
    net = Net((3, 4, 2), ce_energy, dtype=dtype)
    x, y = (data(4, n).astype(dtype) for n in (3, 2))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        learner = Learner(optax.sgd(0.1), optax.sgd(0.01), incremental(3))
        assert learner.record(x, y, model=net).dtype == dtype
    assert {param.dtype for param in cs.tree_extract(net, FREE | WEIGHTS)} == {jnp.dtype(dtype)}


def test_values_are_per_sample_parameters():
    assert cs.tree_extract(Net((3, 4, 2)), VodeParam) != ()
    assert [type(p) for p in cs.tree_extract(Net((3, 2)), WEIGHTS)] == [cs.layers.LayerParam] * 2


def test_a_data_class_whose_weights_are_one_pytree():
    @dataclass
    class Line(EnergyModule):
        weights: cs.Param
        node: Vode

        def __call__(self, x, y=None):
            weights = self.weights.get()
            u = self.node(weights["slope"] * x + weights["offset"], output="u")
            if y is not None:
                self.node.set("h", y)
            return u

    line = Line(cs.Param({"slope": jnp.ones(1), "offset": jnp.zeros(1)}), Vode(frozen=True))
    x, y = data(4, 1), data(4, 1, seed=1)
    Learner(optax.sgd(0.1), optax.sgd(0.5), inference_learning(1))(x, y, model=line)
    error = x - y  # the gradient of mean((x - y)² / 2), by hand
    np.testing.assert_allclose(
        line.weights.get()["slope"], 1 - 0.5 * jnp.mean(error * x), rtol=1e-5
    )
    np.testing.assert_allclose(line.weights.get()["offset"], -0.5 * jnp.mean(error), rtol=1e-5)
