import contextlib

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
    # One trace that finds the state missing, one with it.
    assert len(traces) == 2
    optim.init(net)
    step(net=net, optim=optim)
    assert len(traces) == 2


@pytest.mark.parametrize("donate", [False, True])
def test_a_jitted_step_without_init_is_one_program(donate):
    tx = optax.adam(0.1)
    programs, net, optim = [], Net(), Optim(tx)

    @cs.jit(donate=donate)
    def step(*, net, optim):
        _, grads = cs.value_and_grad(loss, kwargs_mask=True)(net=net)
        with contextlib.suppress(Exception):  # of the user
            optim.step(net, grads["net"])
        programs.append(1)  # the end of a trace, which is compiled then

    for _ in range(3):
        step(net=net, optim=optim)
    assert len(programs) == 1
    np.testing.assert_allclose(net.w.get(), reference(tx, 3)["w"], rtol=1e-5)
    assert int(optim.count) == 3


def test_a_jit_around_a_jitted_step_without_init_is_one_program_too():
    programs, net, optim, inner = [], Net(), Optim(optax.adam(0.1)), make_step()

    @cs.jit
    def step(*, net, optim):
        inner(net=net, optim=optim)
        programs.append(1)

    for _ in range(3):
        step(net=net, optim=optim)
    assert len(programs) == 1
    np.testing.assert_allclose(net.w.get(), reference(optax.adam(0.1), 3)["w"], rtol=1e-5)


def test_an_error_after_the_first_step_is_shown_alone():
    net, optim = Net(), Optim(optax.adam(0.1))

    @cs.jit
    def step(*, net, optim):
        _, grads = cs.value_and_grad(loss, kwargs_mask=True)(net=net)
        optim.step(net, grads["net"])
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        step(net=net, optim=optim)
    assert caught.value.__context__ is None
    assert int(optim.count) == 0


def test_a_state_is_made_from_the_values_that_the_step_sees():
    """Those of parameters that were set before the step, in the same function."""
    tx = optax.GradientTransformation(
        lambda params: params, lambda updates, state, params=None: (state, state)
    )
    w, optim = cs.Param(jnp.ones(2)), Optim(tx)

    @cs.jit
    def step(*, w, optim):
        w.set(jnp.full(2, 3.0))
        optim.step(w, jnp.ones(2))

    step(w=w, optim=optim)
    np.testing.assert_array_equal(w.get(), [6.0, 6.0])


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


class Two(cs.Module):
    def __init__(self):
        self.a, self.b = cs.Param(jnp.array([1.0, -2.0])), cs.Param(jnp.array([3.0]))


def two_loss(*, net):
    return sum(jnp.sum((param - 1.0) ** 2) for param in cs.tree_extract(net))


def adam_by_hand(values, steps, rate=0.1):
    """Adam of one parameter on `sum((x - 1)²)`, by optax alone."""
    tx = optax.adam(rate)
    state = tx.init(values)
    for _ in range(steps):
        updates, state = tx.update(2 * (values - 1.0), state, values)
        values = optax.apply_updates(values, updates)
    return values


@pytest.mark.parametrize("is_jitted", [False, True])
def test_freezing_and_thawing_keeps_the_state_of_the_others(is_jitted):
    def step(*, net, optim):
        optim.step(net, cs.grad(two_loss, kwargs_mask=True)(net=net)["net"])

    step = cs.jit(step) if is_jitted else step
    net, optim = Two(), Optim(optax.adam(0.1))
    step(net=net, optim=optim)
    frozen = net.b.get()
    cs.frozen(net.b)
    for _ in range(3):
        step(net=net, optim=optim)
    np.testing.assert_array_equal(net.b.get(), frozen)
    cs.frozen(net.b, False)
    step(net=net, optim=optim)
    np.testing.assert_allclose(net.a, adam_by_hand(jnp.array([1.0, -2.0]), 5), rtol=1e-6)
    assert net.b.get() != frozen
    assert int(optim.count) == 5


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kinds", [False, True])
def test_models_may_grow(kinds, accumulate):
    tx = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(0.1))
    optim = Optim({Bias: optax.sgd(0.1), cs.Param: tx} if kinds else tx, accumulate=accumulate)
    net = Two()

    def step():
        for _ in range(accumulate):
            optim.step(net, cs.grad(two_loss, kwargs_mask=True)(net=net)["net"])

    step()
    net.c = Bias(jnp.array([5.0]))
    step()
    np.testing.assert_allclose(net.a, adam_by_hand(jnp.array([1.0, -2.0]), 2), rtol=1e-5)
    assert float(net.c[0]) != 5
    net.a = cs.Param(jnp.zeros(3))  # another shape: what was known about it is of no use
    step()
    assert net.a.shape == (3,)
    np.testing.assert_allclose(net.b, adam_by_hand(jnp.array([3.0]), 3), rtol=1e-5)


