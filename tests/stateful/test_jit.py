import collections
import functools
import gc
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import chainrule.stateful as cs
from chainrule import InputError


class Net(cs.Module):
    def __init__(self, n=2):
        self.w = [cs.Param(jnp.full(2, float(i))) for i in range(n)]
        self.mode = cs.static("a")
        self.unused = cs.Param(jnp.zeros(2))


def counted(function):
    traces = []

    def wrapper(*args, **kwargs):
        traces.append(1)
        return function(*args, **kwargs)

    return wrapper, traces


class Walked(cs.Module):
    """Counts how often it is walked: a call that walks its model costs several times as much."""

    walks = 0

    def __init__(self):
        self.p = cs.Param(jnp.zeros(()))

    def pairs(self):
        Walked.walks += 1
        return super().pairs()


def count(*, net):
    net.p += 1


def test_decorator_forms_and_names():
    @cs.jit
    def f(x):
        """Doc."""
        return x + 1

    @cs.jit(donate=True)
    def g(x):
        return x + 2

    assert (f(1), g(1)) == (2, 3)
    assert f.__name__ == "f"
    assert f.__doc__ == "Doc."
    assert "f" in repr(f)
    assert "jit_f" in f.lower(1).as_text()


def test_compiles_once_per_structure_not_per_instance():
    def step(x, *, net):
        for w in net.w:
            w += x

    function, traces = counted(step)
    step = cs.jit(function)
    a, b = Net(), Net()
    for net in (a, a, b, a, b):
        step(1.0, net=net)
    assert len(traces) == 1
    assert a.w[0].get().tolist() == [3, 3]
    assert b.w[1].get().tolist() == [3, 3]
    step(1.0, net=Net(3))
    assert len(traces) == 2


def test_replaced_and_appended_parameters_are_used():
    @cs.jit
    def total(*, net):
        return sum(jnp.sum(w) for w in net.w)

    net = Net()
    assert float(total(net=net)) == 2
    net.w.append(cs.Param(jnp.full(2, 10.0)))
    assert float(total(net=net)) == 22
    net.w[0] = cs.Param(jnp.full(2, 5.0))
    assert float(total(net=net)) == 32
    del net.w[1]
    assert float(total(net=net)) == 30


def test_static_values_and_metadata_select_the_program():
    @cs.jit
    def f(x, *, net):
        return x * (2 if net.mode == "a" else 3) + (10 if net.w[0].frozen else 0)

    net = Net()
    assert float(f(1.0, net=net)) == 2
    net.mode.set("b")
    assert float(f(1.0, net=net)) == 3
    net.w[0].frozen = True
    assert float(f(1.0, net=net)) == 13
    net.mode.set("a")
    assert float(f(1.0, net=net)) == 12


def test_the_sign_of_a_static_zero_selects_the_program():
    @cs.jit
    def f(x, *, zero):
        return x / zero.get()

    zero = cs.static(0.0)
    assert float(f(1.0, zero=zero)) == float("inf")
    zero.set(-0.0)
    assert float(f(1.0, zero=zero)) == float("-inf")


def test_plain_keyword_arguments():
    @cs.jit
    def f(x, *, net, scale, how):
        net.w[0] *= scale["s"]
        return x if how == "same" else -x

    net = Net()
    net.w[0].set(jnp.ones(2))
    assert float(f(1.0, net=net, scale={"s": 2.0}, how="same")) == 1
    assert float(f(1.0, net=net, scale={"s": 3.0}, how="other")) == -1
    assert net.w[0].get().tolist() == [6, 6]


@pytest.mark.parametrize(
    "static", [{"static_argnames": "n"}, {"static_argnums": 1}, {"static_argnums": -1}], ids=str
)
def test_static_arguments_that_are_not_passed_by_position(static):
    def function(x, n=2):
        return x * n if n else x  # a traced `n` has no truth

    compiled, x = cs.jit(function, **static), jnp.array(3.0)
    assert float(compiled(x, 0)) == 3
    if static != {"static_argnums": -1}:  # the last one that is passed, as in `jax.jit`
        assert float(compiled(x)) == 6
    if "static_argnames" in static:
        assert float(compiled(x, n=5)) == 15


