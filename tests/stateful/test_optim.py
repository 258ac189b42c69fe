import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule import InputError
from chainrule.stateful import GradientError, M, Optim


class Bias(cs.Param):
    pass


class Net(cs.Module):
    def __init__(self):
        self.w = cs.Param(jnp.array([1.0, -2.0]))
        self.b = Bias(jnp.array(0.5))
        self.count = cs.Param(jnp.zeros((), int))
        self.fixed = cs.Param(jnp.ones(2), frozen=True)


def loss(*, net):
    return jnp.sum((net.w - 3.0) ** 2 * net.fixed) + (net.b + 1.0) ** 2


def make_step(traces=None):
    @cs.jit
    def step(*, net, optim):
        if traces is not None:
            traces.append(1)
        value, grads = cs.value_and_grad(loss, kwargs_mask=True)(net=net)
        optim.step(net, grads["net"])
        return value

    return step


def reference(tx, steps):
    values = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
    state = tx.init(values)
    for _ in range(steps):
        grads = jax.grad(lambda v: jnp.sum((v["w"] - 3.0) ** 2) + (v["b"] + 1.0) ** 2)(values)
        updates, state = tx.update(grads, state, values)
        values = optax.apply_updates(values, updates)
    return values


@pytest.mark.parametrize(
    ("optim", "tx"),
    [
        (lambda tx: Optim(tx), optax.adam(0.1)),
        (lambda tx: Optim(lambda: tx), optax.sgd(0.1, momentum=0.9)),
        (lambda tx: Optim(tx), optax.sgd(optax.linear_schedule(0.1, 0.0, 3))),
        (lambda tx: Optim(tx), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))),
    ],
)
def test_equals_optax_by_hand(optim, tx):
    net, optim, step = Net(), optim(tx), make_step()
    for _ in range(4):
        step(net=net, optim=optim)
    expected = reference(tx, 4)
    np.testing.assert_allclose(net.w.get(), expected["w"], rtol=1e-5)
    np.testing.assert_allclose(net.b.get(), expected["b"], rtol=1e-5)
    assert int(optim.count) == 4
    assert net.fixed.get().tolist() == [1, 1]


def test_one_optimiser_per_kind():
    net = Net()
    optim = Optim({Bias: optax.sgd(1.0), cs.Param: optax.sgd(0.25)})
    step = make_step()
    step(net=net, optim=optim)
    assert float(net.b) == 0.5 - 3.0
    np.testing.assert_allclose(net.w.get(), [2.0, 0.5])


def test_gradient_accumulation_steps_on_the_mean():
    net, optim, step = Net(), Optim(optax.sgd(0.25), accumulate=2), make_step()
    step(net=net, optim=optim)
    assert net.w.get().tolist() == [1, -2]
    step(net=net, optim=optim)
    np.testing.assert_allclose(net.w.get(), [2.0, 0.5])


def test_reset_and_new_instances_compile_nothing_anew():
    traces, tx, net = [], optax.adam(0.1), Net()
    step = make_step(traces)
    for _ in range(3):
        optim = Optim(tx)
        for _ in range(2):
            step(net=net, optim=optim)
        optim.reset()
        step(net=net, optim=optim)
    # One trace before the state exists, one with it.
    assert len(traces) == 2
    optim.init(net)
    step(net=net, optim=optim)
    assert len(traces) == 2


def test_missing_gradients_are_named():
    net, optim = Net(), Optim(optax.sgd(0.1))
    _, grads = cs.value_and_grad(loss, kwargs_mask=M(Bias))(net=net)
    with pytest.raises(GradientError, match=r"1 of 2 parameters: `w` f32\[2\]") as caught:
        optim.step(net, grads["net"])
    assert caught.value.code == "gradient_missing"
    assert optim.state.get() is None
    optim.step(net, grads["net"], allow_missing=True)
    assert float(net.b) != 0.5
    assert net.w.get().tolist() == [1, -2]
    with pytest.raises(GradientError, match="is f32"):
        Optim(optax.sgd(0.1)).step(net, {"w": jnp.ones(3), "b": jnp.ones(())})
    with pytest.raises(GradientError, match="path"):
        Optim(optax.sgd(0.1)).step(net, jnp.ones(3))
    with pytest.raises(InputError, match="optax"):
        Optim(3)


def test_gradients_are_left_alone_and_several_models_fit():
    nets, optim = {"a": Net(), "b": Net()}, Optim(optax.sgd(0.25))
    f = lambda *, a, b: loss(net=a) + loss(net=b)  # noqa: E731
    grads = cs.grad(f, kwargs_mask=True)(**nets)
    before = jax.tree.map(lambda g: g + 0, grads)
    optim.step(nets, grads)
    np.testing.assert_allclose(nets["b"].w.get(), [2.0, 0.5])
    jax.tree.map(np.testing.assert_array_equal, grads, before)


def test_extra_arguments_reach_the_optimiser():
    net, optim = Net(), Optim(optax.lbfgs())

    @cs.jit
    def step(*, net, optim):
        value, grads = cs.value_and_grad(loss, kwargs_mask=True)(net=net)

        def at(values):
            return jnp.sum((values["w"] - 3.0) ** 2) + (values["b"] + 1.0) ** 2

        optim.step(net, grads["net"], value=value, grad=grads["net"], value_fn=at)
        return value

    for _ in range(4):
        value = step(net=net, optim=optim)
    assert float(value) < 1e-6


def test_an_optimiser_may_be_part_of_what_it_trains():
    class Trainer(cs.Module):
        def __init__(self):
            self.w, self.optim = cs.Param(jnp.ones(2)), Optim(optax.sgd(0.1, momentum=0.9))

        @cs.jit
        def step(self):
            gradients = cs.grad(lambda *, t: jnp.sum(t.w**2), kwargs_mask=True)(t=self)
            return self.optim.step(self, gradients["t"])

    trainer, expected = Trainer(), 1.0
    velocity = 0.0
    for _ in range(3):
        assert trainer.step().keys() == {"w"}
        velocity = 0.9 * velocity + 2 * expected
        expected -= 0.1 * velocity
    np.testing.assert_allclose(trainer.w, expected, rtol=1e-6)
