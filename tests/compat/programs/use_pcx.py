"""Predictive coding on a small network, step by step, and what transformations return."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx as px
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu


class Net(pxc.EnergyModule):
    def __init__(self):
        super().__init__()
        self.layers = [pxnn.Linear(4, 6), pxnn.Linear(6, 3)]
        self.vodes = [pxc.Vode(), pxc.Vode(pxc.ce_energy)]
        self.vodes[-1].h.frozen = True

    def __call__(self, x, y=None):
        for vode, layer in zip(self.vodes[:-1], self.layers[:-1], strict=True):
            x = vode(jax.nn.tanh(layer(x)))
        self.vodes[-1](self.layers[-1](x))
        if y is not None:
            self.vodes[-1].set("h", y)
        return self.vodes[-1].get("u")


STATES = pxc.VodeParam | pxc.VodeParam.Cache


@pxf.vmap(pxu.M(STATES).to((None, 0)), in_axes=(0, 0), out_axes=0)
def forward(x, y, *, model):
    return model(x, y)


@pxf.vmap(pxu.M(STATES).to((None, 0)), in_axes=(0,), out_axes=(None, 0), axis_name="batch")
def energy(x, *, model):
    y = model(x, None)
    return jax.lax.psum(model.energy(), "batch"), y


@pxf.jit(static_argnums=0)
def train(steps, x, y, *, model, optim_w, optim_h):
    free = pxu.M_hasnot(pxc.VodeParam, frozen=True)
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        forward(x, y, model=model)
    optim_h.init(free(model))
    energies = []
    for _ in range(steps):
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            mask = pxu.M_hasnot(pxc.VodeParam, frozen=True).to([False, True])
            (e, _), g = pxf.value_and_grad(mask, has_aux=True)(energy)(x, model=model)
        optim_h.step(model, g["model"])
        energies.append(e)
    optim_h.clear()
    with pxu.step(model, clear_params=pxc.VodeParam.Cache):
        mask = pxu.M(pxnn.LayerParam).to([False, True])
        (e, prediction), g = pxf.value_and_grad(mask, has_aux=True)(energy)(x, model=model)
    optim_w.step(model, g["model"], scale_by=1.0 / x.shape[0])
    return jnp.array(energies), prediction


def predictive_coding(folder):
    px.RKG.seed(0)
    model = Net()
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(5, 4)), jnp.float32)
    y = jax.nn.one_hot(jnp.array([0, 1, 2, 1, 0]), 3)
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        forward(x, y, model=model)
    optim_h = pxu.Optim(lambda: optax.sgd(0.1))
    optim_w = pxu.Optim(lambda: optax.adamw(1e-2), pxu.M(pxnn.LayerParam)(model))
    runs = [train(2, x, y, model=model, optim_w=optim_w, optim_h=optim_h) for _ in range(2)]
    pxu.save_params(model, str(folder / "model"))
    with np.load(folder / "model.npz") as file:
        saved = {name: file[name] for name in file.files}
    other = Net()
    pxu.load_params(other, str(folder / "model"))
    return {
        "runs": [list(run) for run in runs],
        "saved": saved,
        "loaded": other.layers[1].nn.bias.get(),
        "values": [vode.h.get() for vode in model.vodes],
    }


def gradients():
    px.RKG.seed(3)
    model = pxnn.Linear(2, 3)
    x = jnp.array([1.0, -2.0])

    @pxf.value_and_grad(pxu.M(pxnn.LayerParam).to((False, True)), argnums=(0,), has_aux=True)
    def loss(x, *, model):
        y = model(x)
        return jnp.sum(y**2), y, x[0]

    (value, aux), (positional, g) = loss(x, model=model)
    bare = pxf.value_and_grad({"model": pxu.M(pxnn.LayerParam).to((False, True))})(
        lambda *, model: jnp.sum(model.nn.weight.get() ** 3)
    )
    plain_value, plain = bare(model=model)
    return {
        "value": value,
        "aux": list(aux),
        "kinds": [type(aux).__name__, type(positional).__name__],
        "positional": list(positional),
        "weight": g["model"].nn.weight.get(),
        "bias": g["model"].nn.bias.get(),
        "plain": [plain_value, plain["model"].nn.weight.get()],
    }


def flow():
    total = px.Param(jnp.zeros(()))

    def add(x, count, *, total):
        total += x
        return count + 1, count * x

    (count,), products = pxf.scan(add, jnp.array([1.0, 2.0, 3.0]))(jnp.zeros(()), total=total)

    def halve(x, n, *, total):
        total *= 2.0
        return x / 2, n + 1

    halved = pxf.while_loop(halve, lambda x, n, *, total: x > 1.0)(10.0, 0, total=total)
    chosen = pxf.cond(lambda x: x + 1, lambda x: x - 1)(True, 1.0)
    switched = pxf.switch((lambda x: x, lambda x: 2 * x, lambda x: 3 * x))(2, 5.0)
    return [count, products, total.get(), list(halved), chosen, switched]


def random_keys():
    px.RKG.seed(7)
    draw = pxf.vmap({}, in_axes=(0,), out_axes=0)(lambda x: x + jax.random.normal(px.RKG()))
    lanes = draw(jnp.zeros(4))
    after = jax.random.normal(px.RKG())
    own = px.RandomKeyGenerator(1)
    drawn = jax.vmap(lambda key: jax.random.normal(key, (2,)))(own(3))
    return [lanes, after, drawn]


def main(folder):
    return {
        "predictive_coding": predictive_coding(folder),
        "gradients": gradients(),
        "flow": flow(),
        "random_keys": random_keys(),
    }
