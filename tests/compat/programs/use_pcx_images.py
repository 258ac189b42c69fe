"""A convolutional network with pooling that classifies images; its weights move in some inference steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx as px
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu

KINDS = 3


class Classifier(pxc.EnergyModule):
    """Blocks of layers and activations, two of images and two of vectors, with a node behind each."""

    def __init__(self, act):
        super().__init__()
        self.act = px.static(act)
        pool = pxnn.MaxPool2d(kernel_size=2, stride=2)
        self.images = [
            (pxnn.Conv2d(2, 3, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1)), self.act, pool),
            (pxnn.Conv2d(3, 4, kernel_size=3, padding=(1, 1)), self.act),
        ]
        self.vectors = [
            (pxnn.Linear(4 * 2 * 2, 5), self.act),
            (pxnn.Linear(5, KINDS),),
        ]
        self.nodes = [pxc.Vode() for _ in range(3)] + [pxc.Vode(pxc.ce_energy)]
        self.nodes[-1].h.frozen = True

    def __call__(self, x, y):
        blocks = self.images + self.vectors
        for number, (block, node) in enumerate(zip(blocks, self.nodes, strict=True)):
            x = x.flatten() if number == len(self.images) else x
            for layer in block:
                x = layer(x)
            x = node(x)
        if y is not None:
            self.nodes[-1].set("h", y)
        return self.nodes[-1].get("u")


BATCHED = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))


@pxf.vmap(BATCHED, in_axes=(0, 0), out_axes=0)
def forward(x, y, *, model):
    return model(x, y)


@pxf.vmap(BATCHED, in_axes=(0,), out_axes=(None, 0), axis_name="batch")
def energy(x, *, model):
    found = model(x, None)
    return jax.lax.pmean(model.energy().sum(), "batch"), found


def main(folder):
    px.RKG.seed(5)
    traces = []

    def derivatives(mask):
        return pxf.value_and_grad(mask.to([False, True]), has_aux=True)(energy)

    @pxf.jit(static_argnums=(0, 1, 2))
    def train(steps, first, every, x, y, *, model, weights, states):
        traces.append("train")
        model.train()
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            forward(x, y, model=model)
        free = pxu.M_hasnot(pxc.VodeParam, frozen=True)
        states.init(free(model))
        energies = []
        for number in range(steps):
            moves = number >= first and (number - first) % every == 0
            with pxu.step(model, clear_params=pxc.VodeParam.Cache):
                chosen = free | pxu.M(pxnn.LayerParam) if moves else free
                (found, _), g = derivatives(chosen)(x, model=model)
                if moves:
                    weights.step(model, g["model"])
                states.step(model, g["model"])
            energies.append(found)
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            _, g = derivatives(pxu.M(pxnn.LayerParam))(x, model=model)
        weights.step(model, g["model"])
        return jnp.stack(energies)

    @pxf.jit()
    def evaluate(x, y, *, model):
        traces.append("evaluate")
        model.eval()
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            found = forward(x, None, model=model).argmax(axis=-1)
        return (found == y).mean(), found

    drawn = np.random.default_rng(1)
    kinds = jnp.asarray(drawn.integers(0, KINDS, 6))
    x = jnp.asarray(drawn.normal(size=(6, 2, 8, 8)), jnp.float32) + kinds[:, None, None, None]
    model = Classifier(jax.nn.gelu)
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        forward(x, None, model=model)
    weights = pxu.Optim(lambda: optax.adamw(1e-2), pxu.M(pxnn.LayerParam)(model))
    states = pxu.Optim(lambda: optax.sgd(0.1 * len(x)))
    found = []
    for _ in range(2):
        options = {"model": model, "weights": weights, "states": states}
        energies = train(3, 1, 2, x, jax.nn.one_hot(kinds, KINDS), **options)
        found.append([energies, *evaluate(x, kinds, model=model)])
    kernels = [block[0].nn.weight.get() for block in model.images]
    return {"found": found, "kernels": kernels, "traces": traces}
