"""`save_intermediates` as a function: structures, signatures, caching, nesting."""

import functools
import gc
import inspect
import threading
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError
from chainrule.harvest import DuplicateNameError, intermediate_stats, save_intermediates, sow


@pytest.mark.parametrize(
    "result",
    [
        lambda x: {"a": x, "b": [x, (x,)]},
        lambda x: [x],
        lambda x: (x,),
        lambda x: None,
        lambda x: {},
        lambda x: {"only": x},
        lambda x: (x, "text", None, abs),
        lambda x: x,
    ],
    ids=["nested", "list", "tuple", "None", "empty", "one leaf", "not arrays", "leaf"],
)
def test_the_result_keeps_its_structure(result):
    def f(x):
        sow(x, "x")
        return result(x)

    captured, found = save_intermediates(f)(2.0)
    expected = result(2.0)
    assert jax.tree.structure(captured) == jax.tree.structure(expected)
    assert jax.tree.leaves(captured) == jax.tree.leaves(expected)
    assert found == {"x": {"primal": 2.0}}


def test_arguments_may_be_trees_none_keywords_and_modules():
    layer = eqx.nn.MLP(2, 2, 3, 1, activation=jnp.tanh, key=jax.random.key(0))

    def f(module, data, nothing, *, scale):
        assert nothing is None
        h = sow(module(data["x"]), "h")
        return data["y"][0] + scale * h

    data = {"x": jnp.array([1.0, 2.0]), "y": (jnp.array([0.5, 0.5]),)}
    captured = save_intermediates(f)
    for _ in range(2):
        result, found = captured(layer, data, None, scale=2.0)
        np.testing.assert_allclose(found["h"]["primal"], layer(data["x"]), rtol=1e-6)
        np.testing.assert_allclose(result, 0.5 + 2 * layer(data["x"]), rtol=1e-6)


def test_strings_need_not_be_named_static():
    def f(x, kind):
        return sow(jnp.sin(x) if kind == "sin" else jnp.cos(x), kind)

    captured = save_intermediates(f)
    assert list(captured(1.0, "sin")[1]) == ["sin"]
    assert list(captured(1.0, "cos")[1]) == ["cos"]
    assert list(captured(1.0, kind="sin")[1]) == ["sin"]


def test_static_arguments():
    def f(x, n, *, power):
        for i in range(n):
            x = sow(x**power, f"h{i}")
        return x

    captured = save_intermediates(f, static_argnums=1, static_argnames="power")
    assert list(captured(2.0, 3, power=2)[1]) == ["h0", "h1", "h2"]
    assert captured(2.0, 1, power=3) == (8.0, {"h0": {"primal": 8.0}})


def test_a_type_error_of_the_function_is_not_swallowed():
    def f(x, kind):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        save_intermediates(f)(1.0, "kind")
    with pytest.raises(TypeError, match="mine"):
        save_intermediates(f)(1.0, 2.0)


def test_keeps_name_documentation_and_signature():
    def model(x, *, scale=1.0):
        """Doc."""

    captured = save_intermediates(model)
    assert captured.__name__ == "model"
    assert captured.__doc__ == "Doc."
    assert inspect.signature(captured) == inspect.signature(model)


def test_traces_once_per_signature():
    traced = []

    def f(x):
        traced.append(x.shape)
        return sow(x * 2, "h")

    captured = save_intermediates(f)
    for _ in range(3):
        captured(jnp.ones(2))
    captured(jnp.ones(3))
    assert traced == [(2,), (3,)]


def test_capturing_a_function_again_finds_what_was_compiled():
    traced = []

    def f(x):
        traced.append(x)
        return sow(x * 2, "h")

    for _ in range(3):
        save_intermediates(f)(1.0)
    assert len(traced) == 1
    save_intermediates(f, duplicates="append")(1.0)
    save_intermediates(f, tag="other")(1.0)
    assert len(traced) == 3


def test_what_was_compiled_goes_with_the_function():
    def make():
        def f(x):
            return sow(x * 2, "h")

        return f

    f = make()
    reference = weakref.ref(f)
    save_intermediates(f)(1.0)
    del f
    gc.collect()
    assert reference() is None


def test_a_method_captured_twice_outlives_the_first_capture():
    class Model:
        def double(self, x):
            return sow(x, "h") * 2

    model = Model()
    first, second = save_intermediates(model.double), save_intermediates(model.double)
    assert first(1.0) == (2.0, {"h": {"primal": 1.0}})
    del first
    gc.collect()
    assert second(3) == (6, {"h": {"primal": 3}})  # another signature: it is traced again


def test_callables_that_cannot_be_remembered():
    class Scale:
        __slots__ = ("factor",)
        __hash__ = None

        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return sow(x * self.factor, "h")

    assert save_intermediates(Scale(3.0))(2.0) == (6.0, {"h": {"primal": 6.0}})
    assert save_intermediates(functools.partial(jnp.multiply, 2.0))(3.0) == (6.0, {})