def test_missing_gradients_leave_the_state_of_their_parameters_alone():
    net, optim = Two(), Optim(optax.sgd(0.1, momentum=0.9))
    sizes = {"a": (2,), "b": (1,)}
    velocity, expected = ({"a": 0.0, "b": 0.0} for _ in range(2))
    start = {"a": net.a.get(), "b": net.b.get()}
    for names in (("a", "b"), ("a",), ("b",), ("a", "b")):
        optim.step(net, {name: jnp.ones(sizes[name]) for name in names}, allow_missing=True)
        for name in names:
            velocity[name] = 0.9 * velocity[name] + 1.0
            expected[name] -= 0.1 * velocity[name]
    for name, param in (("a", net.a), ("b", net.b)):
        np.testing.assert_allclose(param, start[name] + expected[name], rtol=1e-6)


def test_selections_that_are_empty_are_refused():
    net = cs.frozen(Two())
    for optim in (
        Optim(optax.sgd(0.1)),
        Optim(optax.sgd(0.1), Bias),
        Optim({Bias: optax.sgd(0.1)}),
    ):
        with pytest.raises(
            InputError, match=r"none of the 2 parameters `a`, `b`; 2 of them are frozen"
        ):
            optim.step(net, {})
    for mask in (True, M(Bias), Bias, {"net": True}):
        with pytest.raises(InputError, match="none of the 2 parameters"):
            cs.grad(two_loss, kwargs_mask=mask)(net=net)
    assert cs.grad(lambda x, *, net: x, argnums=0)(1.0, net=net) == 1.0


def test_a_state_of_another_optimiser_is_refused():
    net, optim = Two(), Optim(optax.adam(0.1))
    optim.init(net)
    optim.optimizers.set(Optim(optax.sgd(0.1, momentum=0.9)).optimizers.get())
    with pytest.raises(InputError, match=r"optim\.reset\(\)"):
        optim.step(net, {"a": jnp.ones(2), "b": jnp.ones(1)})


def test_optimisers_made_in_the_same_way_share_a_program():
    traces, tx = [], optax.adam(0.1)
    step = make_step(traces)
    for _ in range(3):
        net, optim = Net(), Optim(tx, M(cs.Param).hasnot(frozen=True).at("*") - M().at("count"))
        optim.init(net)
        step(net=net, optim=optim)
    assert len(traces) == 1


def test_noise_differs_from_step_to_step():
    net, optim = Two(), Optim(optax.noisy_sgd(0.1, key=0))
    zeros = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    first, second = (optim.step(net, zeros)["a"] for _ in range(2))
    assert (first != second).all()


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_in_a_scan_begin_without_a_state(reverse):
    def body(carry, x, *, net, optim):
        value, grads = cs.value_and_grad(two_loss, kwargs_mask=True)(net=net)
        optim.step(net, grads["net"])
        return carry + 1, (value, x)

    looped, unrolled = Two(), Two()
    optims, xs = [Optim(optax.adam(0.1)) for _ in range(2)], jnp.arange(4.0)
    count, (values, seen) = cs.scan(body, 0, xs, reverse=reverse, net=looped, optim=optims[0])
    expected = [body(0, None, net=unrolled, optim=optims[1])[1][0] for _ in range(4)]
    np.testing.assert_allclose(values[::-1] if reverse else values, expected, rtol=1e-6)
    np.testing.assert_array_equal(seen, xs)
    np.testing.assert_allclose(looped.a, unrolled.a, rtol=1e-6)
    assert int(count) == int(optims[0].count) == 4
    once = Optim(optax.adam(0.1))
    cs.jit(lambda *, net, optim: cs.scan(body, 0, xs[:1], net=net, optim=optim))(
        net=Two(), optim=once
    )
    assert int(once.count) == 1


def test_a_scan_that_fails_after_its_first_step_changes_nothing():
    calls = []

    def body(carry, x, *, p):
        calls.append(1)
        p.set(jnp.ones(2) if p.get() is None else jnp.ones(3))
        return carry, x

    p = cs.Param(None)
    with pytest.raises(cs.TrackingError):
        cs.scan(body, 0, jnp.arange(3.0), p=p)
    assert p.get() is None
