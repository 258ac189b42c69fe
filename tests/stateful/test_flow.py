import jax
import jax.numpy as jnp
import numpy as np

import chainrule.stateful as cs


class Net(cs.Module):
    def __init__(self):
        self.n = cs.Param(jnp.zeros((), int))
        self.tied = self.n
        self.w = cs.Param(jnp.ones(2))


def test_scan_as_in_jax_and_as_decorator():
    f = lambda c, x: (c + x, c * x)  # noqa: E731
    xs = jnp.arange(1.0, 5.0)
    expected = jax.lax.scan(f, 0.0, xs, reverse=True)
    for ours in (cs.scan(f, 0.0, xs, reverse=True), cs.scan(f, reverse=True)(0.0, xs),
                 cs.scan(reverse=True)(f)(0.0, xs)):  # fmt: skip
        np.testing.assert_allclose(ours[0], expected[0])
        np.testing.assert_allclose(ours[1], expected[1])


def test_scan_over_layers():
    class Layer(cs.Module):
        def __init__(self):
            self.w = cs.Param(jnp.arange(1.0, 4.0))
            self.uses = cs.Param(jnp.zeros((), int))

    layers = Layer()

    def body(c, _, *, layers):
        layers.uses += 1
        layers.w *= 2
        return c * layers.w, None

    mask = {"layers": {"w": 0}}
    out, _ = cs.scan(body, 1.0, None, length=3, kwargs_mask=mask, layers=layers)
    assert float(out) == 2 * 4 * 6
    assert int(layers.uses) == 3
    assert layers.w.get().tolist() == [2, 4, 6]


def test_while_condition_sees_shared_parameters_and_may_write():
    net = Net()

    def go_on(x, *, net):
        assert net.n is net.tied
        net.tied += 1
        return x < 3

    out = cs.while_loop(go_on, lambda x, *, net: x + net.w[0], 0.0, net=net)
    assert float(out) == 3
    assert int(net.n) == 4


def test_while_condition_draws_a_new_key_every_time():
    """A geometric number of tries, equal to the hand-written loop."""
    cs.RKG.seed(5)
    tries = cs.while_loop(lambda i: jax.random.uniform(cs.RKG()) < 0.8, lambda i: i + 1, 0)
    key, expected = jax.random.key(5), 0
    while True:
        key, drawn = jax.random.split(key)
        if jax.random.uniform(drawn) >= 0.8:
            break
        expected += 1
    assert int(tries) == expected
    np.testing.assert_array_equal(cs.RKG.key.get(), jax.random.key_data(key))


def test_branches_and_mixed_transformations():
    net = Net()

    def add(x, *, net):
        net.n += 1
        return x + 1.0

    transformed = cs.jit(add)
    plain = lambda x, *, net: x * 2  # noqa: E731
    assert float(cs.cond(True, transformed, plain, 1.0, net=net)) == 2
    assert float(cs.cond(False, transformed, plain, 3.0, net=net)) == 6
    assert float(cs.cond(plain, transformed)(False, 1.0, net=net)) == 2
    assert float(cs.switch(2, [plain, transformed, plain], 4.0, net=net)) == 8
    assert float(cs.switch([transformed, plain])(0, 1.0, net=net)) == 2
    assert float(cs.cond(add, plain)(jnp.array(True), 1.0, net=net)) == 2
    assert float(cs.switch((plain, add))(9, 1.0, net=net)) == 2  # clamped, as in JAX
    assert int(net.n) == 5


def test_branches_draw_from_the_generator():
    cs.RKG.seed(1)
    f = cs.jit(lambda p: cs.cond(p, lambda: jax.random.uniform(cs.RKG()), lambda: 0.5))
    before = cs.RKG.key.get()
    assert float(f(False)) == 0.5
    np.testing.assert_array_equal(cs.RKG.key.get(), before)
    expected = jax.random.uniform(jax.random.split(jax.random.key(1))[1])
    np.testing.assert_allclose(f(True), expected)
    assert (cs.RKG.key.get() != before).any()


def test_generator_counts():
    rng = cs.RandomKeyGenerator(3)
    assert rng().shape == ()
    assert rng(1).shape == (1,)
    assert rng(4).shape == (4,)
    again = cs.RandomKeyGenerator(3)
    a, b = again(), cs.RandomKeyGenerator(3)()
    assert (jax.random.key_data(a) == jax.random.key_data(b)).all()
    keys = jax.random.split(jax.random.key(3), 5)
    drawn = cs.RandomKeyGenerator(3)(4)
    assert (jax.random.key_data(drawn) == jax.random.key_data(keys[1:])).all()


def test_arguments_by_name_as_in_jax():
    scale, xs = cs.Param(2.0), jnp.arange(1.0, 4.0)
    body = lambda c, x, *, scale: (c + scale * x, c)  # noqa: E731
    expected = jax.lax.scan(lambda c, x: (c + 2 * x, c), init=0.0, xs=xs)
    for ours in (cs.scan(body, init=0.0, xs=xs, scale=scale), cs.scan(body, 0.0, xs=xs, scale=scale),
                 cs.scan(body)(0.0, xs=xs, scale=scale)):  # fmt: skip
        np.testing.assert_allclose(ours[0], expected[0])
        np.testing.assert_allclose(ours[1], expected[1])
    count = cs.while_loop(lambda n: n < 3, lambda n: n + 1, init_val=0)
    assert int(count) == 3


def test_a_parameter_can_choose_the_branch():
    is_on = cs.Param(jnp.array(True))
    assert float(cs.cond(is_on, lambda x: x + 1, lambda x: x - 1, 1.0)) == 2.0
    assert float(cs.switch(cs.Param(1), [lambda x: x + 1, lambda x: x - 1], 1.0)) == 0.0


def test_a_generator_nobody_drew_from_is_copied_with_its_seed():
    expected = cs.RandomKeyGenerator(3)()
    draw = lambda generator: generator()  # noqa: E731
    for function in (cs.jit(draw), jax.jit(draw), lambda g: draw(jax.tree.map(jnp.array, g))):
        assert function(cs.RandomKeyGenerator(3)) == expected
