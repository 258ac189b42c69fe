"""Exact and safe: what a transformed function must not do leaves everything as it was.

The transformations are data, so every rule is checked for every one of them, alone and inside another.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule.stateful import TrackingError
from stateful import transformations


class Net(cs.Module):
    def __init__(self):
        self.w = cs.Param(jnp.ones(2))
        self.tied = self.w
        self.cache = cs.ParamDict()
        self.mode = cs.static("a")
        self.parts = [cs.Param(jnp.zeros(2))]


TRANSFORMATIONS = transformations.table({"net": True})
LOOPS = ("scan", "while_loop")
BRANCHES = ("cond", "switch")
X = jnp.array([0.5, 2.0])

every = pytest.mark.parametrize("name", TRANSFORMATIONS)


def snapshot(net):
    return {path: np.asarray(p.value) for path, p in _params(net).items() if p.value is not None}


def _params(net):
    return {f"{i}": p for i, p in enumerate(cs.tree_extract(net))}


def assert_untouched(net, before):
    after = snapshot(net)
    assert after.keys() == before.keys()
    for path, value in before.items():
        np.testing.assert_array_equal(after[path], value)
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(net))
    assert not isinstance(cs.RKG.key.get(), jax.core.Tracer)


@every
def test_exception_leaves_everything_as_it_was(name):
    net, key = Net(), cs.RKG.key.get()
    before = snapshot(net)

    def fail(x, *, net):
        net.w += 1
        net.mode.set("b")
        cs.RKG()
        net.cache["u"] = x
        raise KeyError("mine")

    for run in (TRANSFORMATIONS[name](fail), cs.jit(TRANSFORMATIONS[name](fail)),
                cs.grad(lambda x, **kw: TRANSFORMATIONS[name](fail)(x, **kw))):  # fmt: skip
        with pytest.raises(KeyError, match="mine"):
            run(X, net=net)
        assert_untouched(net, before)
        assert net.mode == "a"
        assert net.cache.get() is None
        np.testing.assert_array_equal(cs.RKG.key.get(), key)


@every
def test_writes_and_sharing(name):
    """Set through one reference, seen through the other; the caller's object has it afterwards."""
    net = Net()

    def touch(x, *, net):
        assert net.w is net.tied
        net.tied.set(2 * net.w)
        return x * net.w

    TRANSFORMATIONS[name](touch)(X, net=net)
    factor = {"scan": 4, "while_loop": 4, "eval_shape": 1}.get(name, 2)
    assert net.w.get().tolist() == [factor, factor]
    assert net.w is net.tied


def test_positional_modules_are_copies():
    """The transformations that take further arguments, each with a module among them."""
    net, zeros = Net(), jax.tree.map(jnp.zeros_like, Net())
    before = snapshot(net)

    def touch(x, module):
        module.w *= 3
        module.cache["u"] = x
        module.new = cs.Param(x)
        return x * module.w

    def total(x, module):
        return jnp.sum(touch(x, module))

    results = [
        cs.jit(touch)(X, net),
        cs.vmap(touch, in_axes=None, axis_size=1)(X, net)[0],
        X * cs.grad(total)(X, net),
        cs.value_and_grad(total)(X, net)[1] * X,
        jnp.diag(cs.jacfwd(touch)(X, net)) * X,
        cs.jvp(touch, (X, net), (X, zeros))[0],
        cs.vjp(touch, X, net)[0],
        cs.linearize(touch, X, net)[0],
        cs.scan(lambda c, _: (c, touch(X, c) if False else touch(X, net_copy(c))), net, length=1)[
            1
        ][0],
        cs.cond(True, touch, lambda x, m: x, X, net),
        cs.switch(1, [lambda x, m: x, touch], X, net),
        cs.checkpoint(touch)(X, net),
    ]
    for result in results:
        np.testing.assert_allclose(result, 3 * X)
    assert_untouched(net, before)
    assert not hasattr(net, "new")


def net_copy(module):
    return jax.tree.map(lambda leaf: leaf, module)


