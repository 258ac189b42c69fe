"""Whole models, trained to a stated accuracy on data whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import chainrule.stateful as cs
from chainrule.stateful import layers as L  # noqa: N812


def moons(n, seed=0):
    """Two interleaved half circles with a little noise."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, np.pi, n)
    label = rng.integers(0, 2, n)
    x = np.stack([np.cos(t) + label, np.sin(t) * (1 - 2 * label) + 0.5 * label], 1)
    return jnp.asarray(x + 0.05 * rng.normal(size=x.shape), jnp.float32), jnp.asarray(label)


def bars(n, seed=0):
    """Images of one horizontal or vertical bar in noise."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    x = 0.3 * rng.normal(size=(n, 1, 8, 8))
    for image, vertical, place in zip(x, label, rng.integers(0, 8, n), strict=True):
        image[0, :, place] += vertical
        image[0, place, :] += 1 - vertical
    return jnp.asarray(x, jnp.float32), jnp.asarray(label)


def train(net, data, steps, rate):
    forward = cs.vmap(lambda x, *, net: net(x), axis_name="batch")

    def loss(x, y, *, net):
        return optax.softmax_cross_entropy_with_integer_labels(forward(x, net=net), y).mean()

    @cs.jit(donate=True)
    def step(x, y, *, net, optim):
        value, grads = cs.value_and_grad(loss, kwargs_mask={"net": True})(x, y, net=net)
        optim.step(net, grads["net"])
        return value

    optim = cs.Optim(optax.adam(rate))
    net.train()
    for _ in range(steps):
        step(*data, net=net, optim=optim)
    net.eval()
    return lambda x, y: float(jnp.mean(jnp.argmax(cs.jit(forward)(x, net=net), -1) == y))


def test_mlp_learns_two_moons_to_97_percent():
    cs.RKG.seed(0)
    net = L.Sequential(L.Linear(2, 32), jax.nn.relu, L.Dropout(0.05), L.Linear(32, 2))
    accuracy = train(net, moons(256), 250, 0.02)
    assert accuracy(*moons(512, seed=1)) >= 0.97


class ConvNet(cs.Module):
    def __init__(self):
        self.conv = L.Conv(2, 1, 8, 3)
        self.norm = L.BatchNorm(8, "batch", momentum=0.9)
        self.head = L.Linear(8 * 9, 2)
        self.pool = L.MaxPool(2, 2, stride=2)

    def __call__(self, x):
        return self.head(self.pool(jax.nn.relu(self.norm(self.conv(x)))).ravel())


def test_batch_norm_convnet_learns_bars_to_95_percent():
    cs.RKG.seed(0)
    net = ConvNet()
    accuracy = train(net, bars(512), 80, 0.01)
    assert (net.norm.mean.get() != 0).all()
    assert accuracy(*bars(256, seed=1)) >= 0.95
