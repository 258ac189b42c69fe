"""What people who come from nnx and equinox look for: copies, values by path, precision, calls of modules."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule.errors import DefinitionError, InputError, StorageError
from chainrule.stateful import Module, Param, layers


class Counting(Module):
    def __init__(self):
        self.linear = layers.Linear(3, 2)
        self.calls = Param(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls += 1
        return self.linear(x)

    def double(self, x):
        self.calls += 1
        return 2 * self.linear(x)


def test_a_module_or_its_method_can_be_transformed():
    model, x = Counting(), jnp.arange(12.0).reshape(4, 3)
    expected = x @ model.linear.weight.get().T + model.linear.bias.get()
    np.testing.assert_allclose(cs.vmap(model)(x), expected, rtol=1e-5)
    np.testing.assert_allclose(cs.jit(cs.vmap(model.double))(x), 2 * expected, rtol=1e-5)
    np.testing.assert_allclose(cs.vmap(in_axes=1)(model)(x.T), expected, rtol=1e-5)
    assert int(model.calls) == 3


def _while_counting(model, x):
    return cs.while_loop(lambda value: value[0] < 7, model.step, x)


def _by_two(model, x):
    return cs.map(model.step, jnp.stack([x, x, x]), batch_size=2)


CALLEES = {  # what calls a module or its method, and how often
    "map": (lambda m, x: cs.map(m.step, jnp.stack([x, x, x])), 3),
    "map in batches": (_by_two, 2),
    "fori_loop": (lambda m, x: cs.fori_loop(0, 4, lambda i, v, *, m: m.step(v), x, m=m), 4),
    "fori_loop of a method": (lambda m, x: cs.fori_loop(0, 4, m.numbered, x), 4),
    "while_loop": (_while_counting, 7),
    "condition": (lambda m, x: cs.while_loop(m.is_below_three, lambda v: v + 1, x), 3),
    "cond": (lambda m, x: cs.cond(x[0] < 1, m.step, lambda v: v, x), 1),
    "two modules": (lambda m, x: cs.cond(x[0] > 1, Stepping().step, m.step, x), 1),
    "switch": (lambda m, x: cs.switch(1, [lambda v: v, m.step], x), 1),
    "jvp": (lambda m, x: cs.jvp(m.step, (x,), (x,)), 1),
    "vjp": (lambda m, x: cs.vjp(m.step, x)[0], 1),
    "linearize": (lambda m, x: cs.linearize(cs.checkpoint(m.step), x)[0], 1),
    "eval_shape": (lambda m, x: cs.eval_shape(m.step, x), 0),
}


class Stepping(Module):
    def __init__(self):
        self.calls = Param(jnp.zeros((), jnp.int32))

    def step(self, x):
        self.calls += 1
        return x + 1

    def numbered(self, number, x):
        return self.step(x)

    def is_below_three(self, x):
        self.calls += 1
        return self.calls.get() < 3


@pytest.mark.parametrize("name", CALLEES)
@pytest.mark.parametrize("is_jitted", [False, True])
def test_modules_that_are_called_by_loops_and_branches_are_tracked(name, is_jitted):
    run, count = CALLEES[name]
    model, x = Stepping(), jnp.zeros(2)
    for total in (count, 2 * count):
        if is_jitted and name != "eval_shape":
            cs.jit(lambda x, *, model: run(model, x))(x, model=model)
        else:
            run(model, x)
        if name != "condition":
            assert int(model.calls) == total


def test_gradients_of_a_called_module_are_under_self():
    model, x = layers.Linear(2, 1), jnp.ones(2)
    _, pull = cs.vjp(model, x, kwargs_mask=True)
    by_x, by_model = pull(jnp.ones(1))
    np.testing.assert_allclose(by_x, model.weight.get()[0])
    np.testing.assert_allclose(by_model["self"]["weight"], [x])
    _, tangent = cs.jvp(model, (x,), (x, by_model), kwargs_mask=True)
    np.testing.assert_allclose(tangent, model.weight.get() @ x + x @ x + 1, rtol=1e-6)


@pytest.mark.parametrize(("length", "batch_size"), [(6, 2), (7, 3), (2, 5), (4, 4)])
def test_map_in_batches(length, batch_size):
    x = {"a": jnp.arange(float(length)), "b": jnp.ones((length, 2))}
    found = cs.map(lambda x: (x["a"] ** 2, x["b"] * x["a"]), x, batch_size=batch_size)
    expected = jax.lax.map(lambda x: (x["a"] ** 2, x["b"] * x["a"]), x, batch_size=batch_size)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    drawn = cs.map(layers.Dropout(0.5), jnp.ones((length, 16)), batch_size=batch_size)
    assert len({tuple(row) for row in drawn.tolist()}) == length


@pytest.mark.parametrize(
    "value", [jnp.ones(2), jax.random.key(0), {"a": jnp.ones(2)}], ids=["array", "key", "dict"]
)
def test_a_clone_outlives_donated_arrays_of_its_original(value):
    model = {"p": cs.Param(value)}
    kept = cs.clone(model)

    @cs.jit(donate=True)
    def change(*, model):
        model["p"].set(jax.tree.map(lambda leaf: leaf[None][0], model["p"].get()))

    change(model=model)
    for leaf, first in zip(jax.tree.leaves(kept["p"].get()), jax.tree.leaves(value), strict=True):
        assert leaf.dtype == first.dtype
        np.asarray(jax.random.key_data(leaf) if leaf.ndim == 0 else leaf)


def test_a_clone_is_not_changed_by_edits_in_place():
    array = np.ones(2)
    kept = cs.clone(cs.Param(array))
    array[:] = 3.0
    np.testing.assert_array_equal(kept.get(), np.ones(2))


def test_a_clone_shares_inside_and_not_with_its_original():
    layer = layers.Linear(2, 2)
    tree = {
        "first": layer,
        "again": layer,
        "weight": layer.weight,
        "cache": cs.ParamDict({"u": 1.0}),
    }
    other = cs.clone(tree)
    assert other["first"] is other["again"]
    assert other["first"].weight is other["weight"]
    layer.weight *= 2
    tree["cache"]["u"] = 2.0
    assert float(other["cache"]["u"]) == 1
    assert (layer.weight.get() == 2 * other["weight"].get()).all()


def test_values_by_path_have_the_form_of_gradients():
    model = Counting()
    model.tied = model.linear.weight
    loss = cs.grad(lambda x, *, model: jnp.sum(model(x)), kwargs_mask=True)
    gradients = loss(jnp.ones(3), model=model)["model"]
    values = cs.get_values(model, True)
    assert jax.tree.structure(values) == jax.tree.structure(gradients)
    assert set(cs.get_values(model)) == {*values, "calls"}
    new = jax.tree.map(lambda value, gradient: value - gradient, values, gradients)
    assert cs.set_values(model, new) is model
    np.testing.assert_array_equal(model.linear.bias.get(), new["linear.bias"])
    cs.set_values(model, {"tied": jnp.zeros((2, 3))})
    assert not model.linear.weight.get().any()
    with pytest.raises(InputError, match=r"no parameter at `linear\.wieght`"):
        cs.set_values(model, {"linear.bias": jnp.ones(2), "linear.wieght": 0.0})
    with pytest.raises(InputError, match=r"f32\[2\] and the new value f32\[3\]"):
        cs.set_values(model, {"calls": jnp.ones((), jnp.int32), "linear.bias": jnp.ones(3)})
    np.testing.assert_array_equal(model.linear.bias.get(), new["linear.bias"])


def test_computing_in_another_precision():
    weight, mean = Param(jnp.array([1.0, 2.0])), Param(jnp.zeros(()), frozen=True)

    @cs.precision(compute=jnp.bfloat16, output=jnp.float32)
    def loss(x, n, *, weight, mean):
        seen.append((x.dtype, n.dtype, weight.dtype, mean.dtype))
        mean.set(0.5 * mean.get() + jnp.mean(x * weight, dtype=jnp.float32))
        weight *= 2
        return jnp.sum(x * weight**2)

    seen = []
    value, grads = cs.value_and_grad(loss, kwargs_mask=True)(
        jnp.array([1.0, 3.0]), jnp.array(1), weight=weight, mean=mean
    )
    low, full = jnp.bfloat16, jnp.float32
    assert seen == [(low, jnp.int32, low, full)]
    assert (value.dtype, grads["weight"].dtype, weight.dtype) == (full, full, full)
    np.testing.assert_allclose(grads["weight"], [8.0, 48.0])  # of (2w)²x
    np.testing.assert_allclose(weight.get(), [2.0, 4.0])
    assert float(mean) == 3.5


def test_complex_least_squares_converge():
    key = jax.random.key(0)
    matrix = jax.random.normal(key, (8, 3), jnp.complex64)
    wanted = jnp.array([1 + 2j, -1j, 0.5])
    z, optim = Param(jnp.zeros(3, jnp.complex64)), cs.Optim(optax.sgd(0.05))

    def loss(*, z):
        return jnp.sum(jnp.abs(matrix @ (z.get() - wanted)) ** 2)

    @cs.jit
    def train(*, z, optim):
        def step(_, carry, *, z, optim):
            optim.step(z, cs.grad(loss, kwargs_mask=True)(z=z)["z"])
            return carry

        optim.init(z)
        cs.fori_loop(0, 200, step, None, z=z, optim=optim)

    train(z=z, optim=optim)
    np.testing.assert_allclose(z.get(), wanted, atol=1e-3)


def test_loops_over_numbers_and_slices():
    total = Param(jnp.zeros(()))

    def add(i, value, *, total):
        total += i
        return value + total.get()

    run = cs.jit(lambda n, *, total: cs.fori_loop(0, n, add, 0.0, total=total))
    assert float(run(4, total=total)) == 0 + 1 + 3 + 6
    assert float(total) == 6

    def walk(x, *, total):
        total += x
        return total.get()

    assert cs.map(walk, jnp.arange(3.0), total=total).tolist() == [6.0, 7.0, 9.0]


def test_custom_jvp_has_parameters_as_last_argument():
    weight, calls = Param(jnp.array(3.0)), Param(jnp.zeros((), jnp.int32))

    @cs.custom_jvp(kwargs_mask={"weight": True})
    def square(x, *, weight, calls):
        calls += 1
        return weight * x**2

    with pytest.raises(DefinitionError, match="defjvp"):
        square(2.0, weight=weight, calls=calls)

    @square.defjvp
    def rule(primals, tangents, *, weight, calls):
        (x, _), (dx, tree) = primals, tangents
        calls += 1
        return weight * x**2, 20 * weight * x * dx + tree["weight"] * x**2

    both = cs.jit(cs.value_and_grad(square, argnums=0, kwargs_mask={"weight": True}))
    value, (by_x, by_weight) = both(2.0, weight=weight, calls=calls)
    assert (float(value), float(by_x), float(by_weight["weight"])) == (12.0, 120.0, 4.0)
    assert float(square(2.0, weight=weight, calls=calls)) == 12.0
    assert int(calls) == 2


def test_equinox_layers_with_state_and_keys():
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    norm, (plain, state) = layers.StatefulLayer(*make(2, "b", mode="ema")), make(2, "b", mode="ema")
    x = jax.random.normal(jax.random.key(3), (6, 2))
    reference = {"axis_name": "b", "in_axes": (0, None), "out_axes": (0, None)}
    for scale in (1.0, 2.0):
        found = cs.vmap(norm, axis_name="b")(scale * x)
        expected, state = jax.vmap(plain, **reference)(scale * x, state)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    view = cs.shared(norm).eval()  # the same weights and statistics, with a mode of its own
    expected, _ = jax.vmap(eqx.nn.inference_mode(plain), **reference)(x, state)
    np.testing.assert_allclose(cs.vmap(view, axis_name="b")(x), expected, rtol=1e-5)
    assert not norm.is_eval
    np.testing.assert_array_equal(
        jax.tree.leaves(copy.deepcopy(norm).state)[-1], jax.tree.leaves(norm.state)[-1]
    )
    dropout = layers.Layer(eqx.nn.Dropout(0.5))
    ones = jnp.ones(64)
    assert (dropout(ones) != dropout(ones)).any()
    assert (dropout(ones, key=jax.random.key(0)) == dropout(ones, key=jax.random.key(0))).all()
    assert (dropout.eval()(ones) == ones).all()


def test_checkpoints_of_a_run(tmp_path):
    weight = Param(jnp.zeros(2))
    checkpoints = cs.Checkpoints(tmp_path / "run", keep=2)
    with pytest.raises(StorageError, match="no checkpoint"):
        checkpoints.load({"weight": weight})

    @cs.jit(donate=True)
    def grow(*, weight):
        weight += 1

    for step in (1, 2, 10):
        grow(weight=weight)  # gives the memory away that the checkpoint before was made of
        checkpoints.save(step, {"weight": weight, "step": step}, metadata={"loss": [1.0 / step]})
    assert checkpoints.steps() == (2, 10)
    assert repr(checkpoints).endswith("keep=2): steps [2, 10]")
    run = {"weight": weight, "step": 0}
    assert checkpoints.load(run, step=2).metadata == {"loss": [0.5]}
    assert (weight.get().tolist(), run["step"]) == ([2.0, 2.0], 2)
    checkpoints.load(run)
    assert weight.get().tolist() == [3.0, 3.0]
    with pytest.raises(InputError, match="metadata"):
        checkpoints.save(11, run, metadata={"array": jnp.ones(2)})
    blocked = tmp_path / "file"
    blocked.write_text("")
    failing = cs.Checkpoints(blocked)
    failing.save(1, run)
    with pytest.raises(OSError, match="file"):
        failing.wait()


def test_a_component_in_a_model_is_traced_once():
    # In a process of its own, because the bridge is imported in the middle of the first trace there.
    import subprocess
    import sys

    program = """
