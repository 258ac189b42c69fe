"""Sharing, masks, random keys and exceptions under every transformation inside every other one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from stateful import transformations

X = jnp.array([0.5, 2.0])
MASK = {"net": cs.M(cs.Param).has(group="a")}


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """These programs run once: the time goes into compiling them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Net(cs.Module):
    def __init__(self):
        self.a = cs.Param(jnp.ones(2), group="a")
        self.b = cs.Param(jnp.full(2, 3.0), group="b")
        self.again = [self.a, {"b": self.b}]


def total(tree):
    """Any result as one vector, so that every transformation can be put inside any other."""
    arrays = [jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return X * sum(arrays, jnp.zeros(()))


scalar, TRANSFORMATIONS = transformations.scalar, transformations.table(MASK)
RUNS = {"scan": 2, "while_loop": 2, "eval_shape": 0}
REVERSE = {"grad", "grad by mask", "value_and_grad", "jacrev", "hessian", "vjp", "linearize"}
FORWARD = {"jacfwd", "jvp", "hessian", "linearize"}


def impossible(outer, inner):
    """What JAX itself does not do."""
    if outer == inner == "shard_map":
        return True  # the axis of the mesh is taken
    if inner == "while_loop":
        return outer in REVERSE - {"linearize"}  # a loop of unknown length has no reverse mode
    if inner == "custom_vjp":
        return outer in FORWARD  # and a custom reverse rule no forward mode
    return False


def inside(name, f):
    return lambda x, *, net: total(TRANSFORMATIONS[name](f)(x, net=net))


def compiled(transformed):
    """The whole as one program: eagerly JAX compiles every operation, and has no Hessian of `shard_map`."""
    return cs.jit(lambda x, **kw: total(transformed(x, **kw)))


each = pytest.mark.parametrize("outer", TRANSFORMATIONS)


def inner_names(outer):
    return [name for name in TRANSFORMATIONS if not impossible(outer, name)]


@each
def test_writes_and_sharing(outer):
    """A write through one reference is seen through the other, as often as the function runs."""
    nets = {name: Net() for name in inner_names(outer)}

    def double(x, *, net):
        assert net.a is net.again[0]
        assert net.b is net.again[1]["b"]
        net.again[0].set(2 * net.a)
        net.b += net.a
        return x * net.b

    def run_all(x, *, nets):
        return total([inside(name, double)(x, net=net) for name, net in nets.items()])

    if outer == "grad by mask":
        transformed = cs.grad(scalar(run_all), kwargs_mask={"nets": MASK["net"]})
    else:
        transformed = TRANSFORMATIONS[outer](run_all)
    compiled(transformed)(X, nets=nets)
    for name, net in nets.items():
        runs = RUNS.get(outer, 1) * RUNS.get(name, 1)
        a = 2.0**runs
        assert net.a.get().tolist() == [a, a], name
        assert net.b.get().tolist() == [1 + 2 * a, 1 + 2 * a], name
        assert net.a is net.again[0]
        assert net.b is net.again[1]["b"]


@each
def test_random_keys(outer):
    """Equal seeds, equal draws; a generator moves on exactly when something was drawn."""

    def draw(x, *, net):
        net.a.set(jax.random.uniform(cs.RKG(), (2,)))
        return x * net.a

    def run_all(x, *, nets):
        return total([inside(name, draw)(x, net=net) for name, net in nets.items()])

    drawing = [
        n for n in inner_names(outer) if n != "vmap"
    ]  # whose lanes would draw different values
    programs = {}

    def values(seed):
        cs.RKG.seed(seed)
        nets = {name: Net() for name in drawing}
        if outer == "vmap":  # every lane draws its own, so the parameter has to be mapped
            mapped = {"nets": cs.M(cs.Param).to((None, 0))}
            for param in cs.tree_extract(nets):
                param.set(jnp.stack([param.get()] * 2))
            transformed = cs.vmap(run_all, in_axes=None, axis_size=2, kwargs_mask=mapped)
        else:
            transformed = TRANSFORMATIONS["grad" if outer == "grad by mask" else outer](run_all)
        program = programs.setdefault("run", compiled(transformed))
        program(X, nets=nets)
        return {name: net.a.get() for name, net in nets.items()}, cs.RKG.key.get()

    (first, key), (second, same_key), (other, _) = values(1), values(1), values(2)
    start = jax.random.key_data(jax.random.key(1))
    assert (key == same_key).all()
    assert bool((key == start).all()) == (outer == "eval_shape")
    drawn = []
    for name in drawing:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        if outer == "eval_shape" or name == "eval_shape":
            assert (first[name] == 1).all(), name
            continue
        assert (first[name] != other[name]).all(), name
        drawn.append(first[name].ravel())
    if drawn:
        assert len(np.unique(np.concatenate(drawn))) == sum(map(len, drawn))


@each
def test_exceptions_leave_everything_as_it_was(outer):
    for inner in inner_names(outer):
        check_exception(outer, inner)


def check_exception(outer, inner):
    net, key = Net(), cs.RKG.key.get()

    def fail(x, *, net):
        net.a += 1
        cs.RKG()
        net.again[1]["b"] *= x
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        TRANSFORMATIONS[outer](inside(inner, fail))(X, net=net)
    assert net.a.get().tolist() == [1, 1]
    assert net.b.get().tolist() == [3, 3]
    np.testing.assert_array_equal(cs.RKG.key.get(), key)


@each
def test_masks(outer):
    """Inside anything, a mask selects what is differentiated and what is mapped."""

    def loss(x, *, net):
        return jnp.sum(x * net.a**2 * net.b)

    def run(x, *, net):
        grads = cs.grad(loss, kwargs_mask=MASK)(x, net=net)["net"]
        assert list(grads) == ["a"]
        lanes = cs.vmap(
            lambda x, *, net: net.a * x,
            in_axes=None,
            kwargs_mask={"net": MASK["net"].to((None, 0))},
        )(2.0, net=net)
        net.b.set(grads["a"] + lanes)
        return x * net.b

    net = Net()
    compiled(TRANSFORMATIONS[outer](run))(X, net=net)
    times = RUNS.get(outer, 1)
    expected = jnp.full(2, 3.0)
    for _ in range(times):
        expected = 2 * X * expected + 2.0
    if outer == "while_loop":  # the carry is multiplied on its way
        first = 2 * X * 3.0 + 2.0
        expected = 2 * (X * first) * first + 2.0
    np.testing.assert_allclose(net.b.get(), expected, rtol=1e-6)
    assert net.a.get().tolist() == [1, 1]
