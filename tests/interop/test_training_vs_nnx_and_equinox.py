"""The same model with the same weights, trained in flax nnx, in equinox and here: the same losses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule.stateful import layers as L  # noqa: N812

pytestmark = pytest.mark.interop
STEPS = 5
EXACT = {"rtol": 0, "atol": 2e-6}


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train(model, optimizer, loss, *inputs):
    """The losses of some steps of ours, each with an input of its own."""
    optim, traces = cs.Optim(optimizer), []

    @cs.jit
    def step(*args, model, optim):
        traces.append(1)
        value, grads = cs.value_and_grad(loss, kwargs_mask=True)(*args, model=model)
        optim.step(model, grads["model"])
        return value

    losses = [float(step(*args, model=model, optim=optim)) for args in zip(*inputs, strict=True)]
    assert len(traces) <= 2  # the first is the one that finds out what the optimiser's state is
    return losses


# A convolution, batch normalisation and dropout.

IMAGES = jax.random.normal(jax.random.key(0), (12, 1, 6, 6))
LABELS = jax.random.randint(jax.random.key(1), (12,), 0, 3)
KEYS = jax.random.split(jax.random.key(7), STEPS)


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, mode, rate):
        first, second = jax.random.split(jax.random.key(5))
        self.conv = eqx.nn.Conv2d(1, 4, 3, padding=1, key=first)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode=mode, momentum=0.9)
        self.drop = eqx.nn.Dropout(rate)
        self.head = eqx.nn.Linear(4 * 36, 3, key=second)

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.conv(x), state)
        return self.head(self.drop(jax.nn.relu(x).reshape(-1), key=key)), state


def test_convolutions_with_state_and_dropout_as_in_equinox():
    model, state = eqx.nn.make_with_state(EquinoxNet)("ema", 0.3)
    ours = L.StatefulLayer(model, state)
    optimizer = optax.sgd(0.1, momentum=0.9)
    axes = {"axis_name": "batch", "in_axes": (0, None, 0), "out_axes": (0, None)}

    @eqx.filter_jit
    def step(model, state, opt_state, key):
        def loss(model, state):
            keys = jax.random.split(key, len(IMAGES))
            logits, state = jax.vmap(lambda x, s, k: model(x, s, key=k), **axes)(
                IMAGES, state, keys
            )
            return cross_entropy(logits, LABELS), state

        (value, state), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, state)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state, value

    expected, opt_state = [], optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for key in KEYS:
        model, state, opt_state, value = step(model, state, opt_state, key)
        expected.append(float(value))

    def loss(key, *, model):
        keys = jax.random.split(key, len(IMAGES))
        run = cs.vmap(lambda x, key, *, model: model(x, key=key), axis_name="batch")
        return cross_entropy(run(IMAGES, keys, model=model), LABELS)

    np.testing.assert_allclose(train(ours, optimizer, loss, KEYS), expected, **EXACT)
    evaluated = jax.vmap(lambda x: eqx.nn.inference_mode(model)(x, state)[0])(IMAGES)
    np.testing.assert_allclose(cs.vmap(cs.shared(ours).eval())(IMAGES), evaluated, **EXACT)


def test_batch_normalisation_as_in_nnx():
    nnx = pytest.importorskip("flax.nnx")
    start, _ = eqx.nn.make_with_state(EquinoxNet)("batch", 0.0)

    class Theirs(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), padding="SAME", rngs=rngs)
            self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
            self.head = nnx.Linear(4 * 36, 3, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.norm(self.conv(x)))
            return self.head(jnp.moveaxis(x, -1, 1).reshape(len(x), -1))

    class Ours(cs.Module):
        def __init__(self):
            self.conv, self.norm = start.conv, L.BatchNorm(4, "batch", momentum=0.9)
            self.head = start.head

        def __call__(self, x):
            return self.head(jax.nn.relu(self.norm(self.conv(x))).reshape(-1))

    theirs, ours, optimizer = Theirs(nnx.Rngs(0)), Ours(), optax.sgd(0.1, momentum=0.9)
    theirs.conv.kernel[...] = jnp.transpose(start.conv.weight, (2, 3, 1, 0))
    theirs.conv.bias[...] = start.conv.bias.reshape(-1)
    theirs.head.kernel[...], theirs.head.bias[...] = start.head.weight.T, start.head.bias
    state, images = nnx.Optimizer(theirs, optimizer, wrt=nnx.Param), jnp.moveaxis(IMAGES, 1, -1)

    @nnx.jit
    def step(model, optimizer):
        value, grads = nnx.value_and_grad(lambda model: cross_entropy(model(images), LABELS))(model)
        optimizer.update(model, grads)
        return value

    def loss(_, *, model):
        return cross_entropy(cs.vmap(model, axis_name="batch")(IMAGES), LABELS)

    expected = [float(step(theirs, state)) for _ in range(STEPS)]
    np.testing.assert_allclose(train(ours, optimizer, loss, KEYS), expected, **EXACT)
    for name in ("mean", "var"):
        running = getattr(ours.norm, name).get()
        np.testing.assert_allclose(running, getattr(theirs.norm, name)[...], **EXACT)
    theirs.eval()
    np.testing.assert_allclose(cs.vmap(ours.eval())(IMAGES), theirs(images), **EXACT)


# A language model of one transformer block.

WORDS, WIDTH, HEADS, LENGTH = 11, 8, 2, 6
TEXT = jax.random.randint(jax.random.key(2), (4, LENGTH), 0, WORDS)
FOLLOWING = jnp.roll(TEXT, -1, axis=1)
MASK = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))


class Block(cs.Module):
    def __init__(self):
        self.embed, self.norm = L.Embedding(WORDS, WIDTH), L.LayerNorm(WIDTH)
        self.attention, self.head = L.Attention(HEADS, WIDTH), L.Linear(WIDTH, WORDS)

    def __call__(self, words):
        x = cs.vmap(self.embed)(words)
        h = cs.vmap(self.norm)(x)
        return cs.vmap(self.head)(x + self.attention(h, h, h, mask=MASK))


def test_a_transformer_as_in_equinox_and_nnx():
    nnx = pytest.importorskip("flax.nnx")
    ours, optimizer = Block(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-2))
    start = cs.get_values(ours)

    class InEquinox(eqx.Module):
        embed: eqx.nn.Embedding
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        head: eqx.nn.Linear

        def __call__(self, words):
            x = jax.vmap(self.embed)(words)
            h = jax.vmap(self.norm)(x)
            return jax.vmap(self.head)(x + self.attention(h, h, h, mask=MASK))

    class InNnx(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                HEADS, WIDTH, decode=False, use_bias=False, rngs=rngs
            )
            self.head = nnx.Linear(WIDTH, WORDS, rngs=rngs)

        def __call__(self, words):
            x = self.embed(words)
            return self.head(x + self.attention(self.norm(x), mask=MASK[None, None]))

    in_equinox = InEquinox(
        *(getattr(ours, n).build() for n in ("embed", "norm", "attention", "head"))
    )
    in_nnx = InNnx(nnx.Rngs(0))
    in_nnx.embed.embedding[...] = start["embed.weight"]
    in_nnx.head.kernel[...], in_nnx.head.bias[...] = start["head.weight"].T, start["head.bias"]
    for name, shape in [
        *((name, (WIDTH, HEADS, WIDTH // HEADS)) for name in ("query", "key", "value")),
        ("output", (HEADS, WIDTH // HEADS, WIDTH)),
    ]:
        theirs = in_nnx.attention.out if name == "output" else getattr(in_nnx.attention, name)
        theirs.kernel[...] = start[f"attention.{name}_proj.weight"].T.reshape(shape)
    state = nnx.Optimizer(in_nnx, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step_nnx(model, optimizer):
        value, grads = nnx.value_and_grad(lambda model: cross_entropy(model(TEXT), FOLLOWING))(
            model
        )
        optimizer.update(model, grads)
        return value

    @eqx.filter_jit
    def step_equinox(model, state):
        def loss(model):
            return cross_entropy(jax.vmap(model)(TEXT), FOLLOWING)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    expected, opt_state = [], optimizer.init(eqx.filter(in_equinox, eqx.is_inexact_array))
    for _ in range(STEPS):
        in_equinox, opt_state, value = step_equinox(in_equinox, opt_state)
        expected.append(float(value))
    in_flax = [float(step_nnx(in_nnx, state)) for _ in range(STEPS)]

    def loss(_, *, model):
        return cross_entropy(cs.vmap(model)(TEXT), FOLLOWING)

    here = train(ours, optimizer, loss, KEYS)
    np.testing.assert_allclose(here, expected, **EXACT)
    np.testing.assert_allclose(here, in_flax, **EXACT)
    assert here[-1] < here[0]
