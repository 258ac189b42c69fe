"""Set-ups beyond classification: memories, generation, and networks with randomness."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import chainrule.stateful as cs
from chainrule.predictive import (
    STATUS,
    WEIGHTS,
    EnergyModule,
    Learner,
    Vode,
    inference_learning,
    predict,
    settle,
)


def complete(vode, key, value, rkg):
    """What is known of an image, and the node's own value elsewhere."""
    known = vode.get("known")
    return value if known is None else jnp.where(known, vode.get("data"), value)


class Memory(EnergyModule):
    """A code predicts an image. Known pixels are held by a rule, the others are free."""

    def __init__(self, pixels, code, prior):
        self.code = Vode(lambda vode, rkg: prior / 2 * vode.require("h") ** 2)
        self.image = Vode(ruleset={".*": ["h -> h:complete"]}, tforms={"complete": complete})
        self.layer = cs.layers.Linear(code, pixels, use_bias=False)

    def __call__(self, data, known):
        if self.status == STATUS.INIT:
            self.code.set("h", jnp.zeros(self.layer.in_features))
        self.image(self.layer(self.code.get("h")), data=data, known=known)
        return self.image.get("u")


def test_linear_memory_completes_an_image_as_its_closed_form_says():
    """With pixels k known, the code minimises |c|² + |x_k − W_k c|²: ridge regression on them."""
    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(3, 6)), jnp.float32)
    known = jnp.asarray(rng.random((3, 6)) < 0.6)
    cs.RKG.seed(0)
    net = Memory(6, 2, prior=1.0)
    net.layer.weight.set(2 * net.layer.weight.get())
    Learner(optax.sgd(0.2, momentum=0.8), schedule=settle(250))(data, known, model=net)
    w = np.asarray(net.layer.weight.get(), float)
    for sample in range(3):
        k = np.asarray(known[sample])
        code = np.linalg.solve(
            w[k].T @ w[k] + np.eye(2), w[k].T @ np.asarray(data[sample], float)[k]
        )
        np.testing.assert_allclose(net.code.h.get()[sample], code, atol=2e-4)
        image = np.where(k, data[sample], net.image.h.get()[sample])
        np.testing.assert_allclose(image[~k], (w @ code)[~k], atol=2e-4)


def test_memory_learns_images_and_recalls_them_from_a_part():
    rng = np.random.default_rng(1)
    images = jnp.asarray(np.sign(rng.normal(size=(3, 12))), jnp.float32)
    cs.RKG.seed(0)
    net = Memory(12, 3, prior=0.01)
    net.layer.weight.set(jnp.asarray(rng.normal(size=(12, 3)), jnp.float32))
    everything = jnp.ones((3, 12), bool)
    learner = Learner(optax.sgd(0.1), optax.adam(0.05), inference_learning(16))
    for _ in range(60):
        learner(images, everything, model=net)
    half = everything.at[:, 6:].set(False)
    damaged = jnp.where(half, images, 0.0)
    Learner(optax.sgd(0.1, momentum=0.8), schedule=settle(200))(damaged, half, model=net)
    recalled = jnp.where(half, images, net.image.h.get())
    assert (jnp.sign(recalled) == images).all()


class Generator(EnergyModule):
    """Classes predict images. To generate, clamp the class; to classify, clamp the image."""

    def __init__(self, prototypes):
        self.label = Vode(lambda vode, rkg: jnp.zeros_like(vode.require("h")))
        self.image = Vode()
        self.prototypes = cs.Param(prototypes)

    def __call__(self, label=None, image=None):
        if self.status == STATUS.INIT or label is not None:
            self.label.set("h", jnp.zeros(len(self.prototypes)) if label is None else label)
        self.image(self.prototypes.get().T @ self.label.get("h"))
        if image is not None:
            self.image.set("h", image)
        return self.image.get("h")


def test_one_network_generates_and_classifies():
    prototypes = jnp.asarray(
        np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0].T, jnp.float32
    )
    net = Generator(prototypes)
    labels = jnp.eye(3)
    np.testing.assert_allclose(predict(labels, model=net), prototypes, atol=1e-6)
    learner = Learner(optax.sgd(0.5), schedule=settle(40))
    learner(None, prototypes, model=net)
    np.testing.assert_allclose(net.label.h.get(), labels, atol=1e-5)


def test_random_transforms_draw_anew_for_every_sample_and_every_step():
    class Noisy(EnergyModule):
        def __init__(self):
            self.node = Vode(
                ruleset={"init": ["h, u <- u:noise"]},
                tforms={
                    "noise": lambda v, k, value, rkg: value + jax.random.normal(rkg(), value.shape)
                },
            )
            self.scale = cs.Param(jnp.ones(()))

        def __call__(self, x):
            return self.node(self.scale * x)

    net = Noisy()
    cs.RKG.seed(0)
    first, second = (predict(jnp.zeros((4, 2)), model=net) for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]))) == 16
    cs.RKG.seed(0)
    np.testing.assert_array_equal(predict(jnp.zeros((4, 2)), model=net), first)


def test_batch_norm_sees_the_batch():
    class Normed(EnergyModule):
        def __init__(self):
            self.norm = cs.layers.BatchNorm(2, "batch")
            self.node = Vode(frozen=True)

        def __call__(self, x, y=None):
            u = self.node(self.norm(x), output="u")
            if y is not None:
                self.node.set("h", y)
            return u

    net = Normed().train()
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (64, 2)), jnp.float32)
    output = predict(x, model=net)
    np.testing.assert_allclose(output.mean(0), 0, atol=1e-5)
    before = net.norm.mean.get()
    learner = Learner(optax.sgd(0.1), optax.sgd(0.1), inference_learning(2), trained=WEIGHTS)
    learner(x, jnp.zeros((64, 2)), model=net)
    assert not np.allclose(net.norm.mean.get(), before)
    assert net.norm.mean.shape == (2,)