@every
def test_closed_over_parameters_cannot_be_written(name):
    net, other = Net(), Net()
    before = snapshot(other)
    with pytest.raises(TrackingError) as caught:
        TRANSFORMATIONS[name](lambda x, *, net: other.w.set(x) and x)(X, net=net)
    assert caught.value.code == "untracked_write"
    assert "`net`" in str(caught.value)
    with pytest.raises(TrackingError):
        TRANSFORMATIONS[name](lambda x, *, net: other.mode.set("b"))(X, net=net)
    assert_untouched(other, before)


@every
@pytest.mark.parametrize("value", [jnp.ones(3), jnp.ones(2, int), {"a": jnp.ones(2)}])
def test_type_changes_name_the_parameter(name, value):
    net = Net()
    with pytest.raises(TrackingError, match=r"`net\.tied`|`net\.w`") as caught:
        TRANSFORMATIONS[name](lambda x, *, net: net.w.set(value) and x)(X, net=net)
    assert caught.value.code == "value_changed"
    assert "f32[2]" in str(caught.value)
    assert net.w.get().tolist() == [1, 1]


@every
def test_structure_edits_are_refused(name):
    edits = [
        lambda net: setattr(net, "new", cs.Param(X)),
        lambda net: setattr(net, "w", cs.Param(X)),
        lambda net: delattr(net, "w"),
        lambda net: net.parts.append(cs.Param(X)),
        lambda net: net.parts.clear(),
        lambda net: setattr(net.w, "frozen", True),
    ]
    net = Net()
    before = snapshot(net)
    for edit in edits:
        with pytest.raises(TrackingError) as caught:
            TRANSFORMATIONS[name](lambda x, *, net, edit=edit: edit(net) or x)(X, net=net)
        assert caught.value.code == "structure_changed"
    assert_untouched(net, before)
    assert len(net.parts) == 1
    assert not net.w.frozen


@every
def test_static_writes_are_kept_or_refused_alike(name):
    net = Net()

    def switch(x, *, net):
        net.mode.set("b")
        assert net.mode == "b"
        return x

    if name in LOOPS + BRANCHES:
        with pytest.raises(TrackingError) as caught:
            TRANSFORMATIONS[name](switch)(X, net=net)
        assert caught.value.code == "static_changed"
        assert net.mode == "a"
    else:
        TRANSFORMATIONS[name](switch)(X, net=net)
        assert net.mode == ("a" if name == "eval_shape" else "b")


@every
def test_a_static_that_is_restored_is_no_change(name):
    net = Net()

    def there_and_back(x, *, net):
        net.mode.set("b")
        net.mode.set("a")
        return x

    TRANSFORMATIONS[name](there_and_back)(X, net=net)
    assert net.mode == "a"


@every
def test_caches_may_change_structure_where_one_trace_is_one_run(name):
    net = Net()
    if name == "scan":  # where `None` may get its type in the first step, and only there
        net.cache["other"] = jnp.zeros(2)

    def fill(x, *, net):
        net.cache["u"] = x
        return x

    if name in LOOPS + BRANCHES:
        with pytest.raises(TrackingError, match=r"net\.cache") as caught:
            TRANSFORMATIONS[name](fill)(X, net=net)
        assert caught.value.code == "structure_changed"
        return
    TRANSFORMATIONS[name](fill)(X, net=net)
    assert ("u" in net.cache) == (name != "eval_shape")


@every
def test_objects_made_inside_can_be_changed(name):
    net = Net()

    def build(x, *, net):
        local = Net()
        local.w *= 2
        local.extra = cs.Param(x)
        local.parts.append(cs.Param(x))
        local.mode.set("z")
        return x * local.w

    TRANSFORMATIONS[name](build)(X, net=net)


@pytest.mark.parametrize("name", ["jit", "vmap", "checkpoint", "shard_map", "eval_shape"])
def test_live_objects_keep_their_identity_when_returned(name):
    net = Net()
    assert TRANSFORMATIONS[name](lambda x, *, net: net)(X, net=net) is net
    assert TRANSFORMATIONS[name](lambda x, *, net: net.tied)(X, net=net) is net.w


def test_jit_refuses_to_freeze_a_parameter_it_does_not_track():
    net = Net()
    with pytest.raises(TrackingError) as caught:
        cs.jit(lambda x: x * net.w)(X)
    assert caught.value.code == "untracked_read"
    with pytest.raises(TrackingError):
        cs.jit(lambda x, *, net: cs.jit(lambda x: x * net.w)(x))(X, net=net)
    # Transformations that trace anew read the current value.
    inner = cs.jit(lambda x, *, net: cs.vmap(lambda x: x * net.w)(x[None]))
    np.testing.assert_array_equal(inner(X, net=net), [X])