import jax.numpy as jnp, chainrule, chainrule.stateful as cs
from chainrule.runtime import Array, Float32, component
@component
def square(x: Array[("n",), Float32]) -> Array[("n",), Float32]:
    return x * x
class Model(cs.Module):
    def __init__(self):
        self.component, self.weight = square, cs.Param(jnp.ones(3))
traces = []
@cs.jit
def run(x, *, model):
    traces.append(1)
    return chainrule.apply_component(model.component, {"x": model.weight * x})
model = Model()
for _ in range(3):
    run(jnp.ones(3), model=model)
print(len(traces))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=100
    )
    assert run.stdout.strip() == "1"


def equinox_norm():
    return layers.StatefulLayer(*eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="ema"))


@pytest.mark.parametrize("make", [lambda: layers.BatchNorm(3, "b"), equinox_norm])
@pytest.mark.parametrize("axis", [None, "other"])
def test_batch_norm_outside_of_vmap_says_what_to_do(make, axis):
    model = make()
    with pytest.raises(DefinitionError, match=r"axis_name='b'.*model\.eval\(\)") as caught:
        cs.vmap(model, axis_name=axis)(jnp.ones((2, 3))) if axis else model(jnp.ones(3))
    assert caught.value.code == "missing_axis"
    assert model.eval()(jnp.ones(3)).shape == (3,)
