"""Filters, shapes of results, random keys, layers and trees of parameters, one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx as px
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu


class Pair(px.Module):
    def __init__(self):
        super().__init__()
        self.first = pxnn.Linear(3, 4)
        self.second = pxnn.Linear(4, 2)
        self.scale = px.Param(jnp.array(2.0))
        self.name = px.static("pair")

    def __call__(self, x):
        return self.scale.get() * self.second(jax.nn.relu(self.first(x)))


TRAINED = pxu.M(pxnn.LayerParam).to((False, True))
X = jnp.array([0.5, -1.0, 2.0])


def chosen(mask, model):
    found = mask(model)
    parts = {"first": found.first.nn, "second": found.second.nn}
    names = [
        f"{n}.{a}"
        for n, p in parts.items()
        for a in ("weight", "bias")
        if getattr(p, a) is not None
    ]
    return names + (["scale"] if found.scale is not None else [])


def filters():
    px.RKG.seed(1)
    model = Pair()
    model.first.nn.weight.frozen = True
    layer = pxu.M(pxnn.LayerParam)
    return {
        "kind": chosen(layer, model),
        "union": chosen(pxu.M(pxnn.LayerParam | px.Param), model),
        "or": chosen(layer | (lambda p: isinstance(p, px.Param) and p.ndim == 0), model),
        "and": chosen(layer & (lambda p: p.ndim == 2), model),
        "has": chosen(pxu.M_has(pxnn.LayerParam, shape=(4,)), model),
        "hasnot": chosen(pxu.M_hasnot(pxnn.LayerParam, frozen=True), model),
        "is": chosen(pxu.M_is(px.Param, pxnn.LayerParam), model),
        "values": [
            pxu.M(pxnn.LayerParam).to((None, 0)).apply(model.first.nn.weight),
            pxu.M(pxnn.LayerParam).to((None, 0)).apply(model.scale),
        ],
    }


def results():
    px.RKG.seed(2)
    model = Pair()

    def loss(x, *, model):
        y = model(x)
        return jnp.sum(y**2), y, jnp.max(y)

    def shape(tree):
        return [list(a.shape) for a in jax.tree.leaves(tree)]

    bare, g = pxf.value_and_grad(TRAINED)(lambda x, *, model: loss(x, model=model)[0])(
        X, model=model
    )
    (value, one), g1 = pxf.value_and_grad(TRAINED, has_aux=True)(
        lambda x, *, model: loss(x, model=model)[:2]
    )(X, model=model)
    (_, two), (positional, g2) = pxf.value_and_grad(TRAINED, argnums=(0,), has_aux=True)(loss)(
        X, model=model
    )
    return {
        "values": [bare, value],
        "one": [type(one).__name__, len(one), one[0]],
        "two": [type(two).__name__, len(two), shape(two)],
        "positional": [type(positional).__name__, len(positional), positional[0]],
        "gradients": [each["model"].second.nn.weight.get() for each in (g, g1, g2)],
        "unselected": g["model"].scale is None,
        "same kind": type(g["model"].second.nn.weight).__name__,
    }


def training():
    px.RKG.seed(3)
    model = Pair()
    both = pxu.M(pxnn.LayerParam | px.Param)
    optim = pxu.Optim(lambda: optax.chain(optax.clip(0.5), optax.adam(0.05)), both(model))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)

    @pxf.vmap({"model": None}, in_axes=(0,), out_axes=0)
    def errors(x, *, model):
        return jnp.sum((model(x) - x[:2]) ** 2)

    @pxf.jit()
    def step(x, *, model, optim):
        at = pxf.value_and_grad(both.to((False, True)))
        value, g = at(lambda x, *, model: jnp.mean(errors(x, model=model)))(x, model=model)
        optim.step(model, g["model"], scale_by=0.5)
        return value

    values = [step(x, model=model, optim=optim) for _ in range(5)]
    return {"values": values, "scale": model.scale.get(), "bias": model.second.nn.bias.get()}


def keys():
    px.RKG.seed(11)
    first = jax.random.normal(px.RKG())
    several = [jax.random.normal(key) for key in px.RKG(3)]
    jitted = pxf.jit()(lambda: jax.random.normal(px.RKG()))
    inside = [jitted(), jitted()]

    def inner(x):
        return x + jax.random.normal(px.RKG())

    nested = pxf.vmap({}, in_axes=(0,), out_axes=0)(pxf.vmap({}, in_axes=(0,), out_axes=0)(inner))
    grid = nested(jnp.zeros((2, 3)))
    walked = pxf.scan(lambda x, total: (total + jax.random.normal(px.RKG()), total), jnp.zeros(3))(
        0.0
    )
    own = px.RandomKeyGenerator(5)
    mine = [jax.random.uniform(own()), jax.random.uniform(own())]
    own.seed(5)
    return [first, several, inside, grid, list(walked), mine, jax.random.uniform(own()),
            jax.random.normal(px.RKG())]  # fmt: skip


def layers():
    px.RKG.seed(4)
    image = jnp.arange(2 * 6 * 6, dtype=jnp.float32).reshape(2, 6, 6) / 72
    conv = pxnn.Conv2d(2, 3, 3, stride=2, padding=1)
    return {
        "conv": conv(image),
        "kernel": conv.nn.weight.get(),
        "max": pxnn.MaxPool2d(2, 2)(image),
        "dropout": pxnn.Dropout(0.5)(image, key=jax.random.PRNGKey(0)),
        "quiet": pxnn.Dropout(0.5, inference=True)(image),
        "norm": pxnn.LayerNorm((2, 6, 6))(image),
        "no bias": pxnn.Linear(3, 2, bias=False)(X),
    }


def trees():
    px.RKG.seed(6)
    model = Pair()
    tied = [model.first, pxnn.shared(model.first)]
    references = px.tree_unref(px.tree_ref(tied))
    shapes = px.tree_extract(model.first, extract_fn=lambda p: p.get().shape, is_pytree=True)
    doubled = pxnn.Linear(4, 2)
    doubled.nn.weight.set(2 * model.second.nn.weight.get())
    px.tree_inject(model.second, params=doubled, is_pytree=True)
    seen = []
    px.tree_apply(
        lambda m: seen.append(type(m).__name__), lambda m: isinstance(m, pxnn.Linear), model
    )
    cache = px.ParamDict({"a": jnp.ones(2)})
    cache["b"] = jnp.zeros(1)
    return {
        "shared": tied[0].nn.weight is tied[1].nn.weight,
        "again": references[0].nn.weight is references[1].nn.weight,
        "shapes": sorted(map(list, shapes)),
        "doubled": model.second.nn.weight.get(),
        "seen": sorted(seen),
        "cache": ["a" in cache, cache.get("none", 3), cache["b"], sorted(cache.get())],
        "modules": sorted(type(m).__name__ for m in model.submodules(cls=pxnn.Linear)),
        "got": [px.get(px.Param(jnp.array(1.0))), px.get(2), px.set(px.Param(None), 3.0).get()],
        "static": [model.name.get(), px.static(px.static(1)).get()],
    }


def modes():
    model = Pair()
    model.train()
    training = [model.is_train, model.is_eval]
    model.eval()
    return [training, [model.is_train, model.is_eval]]


def nodes():
    px.RKG.seed(8)
    node = pxc.Vode(ruleset={"init": ("h, u <- u",), "look": ("h -> u",)})
    with pxu.step(node, pxc.STATUS.INIT):
        first = node(jnp.array([1.0, 2.0]))
    node.set("h", jnp.array([0.5, 0.5]))
    energy = node.energy()
    with pxu.step(node, "look", clear_params=pxc.VodeParam.Cache):
        looked = node.get("h")
    extra = pxc.Vode(pxc.zero_energy)
    chained = extra.set("u", jnp.ones(1)).set("h", jnp.zeros(1))
    batch = pxc.Vode()
    axes = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))
    fill = pxf.vmap(axes, in_axes=(0,), out_axes=0)(lambda u, *, node: node(u))
    with pxu.step(batch, pxc.STATUS.INIT):
        fill(jnp.arange(6.0).reshape(3, 2), node=batch)
    batch.set("h", jnp.ones((3, 2)))
    return [first, energy, looked, node.h.get(), chained is extra, batch.energy()]


def main(folder):
    parts = (filters, results, training, keys, layers, trees, modes, nodes)
    return {part.__name__: part() for part in parts}