def test_plain_jax_cannot_leak_into_parameters():
    net = Net()
    before = snapshot(net)
    for run in (jax.jit, lambda f: jax.grad(lambda x: jnp.sum(f(x))), jax.vmap):
        with pytest.raises(TrackingError):
            run(lambda x: net.w.set(x).get())(X)
        with pytest.raises(TrackingError):
            cs.jit(lambda x, *, net, run=run: run(lambda v: net.w.set(v).get())(x))(X, net=net)
    with pytest.raises(TrackingError):
        jax.jit(lambda x: jax.random.normal(cs.RKG(), x.shape))(X)
    for edit in (
        lambda x: setattr(net, "new", cs.Param(x)),
        lambda x: net.parts.append(cs.Param(x)),
        lambda x: setattr(net.w, "tag", x),
    ):
        with pytest.raises(TrackingError):
            jax.jit(edit)(X)
    with pytest.raises(
        TrackingError
    ):  # an argument that is not differentiated is the caller's object
        jax.grad(lambda x, net: jnp.sum(net.w.set(x).get()))(X, net)
    assert_untouched(net, before)


def test_shared_modules_are_one_object_inside():
    a = Net()

    class Twice(cs.Module):
        def __init__(self):
            self.one = self.two = a

    @cs.jit
    def f(*, model, again):
        assert model.one is model.two is again
        again.w += 1

    model = Twice()
    f(model=model, again=a)
    assert a.w.get().tolist() == [2, 2]


PLAIN = {
    "jit": lambda f: jax.jit(f)(X[0]),
    "grad": lambda f: jax.grad(f)(X[0]),
    "vmap": lambda f: jax.vmap(f)(X),
}


@pytest.mark.parametrize("plain", PLAIN)
def test_a_jitted_function_puts_no_tracer_of_plain_jax_into_a_parameter(plain):
    net, key = Net(), cs.RKG.key.get()

    @cs.jit
    def scale(x, *, net):
        net.parts[0] += (
            1  # not traced under grad and vmap, and yet not kept when the next one is refused
        )
        net.w *= x
        return jnp.sum(net.w) + jax.random.normal(cs.RKG())

    scale(X[0], net=net)
    before = snapshot(net)
    cs.RKG.key.set(key)
    with pytest.raises(TrackingError, match=r"plain `jax\.\*` transformation"):
        PLAIN[plain](lambda x: scale(x, net=net))
    assert_untouched(net, before)
    np.testing.assert_array_equal(cs.RKG.key.get(), key)


def test_a_parameter_made_inside_is_guarded_from_plain_jax_too():
    @cs.jit
    def leak(x):
        last = cs.Param(jnp.zeros(()))
        jax.vmap(last.set)(x)
        return last.get()

    with pytest.raises(TrackingError, match=r"plain `jax\.\*` transformation"):
        leak(X)


def test_injecting_sets_all_or_nothing():
    net = Net()

    @cs.jit
    def inject(x, *, net):
        with pytest.raises(TrackingError, match=r"net\.tied"):
            cs.tree_inject([net.parts[0], net.w], [x, jnp.zeros(5)])
        return net.parts[0].get()

    np.testing.assert_array_equal(inject(X, net=net), jnp.zeros(2))


EDITS = {
    "added key": lambda plain: plain.update(new=1.0),
    "replaced item": lambda plain: plain.update(a=plain["a"] + 1),
    "removed key": lambda plain: plain.pop("a"),
    "nested list": lambda plain: plain["rest"].append(1.0),
}


@every
@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_plain_containers_are_refused(name, edit):
    def function(x, *, net, plain):
        EDITS[edit](plain)
        return x * 1.0

    plain = {"a": jnp.ones(()), "rest": [jnp.zeros(())]}
    with pytest.raises(TrackingError, match="`plain` was edited") as caught:
        TRANSFORMATIONS[name](function)(X, net=Net(), plain=plain)
    assert caught.value.code == "structure_changed"
    assert plain.keys() == {"a", "rest"}
