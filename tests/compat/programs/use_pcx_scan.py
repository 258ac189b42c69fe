"""Inference as a scan inside jit, with rulesets, noise and a momentum optimiser."""

import jax
import jax.numpy as jnp
import optax
import pcx as px
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu


def noise(vode, key, value, rkg):
    return value + 0.1 * jax.random.normal(rkg(), value.shape)


class Net(pxc.EnergyModule):
    def __init__(self):
        super().__init__()
        self.first = pxnn.Linear(3, 4)
        self.second = pxnn.Linear(4, 2)
        self.hidden = pxc.Vode(ruleset={"init": ("h, u <- u:noise",)}, tforms={"noise": noise})
        self.output = pxc.Vode(
            ruleset={"": ("u <- u:twice",)}, tforms={"twice": lambda vode, key, u, rkg: 2 * u}
        )
        self.output.h.frozen = True

    def __call__(self, x, y=None):
        x = self.hidden(jnp.tanh(self.first(x)))
        self.output(self.second(x))
        if y is not None:
            self.output.set("h", y)
        return self.output.get("u")


STATES = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))
INIT = (pxc.STATUS.INIT, None)


@pxf.vmap(STATES, in_axes=(0, 0), out_axes=0)
def forward(x, y, *, model):
    return model(x, y)


@pxf.vmap(STATES, in_axes=(0,), out_axes=(None, 0), axis_name="batch")
def energy(x, *, model):
    u = model(x)
    return jax.lax.psum(model.energy(), "batch"), u


@pxf.jit()
def infer(x, y, *, model, optim):
    with pxu.step(model, INIT, clear_params=pxc.VodeParam.Cache):
        forward(x, y, model=model)
    optim.init(pxu.M_hasnot(pxc.VodeParam, frozen=True)(model))

    def body(_, count, *, model, optim):
        free = pxu.M_hasnot(pxc.VodeParam, frozen=True).to([False, True])
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            (e, _), g = pxf.value_and_grad(free, has_aux=True)(energy)(x, model=model)
        optim.step(model, g["model"])
        return (count + 1,), e

    (count,), energies = pxf.scan(body, xs=None, length=5)(0, model=model, optim=optim)
    optim.clear()
    return count, energies


def main(folder):
    px.RKG.seed(1)
    model, optim = Net(), pxu.Optim(lambda: optax.sgd(0.1, momentum=0.9))
    x, y = jnp.arange(12.0).reshape(4, 3) / 10, jnp.ones((4, 2))
    with pxu.step(model, INIT, clear_params=pxc.VodeParam.Cache):
        forward(x, y, model=model)
    runs = [list(infer(x, y, model=model, optim=optim)) for _ in range(2)]
    return {"runs": runs, "value": model.hidden.h.get(), "key": px.RKG.key.get()}
