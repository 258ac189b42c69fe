import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule.stateful import M, TrackingError


class State(cs.Param):
    pass


class Net(cs.Module):
    def __init__(self):
        self.w = cs.Param(jnp.arange(3.0))
        self.h = State(jnp.zeros(4))
        self.late = State(None)


@pytest.mark.parametrize("in_axes", [0, (0, None), [0, None], (0, 0)])
def test_positional_arguments_as_in_jax(in_axes):
    x, y = jnp.arange(4.0), jnp.ones(4)
    f = lambda x, y: (x * jnp.sum(y), y)  # noqa: E731
    ours = cs.vmap(f, in_axes=in_axes, out_axes=(0, 0))(x, y)
    plain = jax.vmap(f, in_axes=in_axes, out_axes=(0, 0))(x, y)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_out_axes_axis_name_and_size_as_in_jax():
    x = jnp.arange(6.0).reshape(2, 3)
    f = lambda x: (x - jax.lax.pmean(x, "n"), x)  # noqa: E731
    ours = cs.vmap(f, in_axes=1, out_axes=(0, 1), axis_name="n")(x)
    plain = jax.vmap(f, in_axes=1, out_axes=(0, 1), axis_name="n")(x)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b)
    assert cs.vmap(lambda: 1.0, axis_size=3)().shape == (3,)


MASKS = [
    M(State).to((None, 0)),
    {"net": M(State).to((None, 0))},
    lambda kwargs: {"net": M(State).to((None, 0))(kwargs["net"])},
    {"net": {"h": 0, "late": 0}},
]


@pytest.mark.parametrize("mask", MASKS)
def test_masks_say_the_axis_of_every_parameter(mask):
    net = Net()

    def f(x, *, net):
        assert net.w.shape == (3,)
        assert net.h.shape == ()
        net.h += x
        net.late.set(2 * x)
        return net.w[1] * x

    out = cs.vmap(f, kwargs_mask=mask)(jnp.arange(4.0), net=net)
    np.testing.assert_array_equal(out, np.arange(4.0))
    np.testing.assert_array_equal(net.h.get(), np.arange(4.0))
    np.testing.assert_array_equal(net.late.get(), 2 * np.arange(4.0))


def test_other_axes_and_plain_keyword_arrays():
    p = cs.Param(jnp.zeros((2, 3)))

    def f(x, *, p, scale):
        p += x * scale

    cs.vmap(f, kwargs_mask={"p": 1, "scale": 0})(jnp.arange(3.0), p=p, scale=jnp.full(3, 2.0))
    np.testing.assert_array_equal(p.get(), [[0, 2, 4]] * 2)


def test_shared_parameters_take_what_is_equal_in_all_lanes():
    net = Net()

    def f(x, *, net):
        net.w *= jax.lax.pmean(x, "n")

    cs.vmap(f, axis_name="n")(jnp.array([1.0, 3.0]), net=net)
    np.testing.assert_array_equal(net.w.get(), [0, 2, 4])


def test_a_batched_write_to_a_shared_parameter_is_named():
    net = Net()

    def f(x, *, net):
        net.h += 1
        net.w += x
        return x

    with pytest.raises(TrackingError, match=r"`net\.w` is shared") as caught:
        cs.vmap(f)(jnp.arange(4.0), net=net)
    assert caught.value.code == "batched_write"
    assert caught.value.path == "net.w"
    assert net.h.get().tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="out_axes"):  # not our business: JAX's own message
        cs.vmap(lambda x, *, net: x, out_axes=None)(jnp.arange(4.0), net=net)


def test_lanes_draw_different_reproducible_keys():
    def draw(x):
        return jax.random.uniform(cs.RKG())

    cs.RKG.seed(0)
    first = cs.vmap(draw)(jnp.zeros(4))
    second = cs.vmap(draw)(jnp.zeros(4))
    assert len({*first.tolist(), *second.tolist()}) == 8
    cs.RKG.seed(0)
    np.testing.assert_array_equal(cs.jit(cs.vmap(draw))(jnp.zeros(4)), first)


def test_any_generator_is_split_and_an_unused_one_stays():
    rng, state = cs.RandomKeyGenerator(1), cs.RKG.key.get()
    out = cs.vmap(lambda x, *, rng: jax.random.uniform(rng()))(jnp.zeros(4), rng=rng)
    assert len(set(out.tolist())) == 4
    np.testing.assert_array_equal(cs.RKG.key.get(), state)
    before = rng.key.get()
    cs.vmap(lambda x, *, rng: x)(jnp.zeros(4), rng=rng)
    np.testing.assert_array_equal(rng.key.get(), before)


def test_a_generator_can_be_mapped_by_the_user():
    rng = cs.RandomKeyGenerator(0)
    rng.key.set(jax.random.key_data(jax.random.split(jax.random.key(0), 3)))
    out = cs.vmap(lambda x, *, rng: jax.random.uniform(rng()), kwargs_mask={"rng": 0})(
        jnp.zeros(3), rng=rng
    )
    keys = jax.random.split(jax.random.key(0), 3)
    expected = [jax.random.uniform(jax.random.split(key)[1]) for key in keys]
    np.testing.assert_allclose(out, expected)
    assert rng.key.get().shape == (3, 2)


def test_batched_generator_is_not_left_behind_by_a_failure():
    with pytest.raises(ZeroDivisionError):
        cs.vmap(lambda x: (cs.RKG(), 1 / 0))(jnp.zeros(3))
    assert cs.RKG.key.get().shape == (2,)
