"""After the lessons of pcx: backpropagation, analysis, loops, decoding, zero divergence, sampling."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx as px
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu

NODES = pxc.VodeParam | pxc.VodeParam.Cache
PER_SAMPLE = pxu.M(NODES).to((None, 0))
BATCH = 8


def weights():
    return pxu.M(pxnn.LayerParam)


def free():
    return pxu.M_hasnot(pxc.VodeParam, frozen=True)


def two_moons(count, seed):
    """Batches of points on two half circles, as NumPy makes them: 64 bits."""
    drawn = np.random.default_rng(seed)
    kinds = drawn.integers(0, 2, count)
    angles = drawn.uniform(0, np.pi, count) + np.pi * kinds
    points = np.stack([np.cos(angles) + kinds, np.sin(angles) + 0.5 * kinds], 1)
    points = points + 0.2 * drawn.normal(size=points.shape)
    return list(zip(points.reshape(-1, BATCH, 2), kinds.reshape(-1, BATCH), strict=True))


class Plain(px.Module):
    """Layers alone."""

    def __init__(self, sizes, act):
        super().__init__()
        self.act = px.static(act)
        self.layers = [pxnn.Linear(a, b) for a, b in pairwise(sizes)]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        return self.layers[-1](x)


class Coded(pxc.EnergyModule):
    """Layers, with a node behind each."""

    def __init__(self, sizes, act, last=pxc.ce_energy):
        super().__init__()
        self.act = px.static(act)
        self.layers = [pxnn.Linear(a, b) for a, b in pairwise(sizes)]
        self.vodes = [pxc.Vode() for _ in self.layers[:-1]] + [pxc.Vode(last)]
        self.vodes[-1].h.frozen = True

    def __call__(self, x, y):
        for vode, layer in zip(self.vodes[:-1], self.layers[:-1], strict=True):
            x = vode(self.act(layer(x)))
        self.vodes[-1](self.layers[-1](x))
        if y is not None:
            self.vodes[-1].set("h", y)
        return self.vodes[-1].get("u")


@pxf.vmap(PER_SAMPLE, in_axes=(0, 0), out_axes=0)
def forward(x, y, *, model):
    return model(x, y)


@pxf.vmap(PER_SAMPLE, in_axes=(0,), out_axes=(None, 0), axis_name="batch")
def energy(x, *, model):
    found = model(x, None)
    return jax.lax.psum(model.energy(), "batch"), found


def descend(mask, x, model):
    with pxu.step(model, clear_params=pxc.VodeParam.Cache):
        (found, _), g = pxf.value_and_grad(mask, has_aux=True)(energy)(x, model=model)
    return found, g["model"]


def start(x, y, model):
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        return forward(x, y, model=model)


def weights_of(model):
    return [layer.nn.weight.get() for layer in model.layers]


def backpropagation():
    """A module without energy: the loss takes the label, its mean over the batch is differentiated."""
    traces = []

    @pxf.vmap({"model": None}, in_axes=0, out_axes=0)
    def predict(x, *, model):
        return model(x)

    @pxf.vmap({"model": None}, in_axes=(0, 0), out_axes=(None, 0), axis_name="batch")
    def loss(x, y, *, model):
        found = model(x)
        return jax.lax.pmean(-jnp.sum(y * jax.nn.log_softmax(found)), "batch"), found

    @pxf.jit()
    def train(x, y, *, model, optim):
        traces.append("train")
        model.train()
        (value, _), g = pxf.value_and_grad(weights().to([False, True]), has_aux=True)(loss)(
            x, y, model=model
        )
        optim.step(model, g["model"])
        return value

    @pxf.jit()
    def evaluate(x, y, *, model):
        traces.append("evaluate")
        model.eval()
        found = predict(x, model=model).argmax(axis=-1)
        return (found == y).mean(), found

    model = Plain((2, 6, 6, 2), jax.nn.leaky_relu)
    optim = pxu.Optim(lambda: optax.adamw(1e-2), weights()(model))
    data, values = two_moons(2 * BATCH, 0), []
    for _ in range(2):
        for x, y in data:
            values.append(train(x, jax.nn.one_hot(y, 2), model=model, optim=optim))
        values.extend(evaluate(*data[0], model=model))
    return [values, weights_of(model), traces]


def analysis():
    """Models of several widths one after the other; the optimiser of the nodes is never made anew."""
    traces = []

    @pxf.jit(static_argnums=0)
    def train(steps, x, y, *, model, optim_w, optim_h):
        traces.append(model.layers[1].nn.weight.shape[0])
        model.train()
        start(x, y, model)
        for _ in range(steps):
            optim_h.step(model, descend(free().to([False, True]), x, model)[1])
        _, g = descend(weights().to([False, True]), x, model)
        optim_w.step(model, g, scale_by=1.0 / x.shape[0])
        first, second = (jnp.var(g.layers[number].nn.weight.get()) for number in (1, 2))
        return first / second

    found, data = [], two_moons(2 * BATCH, 1)
    for width, rate in ((4, 1e-2), (4, 1e-1), (6, 1e-2)):
        model = Coded((2, width, width, width, 2), jax.nn.leaky_relu)
        start(jnp.zeros((BATCH, 2)), None, model)
        optim_h = pxu.Optim(lambda rate=rate: optax.sgd(rate), free()(model))
        optim_w = pxu.Optim(lambda: optax.adamw(1e-2), weights()(model))
        both = {"model": model, "optim_w": optim_w, "optim_h": optim_h}
        found.append([train(2, x, jax.nn.one_hot(y, 2), **both) for x, y in data])
    return [found, traces]


def loops():
    """Branches in scans and while loops; a condition sees the parameter, and the body draws."""
    traces = []

    def less(x, *, p):
        p -= x

    def times(x, *, p):
        p.set(p * x)

    @pxf.jit()
    def once(x, is_less, *, p):
        traces.append("once")
        pxf.cond(less, times)(is_less, x, p=p)

    @pxf.jit()
    def along(x, choices, *, p):
        traces.append("along")

        def body(is_less, x, *, p):
            pxf.cond(less, times)(is_less, x, p=p)
            return x, None

        pxf.scan(body, choices)(x, p=p)

    @pxf.jit()
    def until(x, *, p):
        traces.append("until")

        def body(x, count, *, p):
            pxf.cond(less, times)(jax.random.bernoulli(px.RKG()), x, p=p)
            return x, count + 1

        def goes_on(x, count, *, p):
            return jnp.all(jnp.logical_and(p > 0.0, count < 3))

        return pxf.while_loop(body, goes_on)(x, 0, p=p)

    x, p = jnp.array([-2.0]), px.Param(jnp.array([1.0]))
    once(x, True, p=p)
    once(x, False, p=p)
    found = [p.get()]
    p = px.Param(jnp.array([1.0]))
    along(x, jnp.array([False, True, True, False]), p=p)
    found.append(p.get())
    for _ in range(6):
        p = px.Param(jnp.array([1.0]))
        _, count = until(x, p=p)
        found += [p.get(), count]
    return [found, traces]


class Decoder(pxc.EnergyModule):
    """Nodes begin at zero; under "forward" they hand on what comes in."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = [pxnn.Linear(a, b) for a, b in pairwise(sizes)]
        code = pxc.Vode(
            energy_fn=pxc.zero_energy,
            ruleset={pxc.STATUS.INIT: ("h, u <- u:to_zero",)},
            tforms={"to_zero": lambda node, key, value, rkg: jnp.zeros(sizes[0])},
        )
        hidden = [
            pxc.Vode(
                ruleset={pxc.STATUS.INIT: ("h, u <- u:to_zero",), "forward": ("h -> u",)},
                tforms={"to_zero": lambda node, key, value, rkg: jnp.zeros_like(value)},
            )
            for _ in sizes[1:-1]
        ]
        self.vodes = [code, *hidden, pxc.Vode()]
        self.vodes[-1].h.frozen = True

    def __call__(self, image):
        x = self.vodes[0](-jnp.ones(self.layers[0].nn.weight.shape[1]))
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = self.vodes[number + 1](jnp.tanh(x) if number < len(self.layers) - 1 else x)
        if image is not None:
            self.vodes[-1].set("h", image.flatten())
        return self.vodes[-1].get("u")