def test_static_arguments():
    @cs.jit(static_argnums=1)
    def power(x, n):
        return x ** (n if isinstance(n, int) else 0)

    @cs.jit(static_argnames="n")
    def named(x, *, n):
        return x ** (n if isinstance(n, int) else 0)

    @cs.jit(static_argnames=("n",))
    def either(x, n):
        return x ** (n if isinstance(n, int) else 0)

    assert float(power(2.0, 3)) == float(named(2.0, n=3)) == float(either(2.0, 3)) == 8
    assert float(either(jnp.array(2.0), n=2)) == 4


def test_donates_exactly_what_it_writes():
    @cs.jit(donate=True)
    def step(*, net):
        net.w[0] += net.unused + 1
        return jnp.sum(net.w[1])

    net = Net()
    old, untouched, read = net.w[0].get(), net.unused.get(), net.w[1].get()
    step(net=net)
    step(net=net)
    assert old.is_deleted()
    assert not untouched.is_deleted()
    assert not read.is_deleted()
    assert net.w[0].get().tolist() == [2, 2]


def test_donation_of_one_array_held_twice():
    @cs.jit(donate=("net",))
    def step(*, net):
        net.w[0] += 1
        net.w[1] += 2

    net, array = Net(), jnp.zeros(2)
    for w in (*net.w, net.unused):
        w.set(array)
    step(net=net)
    assert net.unused.get().tolist() == [0, 0]
    assert net.w[0].get().tolist() == [1, 1]
    assert net.w[1].get().tolist() == [2, 2]
    with pytest.raises(InputError, match="other"):
        cs.jit(lambda *, net: None, donate="other")(net=net)


def test_ahead_of_time_compilation_tracks():
    @cs.jit
    def step(x, *, net):
        net.w[0] += x
        return x * 2

    net = Net()
    lowered = step.lower(1.0, net=net)
    assert net.w[0].get().tolist() == [0, 0]
    compiled = lowered.compile()
    assert float(compiled(3.0, net=net)) == 6
    assert net.w[0].get().tolist() == [3, 3]
    assert compiled.cost_analysis() is not None
    assert "add" in str(step.trace(1.0, net=net).jaxpr)


def test_shardings():
    mesh = jax.make_mesh((1,), ("d",))
    split = NamedSharding(mesh, PartitionSpec("d"))

    kept = {"net": cs.M(cs.Param).to((None, split))}

    @cs.jit(in_shardings=split, out_shardings=split, kwargs_shardings=kept)
    def step(x, *, net):
        net.w[0] += x
        return x

    net = Net()
    out = step(jnp.ones(2), net=net)
    assert out.sharding == split
    assert net.w[0].get().sharding == split


def test_methods_track_self():
    class Counter(cs.Module):
        def __init__(self):
            self.n = cs.Param(jnp.zeros((), int))

        @cs.jit
        def add(self, k, *, times):
            self.n += k * times
            return self.n.get()

    a, b = Counter(), Counter()
    assert int(a.add(2, times=3)) == 6
    assert int(a.add(1, times=1)) == 7
    assert int(b.n) == 0


def test_returns_the_callers_own_objects():
    net = Net()
    out = cs.jit(lambda *, net: {"net": net, "w": net.w[0], "new": cs.Param(jnp.ones(1))})(net=net)
    assert out["net"] is net
    assert out["w"] is net.w[0]
    assert isinstance(out["new"], cs.Param)


def test_static_writes_come_back_every_time():
    @cs.jit
    def switch(*, net):
        net.mode.set("z" + net.mode.get())

    net, other = Net(), Net()
    switch(net=net)
    switch(net=other)
    assert net.mode == "za"
    assert other.mode == "za"
    switch(net=net)
    assert net.mode == "zza"


def test_new_objects_around_live_parameters_carry_the_new_values():
    class Holder(cs.Module):
        def __init__(self, p):
            self.p = p

    @cs.jit
    def wrap(*, p):
        p += 1
        return Holder(p)

    p = cs.Param(jnp.zeros(2))
    held = wrap(p=p)
    assert held.p.get().tolist() == [1, 1]
    assert held.p is not p


def test_same_parts_nested_differently_are_different_programs():
    class Box(cs.Module):
        def __init__(self, **parts):
            for name, part in parts.items():
                setattr(self, name, part)

    f = cs.jit(lambda *, box: 1.0 if hasattr(box, "c") else 2.0)
    one, two = cs.Param(jnp.ones(1)), cs.Param(jnp.ones(1))
    assert float(f(box=Box(a=Box(b=one), c=two))) == 1
    assert float(f(box=Box(a=Box(b=one, c=two)))) == 2


