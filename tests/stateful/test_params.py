import copy
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule import ChainruleError


class Weight(cs.Param):
    pass


class Config:
    def __init__(self, name):
        self.name = name


def test_behaves_like_its_value():
    p, x = cs.Param(jnp.array([1.0, 2.0])), np.array([1.0, 2.0])
    for ours, expected in [
        (p + 1, x + 1), (2 - p, 2 - x), (p * p, x * x), (p / 2, x / 2), (p**2, x**2), (-p, -x),
        (p @ p, x @ x), (p == 1, x == 1), (p < 2, x < 2), (p[0], x[0]), (abs(-p), x), (p // 2, x // 2),
    ]:  # fmt: skip
        np.testing.assert_allclose(ours, expected)
    assert (p.shape, p.dtype, p.ndim, len(p)) == ((2,), jnp.float32, 1, 2)
    assert [float(v) for v in p] == [1.0, 2.0]
    assert (float(cs.Param(2.5)), int(cs.Param(3)), round(float(cs.Param(2.25)), 1)) == (
        2.5,
        3,
        2.2,
    )


def test_works_in_jax_numpy_functions():
    p = cs.Param(jnp.array([3.0, 4.0]))
    assert float(jnp.sum(p)) == 7
    assert float(jnp.linalg.norm(p)) == 5
    np.testing.assert_allclose(jnp.stack([p, p]), [[3, 4], [3, 4]])
    np.testing.assert_allclose(np.asarray(p), [3, 4])


def test_in_place_operators_keep_the_object():
    p = q = cs.Param(jnp.ones(2))
    p += 1
    p *= 3
    p **= 2
    assert p is q
    assert q.get().tolist() == [36.0, 36.0]
    p.value = jnp.zeros(2)
    assert q.get().tolist() == [0.0, 0.0]


def test_truth_is_refused_for_every_kind():
    for box in (cs.Param(1.0), cs.ParamDict(), cs.static(True), cs.RKG.key):
        with pytest.raises(TypeError, match="ambiguous"):
            bool(box)


def test_unhashable_since_equality_is_elementwise():
    with pytest.raises(TypeError):
        hash(cs.Param(1.0))


@pytest.mark.parametrize("value", ["text", object, Config("a")])
def test_only_arrays_and_numbers_can_be_held(value):
    with pytest.raises(ChainruleError) as caught:
        cs.Param(value)
    assert caught.value.code == "bad_value"


def test_dictionary_reads_as_empty_until_written():
    d = cs.ParamDict()
    assert "u" not in d
    assert len(d) == 0
    assert d.get("u") is None
    assert d.get("u", 3) == 3
    with pytest.raises(KeyError):
        d["u"]
    d["u"] = 1.0
    d.set(None)
    assert "u" not in d
    d["v"] = 2.0
    assert d["v"] == 2.0
    assert list(d) == ["v"]


def test_dictionary_is_copied_on_write():
    original = {"u": 1.0}
    d = cs.ParamDict(original)
    d["u"] = 2.0
    assert original == {"u": 1.0}


def test_static_forwards_and_is_idempotent():
    s = cs.static([1, 2])
    assert cs.static(s) is s
    assert len(s) == 2
    assert s[0] == 1
    assert 2 in s
    assert list(s) == [1, 2]
    assert s == [1, 2]
    assert cs.static(len)([1, 2, 3]) == 3
    assert jax.tree.leaves(s) == []


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_keep_class_value_and_metadata(twin):
    p = Weight(jnp.ones(2), frozen=True, tag="a")
    q = twin(p)
    assert type(q) is Weight
    assert q is not p
    assert q.frozen
    assert q.tag == "a"
    np.testing.assert_array_equal(q.get(), p.get())
    s = twin(cs.static("x"))
    assert isinstance(s, cs.StaticParam)
    assert s == "x"


def test_is_a_pytree_whose_metadata_is_structure():
    p = Weight(jnp.ones(2), tag=np.arange(3))
    q = jax.tree.map(lambda x: x + 1, p)
    assert type(q) is Weight
    assert q.get().tolist() == [2.0, 2.0]
    assert q is not p
    assert jax.tree.structure(p) == jax.tree.structure(Weight(jnp.zeros(2), tag=np.arange(3)))
    assert jax.tree.structure(p) != jax.tree.structure(Weight(jnp.zeros(2), tag=np.arange(4)))
    assert hash(jax.tree.structure(p)) == hash(jax.tree.structure(q))


def test_get_and_set_pass_plain_values_through():
    assert cs.get(3) == 3
    assert cs.get(cs.Param(3)) == 3
    assert cs.set_(1, 2) == 2
    p = cs.Param(1)
    assert cs.set_(p, cs.Param(5)) is p
    assert p.get() == 5


def test_frozen_marks_every_parameter():
    model = {"a": cs.Param(1.0), "b": [cs.Param(2.0)]}
    assert cs.frozen(model) is model
    assert model["a"].frozen
    assert model["b"][0].frozen
    cs.frozen(model["a"], False)
    assert not model["a"].frozen


def test_a_mask_does_not_freeze_everything():
    model = {"a": cs.Param(1.0), "b": cs.Param(2.0)}
    mask = cs.M().at("a")
    with pytest.raises(ChainruleError, match="tree_extract"):
        cs.frozen(model, mask)
    assert not model["b"].frozen
    cs.frozen(cs.tree_extract(model, mask))
    assert (model["a"].frozen, model["b"].frozen) == (True, False)


def drawn_in_threads(draw, threads=4, draws=60):
    """The keys that several threads draw at the same time, per thread."""
    found, barrier = {}, threading.Barrier(threads)

    def work(number):
        barrier.wait()
        found[number] = [tuple(np.asarray(draw()).tolist()) for _ in range(draws)]

    started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return found


def data_of(generator):
    return jax.random.key_data(generator())


@pytest.mark.parametrize("is_jitted", [False, True])
def test_threads_never_draw_the_same_key(is_jitted):
    draw = cs.jit(lambda: data_of(cs.RKG)) if is_jitted else lambda: data_of(cs.RKG)
    mine = tuple(np.asarray(draw()).tolist())
    found = [key for keys in drawn_in_threads(draw).values() for key in keys]
    assert len({mine, *found}) == 4 * 60 + 1


def test_threads_never_draw_the_same_key_from_a_generator_of_ones_own():
    generator = cs.RandomKeyGenerator(3)
    found = [key for keys in drawn_in_threads(lambda: data_of(generator)).values() for key in keys]
    expected = cs.RandomKeyGenerator(3)
    alone = {tuple(np.asarray(data_of(expected)).tolist()) for _ in range(240)}
    assert set(found) == alone


def test_threads_leave_the_main_thread_its_keys():
    cs.RKG.seed(11)
    alone = [np.asarray(data_of(cs.RKG)) for _ in range(3)]
    cs.RKG.seed(11)
    drawn_in_threads(lambda: data_of(cs.RKG), threads=2, draws=2)
    np.testing.assert_array_equal(alone, [np.asarray(data_of(cs.RKG)) for _ in range(3)])


def test_a_copy_of_the_default_generator_is_one_of_ones_own():
    cs.RKG.seed(5)
    twin = copy.deepcopy(cs.RKG)
    np.testing.assert_array_equal(data_of(twin), data_of(cs.RKG))
    assert pickle.loads(pickle.dumps(cs.RKG)).key.get().shape == (2,)
