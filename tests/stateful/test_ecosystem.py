"""Tracked models together with the other rooms: components as layers, sown values."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule
import chainrule.stateful as cs
from chainrule.stateful import layers as L  # noqa: N812

SOURCE = Path(__file__).parent / "components" / "features.py"

_SERVE = """
import sys
from chainrule.serve import serve
serve(sys.argv[1], port=0, workers=1, grace_s=1, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module")
def served():
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(SOURCE)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield chainrule.Component.from_url(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


class Classifier(cs.Module):
    """The middle layer is a program behind HTTP; its parameter `a` is trained through it."""

    def __init__(self, component):
        self.component = component
        self.a = cs.Param(jnp.array(0.1))
        self.head = L.Linear(3, 1)
        self.calls = cs.Param(jnp.zeros((), int))

    def __call__(self, x):
        self.calls += 1
        inputs = {"x": x, "a": self.a.get()}
        features = chainrule.apply_component(self.component, inputs)["features"]
        return cs.vmap(lambda f, *, head: head(f)[0])(features, head=self.head)


def xor(n, seed):
    x = np.random.default_rng(seed).uniform(-1, 1, (n, 2)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(x[:, 0] * x[:, 1] > 0)


def test_model_with_a_served_component_learns_xor_to_95_percent(served):
    cs.RKG.seed(0)
    net, optim = Classifier(served), cs.Optim(optax.adam(0.2))

    def loss(x, y, *, net):
        return optax.sigmoid_binary_cross_entropy(net(x), y).mean()

    @cs.jit
    def step(x, y, *, net, optim):
        value, grads = cs.value_and_grad(loss, kwargs_mask=True)(x, y, net=net)
        optim.step(net, grads["net"])
        return value

    x, y = xor(128, seed=0)
    for _ in range(60):
        step(x, y, net=net, optim=optim)
    assert int(net.calls) == 60
    assert float(net.a) != 0.1
    test_x, test_y = xor(256, seed=1)
    assert float(jnp.mean((net(test_x) > 0) == test_y)) >= 0.95


def test_sown_values_come_out_of_tracked_functions():
    net = cs.layers.Linear(2, 2)

    def f(x, *, net):
        return jnp.sum(chainrule.sow(net(x), "hidden") ** 2)

    x = jnp.ones((3, 2))
    mapped = cs.vmap(f)
    out, found = chainrule.save_intermediates(lambda x: jnp.sum(mapped(x, net=net)))(x)
    hidden = jax.vmap(net.build())(x)
    np.testing.assert_allclose(jax.tree.leaves(found)[0], hidden, rtol=1e-6)
    np.testing.assert_allclose(out, jnp.sum(hidden**2), rtol=1e-6)