def test_generators_nobody_has_drawn_from():
    f = cs.jit(lambda *, rng: jax.random.uniform(rng()))
    first = f(rng=cs.RandomKeyGenerator(7))
    again = cs.RandomKeyGenerator(7)
    np.testing.assert_array_equal(f(rng=again), first)
    assert float(f(rng=again)) != float(first)


def test_keeps_no_model_alive():
    step = cs.jit(lambda *, net: jnp.sum(net.w[0]))
    net = Net()
    step(net=net)
    step(net=net)
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None
    assert not step._bindings


def test_weak_types_do_not_compile_twice():
    function, traces = counted(lambda *, p: p.set(0.5))
    step, p = cs.jit(function), cs.Param(jnp.zeros(()))
    step(p=p)
    step(p=p)
    assert len(traces) == 1
    assert p.get().dtype == jnp.float32
    assert not p.get().weak_type


def test_threads_do_not_disturb_each_other():
    failures = []

    @cs.jit
    def draw(*, net):
        net.w[0] += jax.random.uniform(cs.RKG())
        return net.w[0].get()

    def work(size):
        try:
            for _ in range(5):
                draw(net=Net(size))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not isinstance(cs.RKG.key.get(), jax.core.Tracer)


def test_import_and_generator_start_no_backend():
    import subprocess
    import sys

    code = (
        "import chainrule.stateful as cs; from jax._src import xla_bridge as b;"
        "g = cs.RandomKeyGenerator(3); assert not b._backends; cs.RKG(); assert b._backends"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_matches_plain_jax_on_values():
    x = np.linspace(0, 1, 5)
    np.testing.assert_allclose(cs.jit(jnp.sin)(x), jax.jit(jnp.sin)(x))


def test_static_arguments_by_position_or_name():
    function = lambda x, n: x * sum(range(n))  # noqa: E731
    for jitted in (cs.jit(function, static_argnums=1), cs.jit(function, static_argnums=-1),
                   cs.jit(function, static_argnames="n")):  # fmt: skip
        assert float(jitted(2.0, 4)) == float(jitted(2.0, n=4)) == 12.0


def test_static_arguments_of_methods():
    class Sum(cs.Module):
        def __init__(self):
            self.calls = cs.Param(0)

        @cs.jit(static_argnames="n")
        def __call__(self, x, n):
            self.calls += 1
            return x * sum(range(n))

    module = Sum()
    assert float(module(2.0, 4)) == float(module(2.0, n=4)) == 12.0
    assert int(module.calls) == 2


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    a: cs.Param
    b: cs.Param


def test_edits_of_containers_that_are_not_ours_are_noticed():
    class Net(cs.Module):
        def __init__(self):
            self.pair = Pair(cs.Param(jnp.ones(())), cs.Param(jnp.ones(())))
            self.more = OrderedDict(c=cs.Param(jnp.ones(())))

    @cs.jit
    def double(*, net):
        net.pair.a *= 2
        return sum(param.get() for param in cs.tree_extract(net))

    net = Net()
    assert [float(double(net=net)) for _ in range(2)] == [4.0, 6.0]
    net.pair.a = cs.Param(jnp.full((), 10.0))
    net.more["d"] = cs.Param(jnp.full((), 100.0))
    assert float(double(net=net)) == 122.0
    assert float(net.pair.a) == 20.0

    @cs.jit
    def replace(*, net):
        net.pair.a = cs.Param(net.pair.a * 2)

    with pytest.raises(cs.TrackingError, match="was edited"):
        replace(net=net)


@pytest.mark.parametrize("donate", [False, True])
def test_traces_once(donate):
    function, traces = counted(lambda x, *, net: net.w[0].set(net.w[0] + x))
    step, net = cs.jit(function, donate=donate), Net()
    for _ in range(3):
        step(1.0, net=net)
    assert len(traces) == 1
    assert net.w[0].get().tolist() == [3, 3]


def test_numbers_in_parameters_do_not_compile_twice():
    function, traces = counted(lambda *, p: p.set(p * 2 + 1))
    step = cs.jit(function)
    for value in (1.0, jnp.ones(()), np.float32(1.0)):
        p = cs.Param(value)
        step(p=p)
        p.set(5.0)
        step(p=p)
        assert float(p) == 11
    assert len(traces) == 1


def test_modes_that_are_only_set_do_not_compile_twice():
    def train(x, *, net):
        net.train()
        return net(x)

    def evaluate(x, *, net):
        net.eval()
        return net(x)

    (train, trained), (evaluate, evaluated) = counted(train), counted(evaluate)
    train, evaluate = cs.jit(train), cs.jit(evaluate)
    net, x = cs.layers.Sequential(cs.layers.Linear(2, 2), cs.layers.Dropout(0.5)), jnp.ones(2)
    for _ in range(3):
        train(x, net=net)
        assert net.is_train
        assert net.layers[1].is_train
        np.testing.assert_array_equal(evaluate(x, net=net), net.layers[0](x))
        assert net.is_eval
    assert len(trained) == len(evaluated) == 1


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_static_values_are_depended_on_as_far_as_they_are_read(donate, is_nested):
    """For one shape nothing is read, for others more and more; every call is compared with plain Python."""

    def function(x, *, net):
        factor = 1.0
        if x.size > 1:
            factor = {"a": 2.0, "b": 3.0}[net.first.get()]
        if x.size > 2:
            factor *= {"a": 5.0, "b": 7.0}[net.second.get()]
        net.total.set(net.total.get() + factor)
        return jnp.sum(x) * factor

    def outer(x, *, net):
        return 1.0 * inner(x, net=net)

    inner = cs.jit(function)
    step = cs.jit(outer if is_nested else function, donate=donate)
    nets = []
    for first in "ab":
        for second in "ab":
            net = cs.Module()
            net.first, net.second = cs.static(first), cs.static(second)
            net.total = cs.Param(jnp.zeros(()))
            nets.append(net)
    expected = dict.fromkeys(map(id, nets), 0.0)
    for size in (1, 2, 1, 3, 2, 1, 3):
        for net in nets:
            factor = 1.0
            factor *= {"a": 2.0, "b": 3.0}[net.first.get()] if size > 1 else 1.0
            factor *= {"a": 5.0, "b": 7.0}[net.second.get()] if size > 2 else 1.0
            assert float(step(jnp.ones(size), net=net)) == size * factor
            expected[id(net)] += factor
            assert float(net.total) == expected[id(net)]


def test_many_models_are_walked_once_each():
    step = cs.jit(count)
    nets = [Walked() for _ in range(100)]
    for net in nets:
        step(net=net)
    walks = Walked.walks
    for net in nets:
        step(net=net)
    assert Walked.walks == walks
    assert [float(net.p) for net in nets] == [2.0] * 100


def test_edits_of_one_model_do_not_concern_others():
    step = cs.jit(count)
    net, other = Walked(), Walked()
    step(net=net)
    step(net=other)
    walks = Walked.walks
    other.p.frozen = True
    other.name = "new"
    step(net=net)
    assert Walked.walks == walks
    step(net=other)
    assert Walked.walks > walks


class PlainOptions:
    def __init__(self, factor):
        self.factor = factor
        self._private = 0


@dataclass
class DataOptions:
    factor: float


@dataclass(frozen=True)
class FrozenOptions:
    factor: float


class SlotOptions:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


class CallableOptions(PlainOptions):
    def __call__(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    "options",
    [PlainOptions, DataOptions, SlotOptions, CallableOptions, lambda f: SimpleNamespace(factor=f)],
)
@pytest.mark.parametrize("where", ["attribute", "list", "static", "metadata", "keyword"])
def test_plain_objects_edited_in_place_are_noticed(options, where):
    net = cs.Module()
    net.p = cs.Param(jnp.ones(()))
    held = options(2.0)
    if where == "attribute":
        net.options = held
    elif where == "list":
        net.parts = [held, {"more": (held,)}]
    elif where == "static":
        net.options = cs.static({"inner": [held]})
    elif where == "metadata":
        net.p.options = held

    def look_up(net, keyword):
        if where == "list":
            return net.parts[1]["more"][0]
        if where == "static":
            return net.options["inner"][0]
        return {"attribute": net, "metadata": net.p}[where].options if keyword is None else keyword

    function, traces = counted(lambda *, net, o=None: net.p * look_up(net, o).factor)
    step = cs.jit(function)
    given = {"o": held} if where == "keyword" else {}
    assert float(step(net=net, **given)) == 2
    assert float(step(net=net, **given)) == 2
    held.factor = 3.0
    assert float(step(net=net, **given)) == 3
    held.factor = 2.0
    assert float(step(net=net, **given)) == 2
    assert len(traces) == 2


def _edit_array(options):
    options.factor[0] = 3.0


def _edit_argument(options):
    options.factor.args[0].factor = 3.0


def _edit_keyword(options):
    options.factor.keywords["o"].factor = 3.0


def _wrapped(partial):
    return functools.update_wrapper(partial, _factor_of)


def _factor_of(o):
    return o.factor


@pytest.mark.parametrize(
    ("factor", "edit", "read"),
    [
        (lambda: np.array([2.0, np.nan]), _edit_array, lambda f: f[0]),
        (lambda: np.array([2.0, None]), _edit_array, lambda f: f[0]),
        (lambda: np.arange(2.0, 20.0)[::2], _edit_array, lambda f: f[0]),
        (lambda: bytearray([2]), lambda o: o.factor.__setitem__(0, 3), lambda f: f[0]),
        (lambda: collections.deque([2.0], maxlen=2), _edit_array, lambda f: f[0]),
        (
            lambda: collections.deque([np.array([2.0])]),
            lambda o: o.factor[0].fill(3.0),
            lambda f: f[0][0],
        ),
        (lambda: functools.partial(_factor_of, PlainOptions(2.0)), _edit_argument, lambda f: f()),
        (lambda: functools.partial(_factor_of, o=PlainOptions(2.0)), _edit_keyword, lambda f: f()),
        (
            lambda: _wrapped(functools.partial(_factor_of, PlainOptions(2.0))),
            _edit_argument,
            lambda f: f(),
        ),
        (
            lambda: functools.partial(CallableOptions(2.0), 1.0),
            lambda o: setattr(o.factor.func, "factor", 3.0),
            lambda f: f(),
        ),
    ],
    ids=[
        "array", "objects", "view", "bytes", "deque", "array in a deque", "argument", "keyword", "wrapped",
        "function",
    ],
)  # fmt: skip
def test_what_an_object_holds_is_noticed_when_edited_in_place(factor, edit, read):
    net = cs.Module()
    net.p, net.options = cs.Param(jnp.ones(())), PlainOptions(factor())
    function, traces = counted(lambda *, net: net.p * read(net.options.factor))
    step = cs.jit(function)
    for _ in range(3):
        assert float(step(net=net)) == 2
    assert len(traces) == 1
    edit(net.options)
    for _ in range(3):
        assert float(step(net=net)) == 3
    assert len(traces) == 2


def test_large_arrays_are_compared_by_identity():
    """As docs/how-to/train.md says: arrays of more than 64 kB have to be replaced."""
    net = cs.Module()
    net.p, net.options = cs.Param(jnp.ones(())), PlainOptions(np.full(8192, 2.0))
    step = cs.jit(lambda *, net: net.p * net.options.factor[0])
    assert float(step(net=net)) == 2
    net.options.factor[0] = 3.0
    assert float(step(net=net)) == 3
    net.options.factor = np.full(8193, 2.0)
    assert float(step(net=net)) == 2
    net.options.factor[0] = 3.0
    assert float(step(net=net)) == 2
    net.options.factor = net.options.factor.copy()
    assert float(step(net=net)) == 3


def test_equal_read_only_arrays_share_a_program():
    function, traces = counted(lambda *, net: net.p * net.tables[0][0])
    step = cs.jit(function)
    for _ in range(2):
        table = np.full(8193, 2.0)
        table.flags.writeable = False
        net = cs.Module()
        net.p, net.tables = cs.Param(jnp.ones(())), collections.deque([table])
        assert float(step(net=net)) == 2
    assert len(traces) == 1


def test_a_property_that_is_cached_when_first_read_is_no_edit():
    class Options(PlainOptions):
        @functools.cached_property
        def double(self):
            return 2 * self.factor

    net = cs.Module()
    net.p, net.options = cs.Param(jnp.ones(())), Options(2.0)
    function, traces = counted(lambda *, net: net.p * net.options.double)
    step = cs.jit(function)
    for _ in range(3):
        assert float(step(net=net)) == 4
    assert len(traces) == 1


def test_plain_jax_notices_edits_too():
    net = cs.Module()
    net.p, net.options = cs.Param(jnp.ones(())), PlainOptions(2.0)
    step = jax.jit(lambda net: net.p * net.options.factor)
    assert float(step(net)) == 2
    net.options.factor = 3.0
    assert float(step(net)) == 3


def test_equal_options_share_a_program():
    function, traces = counted(lambda *, net, o: net.p * o.factor)
    step, net = cs.jit(function), Walked()
    for kind in (DataOptions, FrozenOptions):
        for _ in range(3):
            step(net=net, o=kind(2.0))
    assert len(traces) == 2


def test_arrays_in_static_parameters_cannot_be_edited():
    source = np.arange(3.0)
    table = cs.static(source)
    with pytest.raises(ValueError, match="read-only"):
        table.get()[0] = 5
    source[0] = 5
    assert table.get()[0] == 0


def test_static_parameters_that_are_not_tracked_cannot_be_read():
    drop = cs.layers.Dropout(0.5)
    with pytest.raises(cs.TrackingError) as caught:
        cs.jit(lambda x: drop(x))(jnp.ones(2))
    assert caught.value.code == "untracked_read"


def test_tuples_of_models_are_not_kept_alive():
    step = cs.jit(lambda *, nets: sum(jnp.sum(net.w[0]) for net in nets))
    holder = cs.Module()
    holder.nets = (Net(), Net())
    assert float(step(nets=holder.nets)) == 0
    alive = weakref.ref(holder.nets[0])
    del holder
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("donate", [False, True])
def test_parameters_that_begin_empty_are_no_inputs(donate):
    class Cell(cs.Module):
        def __init__(self):
            self.value = cs.Param(jnp.ones(3))
            self.left = cs.Param(jnp.ones(2))
            self.weight = cs.Param(jnp.array(2.0))

    def fill(x, *, cell):
        assert cell.value.get() is None
        assert cell.left.get() is None
        if x.shape == (4,):
            raise RuntimeError("refused")
        cell.value.set(cell.weight * x)
        cell.weight.set(cell.weight + 1)

    function, traces = counted(fill)
    step = cs.jit(function, donate=donate, empty={"cell": {"value": True, "left": True}})
    cell = Cell()
    with pytest.raises(RuntimeError, match="refused"):
        step(jnp.ones(4), cell=cell)
    assert cell.value.get().tolist() == [1.0] * 3
    assert cell.left.get().tolist() == [1.0] * 2
    del traces[:]
    for n in (2.0, 3.0):  # what the first call has left behind is no input of the second
        step(jnp.ones(3), cell=cell)
        assert cell.value.get().tolist() == [n] * 3
        assert cell.left.get() is None
    assert len(traces) == 1


def test_parameters_begin_empty_inside_of_other_transformations():
    cell = cs.Param(jnp.array(5.0))

    @cs.jit(empty={"cell": True})
    def inner(x, *, cell):
        before = cell.get()
        cell.set(x)
        return 0.0 if before is None else 1.0

    @cs.jit
    def outer(x, *, cell):
        return inner(x, cell=cell) + inner(2 * x, cell=cell)

    assert float(outer(1.0, cell=cell)) == 0.0
    assert float(cell) == 2.0


def test_the_order_of_a_static_dictionary_counts_and_that_of_attributes_does_not():
    @cs.jit
    def first(x, *, weights):
        return next(iter(weights.get().values())) * x

    weights = cs.static({"a": 1.0, "b": 2.0})
    assert float(first(1.0, weights=weights)) == 1.0
    weights.set({"b": 2.0, "a": 1.0})
    assert [*weights.get()] == ["b", "a"]
    assert float(first(1.0, weights=weights)) == 2.0

    traces = []

    @cs.jit
    def traced(*, w):
        traces.append(1)
        return w.get()

    for metadata in ({"kind": "a", "rate": 1.0}, {"rate": 1.0, "kind": "a"}):
        traced(w=cs.Param(jnp.ones(2), **metadata))
    assert len(traces) == 1
    assert cs.M(cs.Param).has(kind="a", rate=1.0) == cs.M(cs.Param).has(rate=1.0, kind="a")
