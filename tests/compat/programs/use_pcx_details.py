"""What a model of pcx is seen as: masks, order, modes, state, keys, names of transformations."""

import equinox as eqx
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
        self.second = pxnn.Linear(2, 3)
        self.first = pxnn.Linear(2, 3)
        self.again = pxnn.shared(self.second)
        self.scale = px.Param(jnp.array(2.0))
        self.name = px.static("pair")


def shapes(tree):
    return [list(leaf.shape) for leaf in jax.tree.leaves(tree)]


def masks():
    model = Pair()
    kept = pxu.M(pxnn.LayerParam)(model)
    flags = pxu.M(pxnn.LayerParam).to((False, True))(model)
    return {
        "kept": shapes(kept),
        "statics": [kept.name, kept.scale, kept.again.nn.weight, kept.again.nn.bias],
        "the same": kept.second.nn.weight is model.second.nn.weight,
        "flags": sum(jax.tree.leaves(flags)),
        "at": [flags.second.nn.weight, flags.again.nn.weight, flags.scale],
        "in lists": jax.tree.leaves(
            pxu.M(px.Param).to((0, 1))({"a": [model.scale], "b": model.scale})
        ),
    }


def callables():
    model = Pair()

    def loss(*, model):
        return jnp.sum(model.second(jnp.ones(2))) + model.scale.get() ** 2

    def tree_of(choose):
        return lambda tree: jax.tree.map(
            choose, tree, is_leaf=lambda x: isinstance(x, px.BaseParam)
        )

    def selected(mask):
        _, g = pxf.value_and_grad(mask)(loss)(model=model)
        return shapes(g["model"])

    def refuses(tree):
        raise ZeroDivisionError("the mask's own")

    try:
        selected({"model": refuses})
        error = "none"
    except ZeroDivisionError as found:
        error = str(found)
    return {
        "per keyword": selected({"model": tree_of(lambda x: isinstance(x, pxnn.LayerParam))}),
        "scale": selected({"model": tree_of(lambda x: getattr(x, "shape", None) == ())}),
        "nothing": selected({"model": tree_of(lambda x: False)}),
        "error": error,
    }


def order():
    model = Pair()
    return {
        "extracted": [list(p.shape) for p in px.tree_extract(px.tree_ref(model), is_pytree=True)],
        "leaves": shapes(px.tree_ref(model)),
    }


def modes():
    model = Pair()
    model.drop = pxnn.Dropout(0.5)
    found = [model.mode(None), model.is_train, model.is_eval]
    found.append(model.mode(px.Module.MODE.TRAIN))
    found += [int(model.mode(None)), int(model.first.mode(None)), model.is_train]
    model.eval()
    return [*found, model.is_eval, model.drop.nn.inference.get()]


def rounded():
    p = px.Param(jnp.array([1.26, -0.74]))
    return [round(p), round(p, 1)]


def keys():
    px.RKG.seed(3)
    own = px.RandomKeyGenerator(4)
    lanes = px.RandomKeyGenerator(5)
    lanes.key.set(lanes(3))

    @pxf.vmap({"rkg": 0}, in_axes=(0,), out_axes=0)
    def draw(x, *, rkg):
        return x + jax.random.uniform(rkg())

    @pxf.vmap(pxu.M(px.Param).to((None, 0)), in_axes=(0,), out_axes=0)
    def draw_by_kind(x, *, rkg):
        return x + jax.random.uniform(rkg())

    return [px.RKG(), px.RKG(3), px.RKG()[0], own(2), draw(jnp.zeros(3), rkg=lanes),
            draw_by_kind(jnp.zeros(3), rkg=lanes), lanes.key.get()]  # fmt: skip


def shared_keys():
    own = px.RandomKeyGenerator(0)

    @pxf.jit()
    @pxf.vmap({"rkg": None}, in_axes=(0,), out_axes=0)
    def the_same(x, *, rkg):
        return x + jax.random.uniform(rkg())

    @pxf.jit()
    @pxf.vmap({"rkg": 0}, in_axes=(0,), out_axes=0)
    def different(x, *, rkg):
        return x + jax.random.uniform(rkg())

    @pxf.jit()
    @pxf.vmap(in_axes=(0,), out_axes=0)
    def seeded(x):
        x = x + jax.random.uniform(px.RKG())
        px.RKG.seed(0)
        return x

    found = [the_same(jnp.zeros(3), rkg=own), own.key.get()]
    own.key.set(own.key.split(3))
    found += [different(jnp.zeros(3), rkg=own), own.key.get()]
    own.key.set(own.key[0])
    return [*found, own(), seeded(jnp.zeros(3)), px.RKG.key.get()]