def test_a_warm_inner_jit_loses_nothing():
    @jax.jit
    def inner(x):
        return sow({"a": x, "b": (x * 2,)}, "tree")["b"][0]

    inner(1.0)
    captured = save_intermediates(lambda x: inner(x) + 1)
    for x in (1.0, 2.0):
        result, found = captured(x)
        assert result == 2 * x + 1
        assert found == {"tree": {"primal": {"a": x, "b": (2 * x,)}}}
    assert inner(3.0) == 6.0


def test_names_come_in_program_order():
    def f(x):
        for name in ("z", "m", "a"):
            x = sow(x + 1, name)
        return x

    assert list(save_intermediates(f)(0)[1]) == ["z", "m", "a"]


def test_tags_are_independent():
    def f(x):
        x = sow(x + 1, "h", tag="one")
        return sow({"v": x * 2}, "h", tag="two")["v"]

    assert save_intermediates(f, tag="one")(1)[1] == {"h": {"primal": 2}}
    assert save_intermediates(f, tag="two")(1)[1] == {"h": {"primal": {"v": 4}}}
    assert save_intermediates(f)(1) == (4, {})
    nested = save_intermediates(save_intermediates(f, tag="one"), tag="two")
    for _ in range(2):
        (result, one), two = nested(1)
        assert (result, one, two) == (4, {"h": {"primal": 2}}, {"h": {"primal": {"v": 4}}})


def test_a_nested_capture_of_the_same_tag_keeps_its_values():
    def outer(x):
        y, inner = save_intermediates(lambda x: sow(x * 3, "h"))(x)
        return sow(y, "h"), inner

    (_, inner), found = save_intermediates(outer)(2.0)
    assert inner == {"h": {"primal": 6.0}}
    assert found == {"h": {"primal": 6.0}}


def f(x):
    h = sow(jnp.sin(x), "h")
    return h**2


def test_is_an_ordinary_jax_function():
    captured = save_intermediates(f)
    x = jnp.array([0.3, 0.7])

    _, found = jax.jit(jax.vmap(captured))(x)
    np.testing.assert_allclose(found["h"]["primal"], jnp.sin(x), rtol=1e-6)

    def loss(x):
        result, found = captured(x)
        return result + 3 * found["h"]["primal"]

    slope = jax.grad(loss)(0.3)
    np.testing.assert_allclose(slope, (2 * np.sin(0.3) + 3) * np.cos(0.3), rtol=1e-6)
    _, curvature = jax.jvp(jax.grad(lambda x: captured(x)[0]), (0.3,), (1.0,))
    np.testing.assert_allclose(curvature, 2 * np.cos(0.6), rtol=1e-5)


def test_may_close_over_traced_values():
    def loss(w, x):
        result, found = save_intermediates(lambda x: sow(w * x, "h") ** 2)(x)
        return result + found["h"]["primal"]

    assert jax.jit(jax.grad(loss))(2.0, 3.0) == 2 * 2 * 9 + 3


def test_threads_do_not_disturb_each_other():
    results = {}

    def work(n):
        captured = save_intermediates(lambda x: sow(x * n, "h"), tag="intermediates")
        results[n] = captured(1.0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: (n, {"h": {"primal": n}}) for n in range(4)}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA fuses by cost elsewhere")
@pytest.mark.parametrize("capture", [save_intermediates, lambda f: jax.jit(save_intermediates(f))])
def test_the_compiled_program_grows_with_the_number_of_values(capture):
    """Each step is computed once, though it is a result and leads to all later ones."""

    def chain(x, n):
        for i in range(n):
            x = sow(jnp.sin(x), f"h{i}")
        return jnp.sum(x)

    for n, size in ((4, 5000), (12, 8)):
        compiled = jax.jit(capture(lambda x, n=n: chain(x, n))).lower(jnp.ones(size)).compile()
        assert compiled.as_text().count(" sine(") == n


@pytest.mark.parametrize("capture", [save_intermediates, intermediate_stats])
def test_refuses_an_unknown_choice_for_duplicates(capture):
    with pytest.raises(InputError, match="'error', 'append', 'last'") as raised:
        capture(f, duplicates="first")
    assert raised.value.code == "capture_mode"


@pytest.mark.parametrize("capture", [save_intermediates, intermediate_stats])
def test_the_former_name_of_duplicates_still_works(capture):
    def twice(x):
        return sow(sow(x, "h") + 1, "h")

    with pytest.warns(DeprecationWarning, match="duplicates='append'") as caught:
        captured = capture(twice, mode="append")
    assert caught[0].filename == __file__
    assert len(captured(1.0)[1]["h"]["primal"]) == 2
    with pytest.warns(DeprecationWarning, match="duplicates='error'"):
        captured = capture(twice, mode="strict")
    with pytest.raises(DuplicateNameError, match='duplicates="append"'):
        captured(1.0)