def decoding():
    """Training, and inference of the code of images that are then generated in a status of its own."""
    traces = []
    decode = pxf.vmap(PER_SAMPLE, in_axes=0, out_axes=0)(lambda image, *, model: model(image))

    @pxf.vmap(PER_SAMPLE, out_axes=(None, 0), axis_name="batch")
    def loss(*, model):
        found = model(None)
        return jax.lax.pmean(model.energy().sum(), "batch"), found

    def settle(steps, images, model, optim_h):
        inference = pxf.value_and_grad(free().to([False, True]), has_aux=True)(loss)
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            decode(images, model=model)
        for _ in range(steps):
            with pxu.step(model, clear_params=pxc.VodeParam.Cache):
                _, g = inference(model=model)
            optim_h.step(model, g["model"])

    @pxf.jit(static_argnums=0)
    def train(steps, images, *, model, optim_w, optim_h):
        traces.append("train")
        model.train()
        settle(steps, images, model, optim_h)
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            (value, _), g = pxf.value_and_grad(weights().to([False, True]), has_aux=True)(loss)(
                model=model
            )
        optim_w.step(model, g["model"])
        return value

    @pxf.jit(static_argnums=0)
    def evaluate(steps, images, *, model, optim_h):
        traces.append("evaluate")
        model.eval()
        settle(steps, images, model, optim_h)
        with pxu.step(model, "forward", clear_params=pxc.VodeParam.Cache):
            made = decode(None, model=model)
        return jnp.square(jnp.clip(made.flatten(), 0.0, 1.0) - images.flatten()).mean(), made

    model = Decoder((2, 3, 4))
    images = jnp.asarray(np.random.default_rng(2).uniform(size=(BATCH, 1, 2, 2)), jnp.float32)
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        decode(jnp.zeros((BATCH, 4)), model=model)
    optim_h = pxu.Optim(lambda: optax.sgd(0.1 * BATCH), free()(model))
    optim_w = pxu.Optim(lambda: optax.adamw(1e-2), weights()(model))
    found = []
    for _ in range(2):
        found.append(train(2, images, model=model, optim_w=optim_w, optim_h=optim_h))
        found.extend(evaluate(2, images, model=model, optim_h=optim_h))
    return [found, weights_of(model), traces]