def flow():
    model = {"x": px.Param(1.0), "up": px.static(True)}
    traces = []

    @pxf.jit()
    def move(*, model):
        traces.append(1)
        model["x"] += 1.0 if model["up"].get() else -1.0

    found = []
    for up in (True, True, False, False):
        model["up"].set(up)
        move(model=model)
        found.append(float(model["x"].get()))
    return [*found, len(traces)]


def state():
    results = {}
    x = jnp.arange(12.0).reshape(4, 3) ** 1.5
    for name, options in {
        "ema": {},
        "batch": {"mode": "batch"},
        "plain": {"channelwise_affine": False, "momentum": 0.9, "eps": 1e-3},
    }.items():
        norm = pxnn.BatchNorm(3, "batch", **options)

        @pxf.jit()
        @pxf.vmap({"norm": None}, in_axes=(0,), out_axes=0, axis_name="batch")
        def call(x, *, norm):
            return norm(x)

        trained = [call(x, norm=norm), call(2 * x, norm=norm)]
        norm.eval()
        results[name] = [*trained, call(x, norm=norm), shapes(norm.nn), shapes(norm.state)]
    only = pxnn.Layer(
        eqx.nn.Linear, 2, 3, key=jax.random.key(0), filter=lambda w: eqx.is_array(w) and w.ndim == 2
    )
    results["filter"] = [
        type(only.nn.weight).__name__,
        shapes(pxu.M(pxnn.LayerParam)(only)),
        only(jnp.ones(2)),
    ]
    return results


def factory():
    px.RKG.seed(8)
    calls = []

    def make():
        calls.append(1)
        return optax.chain(optax.add_noise(0.1, 0.0, px.RKG()[0]), optax.sgd(0.1))

    node = px.Param(jnp.ones(3))
    optim = pxu.Optim(make)
    made = [len(calls)]

    @pxf.jit()
    def settle(*, node, optim):
        optim.init(node)
        for _ in range(2):
            optim.step(node, px.Param(node.get()))
        optim.clear()

    values = []
    for _ in range(3):
        settle(node=node, optim=optim)
        values.append(node.get())
    made.append(len(calls))
    weights = pxu.Optim(make, node)
    weights.init(node)
    return [made, values, len(calls)]


def vodes():
    vode = pxc.Vode((2,))
    with pxu.step(vode, pxc.STATUS.INIT):
        value = vode(jnp.ones(2))
    return [value, list(vode.energy_fn)]


def named():
    p = px.Param(jnp.array(1.0))

    def double(x, *, p):
        p.set(p.get() * 2)
        return x * p.get()

    def body(x, total, *, p):
        return total + p.get() * x, total

    return [
        pxf.Jit(double)(3.0, p=p),
        pxf.Vmap(
            lambda x, *, p: x * p.get(), {"p": None}, in_axes=(0,), out_axes=0, axis_name=None
        )(jnp.arange(3.0), p=p),
        pxf.ValueAndGrad(
            lambda *, p: p.get() ** 2, {"p": True}, argnums=(), has_aux=False, reduce_axes=()
        )(p=p)[0],
        list(pxf.Scan(body, xs=jnp.arange(3.0))(0.0, p=p)),
        pxf.Cond(double, lambda x, *, p: x)(True, 3.0, p=p),
        pxf.Switch((lambda x, *, p: x, double))(1, 3.0, p=p),
        pxf.WhileLoop(lambda x, *, p: x + p.get(), cond_fun=lambda x, *, p: x < 30)(0.0, p=p),
        isinstance(pxf.jit()(double), pxf.Jit),
        isinstance(pxf.scan(body), pxf.Scan),
    ]


def checkpoint(folder):
    model = Pair()
    pxu.save_params(model, str(folder / "shared"))
    with np.load(folder / "shared.npz", allow_pickle=True) as file:
        return sorted(file.files)


def main(folder):
    parts = (
        masks,
        callables,
        order,
        modes,
        rounded,
        keys,
        shared_keys,
        flow,
        state,
        factory,
        vodes,
        named,
    )
    found = {}
    for part in parts:
        px.RKG.seed(1)
        found[part.__name__] = part()
    return {**found, "checkpoint": checkpoint(folder)}