def zero_divergence():
    """Masks of one node and one layer per step; the last step names the frozen node by index -1."""
    traces = []

    def only(model):
        return pxu.M(None).to([False, False])(model, is_pytree=True)

    def of_layer(layer):
        return weights().to([False, True])(layer, is_pytree=True)

    @pxf.jit()
    def pure(x, y, *, model, optim_w, optim_h):
        traces.append("pure")
        model.train()
        start(x, y, model)
        optim_h.init(free()(model))
        count = len(model.vodes)
        for t in range(count):
            mask = only(model)
            mask.vodes[count - t - 2].h = True
            mask.layers[count - t - 1] = of_layer(model.layers[count - t - 1])
            _, g = descend({"model": mask}, x, model)
            optim_h.step(model, g)
            optim_w.step(model, g, scale_by=1.0 / x.shape[0])
        optim_h.clear()

    @pxf.jit(static_argnums=0)
    def hybrid(steps, x, y, *, model, optim_w, optim_h):
        traces.append("hybrid")
        model.train()
        start(x, y, model)
        optim_h.init(free()(model))
        count = len(model.vodes)
        for t in range(steps):
            mask = free().to([False, True])(model, is_pytree=True)
            for later in range(count - t - 2):
                mask.vodes[later].h = False
            if t < count:
                mask.layers[count - t - 1] = of_layer(model.layers[count - t - 1])
            _, g = descend({"model": mask}, x, model)
            optim_h.step(model, g)
            if t < count:
                optim_w.step(model, g, scale_by=1.0 / x.shape[0])
        optim_h.clear()
        optim_w.step(
            model, descend(weights().to([False, True]), x, model)[1], scale_by=1.0 / x.shape[0]
        )

    found = []
    for train, steps, rate in (
        (pure, (), 1.0),
        (hybrid, (4,), optax.linear_schedule(1.0, 0.1, 1)),
    ):
        model = Coded((2, 4, 4, 2), jax.nn.leaky_relu)
        optim_w = pxu.OptimTree(
            lambda: optax.sgd(0.2, momentum=0.9, nesterov=True),
            lambda node: isinstance(node, pxnn.Layer),
            weights()(model),
        )
        optim_h = pxu.OptimTree(
            lambda rate=rate: optax.sgd(rate), lambda node: isinstance(node, pxc.Vode)
        )
        data = two_moons(2 * BATCH, 3)
        for x, y in data:
            train(*steps, x, jax.nn.one_hot(y, 2), model=model, optim_w=optim_w, optim_h=optim_h)
        model.eval()
        found.append([start(data[0][0], None, model).argmax(axis=-1), weights_of(model)])
    return [found, traces]


def sampling():
    """Langevin dynamics in a scan; the last node is frozen for training, and free for generating."""
    traces = []

    def noisy(rate, momentum):
        def make():
            return optax.chain(
                optax.add_noise(2 * (1 - momentum) / rate, 0.0, px.RKG()[0]),
                optax.trace(decay=momentum, nesterov=False),
                optax.scale_by_learning_rate(rate),
            )

        return make

    def settle(steps, x, model, optim_h):
        def body(_, x, *, model, optim_h):
            optim_h.step(model, descend(free().to([False, True]), x, model)[1])
            return x, None

        pxf.scan(body, xs=jnp.arange(steps))(x, model=model, optim_h=optim_h)
        optim_h.clear()

    @pxf.jit(static_argnums=0)
    def train(steps, x, y, *, model, optim_w, optim_h):
        traces.append("train")
        with pxu.step(model, (pxc.STATUS.INIT, None), clear_params=pxc.VodeParam.Cache):
            forward(x, y, model=model)
        optim_h.init(free()(model))
        settle(steps, x, model, optim_h)
        _, g = descend(weights().to([False, True]), x, model)
        optim_w.step(model, g, scale_by=1.0 / x.shape[0])

    @pxf.jit(static_argnums=0)
    def generate(steps, x, *, model, optim_h):
        traces.append("generate")
        with pxu.step(model, (pxc.STATUS.INIT, None), clear_params=pxc.VodeParam.Cache):
            forward(x, None, model=model)
        optim_h.init(pxu.M(pxc.VodeParam)(model))
        settle(steps, x, model, optim_h)

    model = Coded((1, 1, 1), lambda x: x, pxc.se_energy)
    x, y = np.zeros((BATCH, 1)), np.random.default_rng(4).normal(size=(BATCH, 1)) + 1
    start(jnp.zeros((BATCH, 1)), None, model)
    optim_h = pxu.Optim(noisy(0.1, 0.5))
    optim_w = pxu.Optim(lambda: optax.adam(1e-1), weights()(model))
    found = []
    for _ in range(2):
        model.vodes[-1].h.frozen = True
        train(3, x, y, model=model, optim_w=optim_w, optim_h=optim_h)
        train(3, x, y, model=model, optim_w=optim_w, optim_h=optim_h)
        model.vodes[-1].h.frozen = False
        generate(3, x, model=model, optim_h=optim_h)
        found.append(model.vodes[-1].get("h"))
    return [found, weights_of(model), model.layers[0].nn.bias.get(), traces]


def main(folder):
    found = {}
    for part in (backpropagation, analysis, loops, decoding, zero_divergence, sampling):
        px.RKG.seed(2)
        found[part.__name__] = part()
    return found
