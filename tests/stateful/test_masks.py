import copy
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainrule.stateful as cs
from chainrule import InputError
from chainrule.stateful import M, Mask


class A(cs.Param):
    pass


class B(A):
    pass


class C(cs.Param):
    pass


POOL = [A(1.0), B(jnp.ones(2)), C(1.0, frozen=True), A(2.0, tag="x"), cs.ParamDict()]
leaves = st.sampled_from([
    (M(A), lambda p: isinstance(p, A)),
    (M(B), lambda p: isinstance(p, B)),
    (M((B, C)), lambda p: isinstance(p, (B, C))),
    (M(B | C), lambda p: isinstance(p, (B, C))),
    (M(None), lambda p: True),
    (M(lambda p: 1 if isinstance(p, C) else 0), lambda p: isinstance(p, C)),
    (M(cs.Param).has(frozen=True), lambda p: isinstance(p, C)),
    (M(cs.Param).has(ndim=1), lambda p: isinstance(p, B)),
    (M(cs.DynamicParam).hasnot(tag="x"), lambda p: getattr(p, "tag", None) != "x"),
])  # fmt: skip


def combine(children):
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda ab: (ab[0][0] | ab[1][0], lambda p: ab[0][1](p) or ab[1][1](p))),
        pair.map(lambda ab: (ab[0][0] & ab[1][0], lambda p: ab[0][1](p) and ab[1][1](p))),
        pair.map(lambda ab: (ab[0][0] ^ ab[1][0], lambda p: ab[0][1](p) != ab[1][1](p))),
        pair.map(lambda ab: (ab[0][0] - ab[1][0], lambda p: ab[0][1](p) and not ab[1][1](p))),
        children.map(lambda a: (~a[0], lambda p: not a[1](p))),
    )


@given(st.recursive(leaves, combine, max_leaves=5))
def test_algebra_is_that_of_truth_values(pair):
    mask, expected = pair
    chosen = mask.to(("off", "on"))
    for param in POOL:
        assert mask.matches(param) == bool(expected(param))
        assert chosen.value(param) == ("on" if expected(param) else "off")
        assert mask.value(param) is bool(expected(param))


def test_reflected_operators_and_immutability():
    assert (A | M(C)).matches(POOL[2])
    assert not (A & M(C)).matches(POOL[2])
    assert (A - M(B)).matches(POOL[0])
    mask = M(A)
    assert mask.to((1, 2)) is not mask
    assert mask.value(POOL[0]) is True
    assert "A" in repr(mask | C)
    assert ".to((1, 2))" in repr(mask.to((1, 2)))


def test_on_trees_keeps_the_selected_objects_and_sharing():
    model = {"a": POOL[0], "b": [POOL[1], POOL[2], POOL[0]]}
    out = (~M(C))(model)
    assert out == {"a": POOL[0], "b": [POOL[1], None, POOL[0]]} or out["b"][1] is None
    assert out["a"] is out["b"][2] is POOL[0]
    assert M(C).to((None, 0))(model) == {"a": None, "b": [None, 0, None]}


def test_by_path():
    params = {"encoder": [A(1.0)], "head": A(2.0)}
    assert M(A).at("encoder.*")(params)["head"] is None
    tied = {"b": params["head"], "c": params["head"]}
    assert len(cs.tree_extract(tied, M(A).at("c"))) == 1
    assert not cs.tree_extract(tied, ~M(A).at("c"))
    mapped = cs.Param(jnp.zeros(2))
    cs.vmap(lambda x, *, t: t["c"].set(x), kwargs_mask={"t": {"c": 0}})(
        jnp.ones(2), t={"b": mapped, "c": mapped}
    )
    assert mapped.get().tolist() == [1, 1]
    assert M(A).at("encoder.[0]")(params)["encoder"][0] is params["encoder"][0]


def test_errors_say_what_is_accepted():
    with pytest.raises(InputError, match="kind"):
        Mask(3)
    with pytest.raises(InputError, match=r"'other'.*'p'"):
        cs.vmap(lambda *, p: p, kwargs_mask={"other": 0})(p=A(jnp.ones(2)))


def test_extract_inject_ref_unref():
    model = {"a": A(jnp.ones(2)), "b": [C(jnp.zeros(1))]}
    model["tied"] = model["a"]
    assert cs.tree_extract(model) == (model["a"], model["b"][0]) or len(cs.tree_extract(model)) == 2
    assert (
        cs.tree_extract(model, C) == (model["b"][0],)
        or cs.tree_extract(model, C)[0] is model["b"][0]
    )
    cs.tree_inject(model, [jnp.full(2, 5.0), C(jnp.ones(1))])
    assert model["tied"].get().tolist() == [5, 5]
    assert model["b"][0].get().tolist() == [1]
    for wrong in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(InputError, match="nothing was set"):
            cs.tree_inject(model, wrong)
    assert model["a"].get().tolist() == [5, 5]

    once = cs.tree_ref(model)
    assert len(cs.tree_extract(once)) == 2
    assert isinstance(once["tied"], cs.StaticParam)
    twice = cs.tree_ref(once)
    back = cs.tree_unref(cs.tree_unref(twice))
    assert back["tied"] is back["a"] is model["a"]
    with pytest.raises(InputError, match="refers to"):
        cs.tree_unref(
            {"tied": once["tied"], "z": once["b"]}
            | {"tied": cs.tree_ref([model["b"], model["a"], model["a"]])[2]}
        )


def test_shared_copies_share_what_is_selected():
    net = cs.layers.Linear(2, 2)
    twin = cs.shared(net)
    assert twin is not net
    assert twin.weight is net.weight
    half = cs.shared(net, lambda p: p.value.ndim == 2 if isinstance(p, cs.Param) else False)
    assert half.weight is net.weight
    assert half.bias is not net.bias
    net.weight.set(jnp.zeros((2, 2)))
    np.testing.assert_allclose(twin(jnp.ones(2)), net.bias.get())


def test_places_in_a_mask_are_known_and_may_hold_masks():
    class Net(cs.Module):
        def __init__(self):
            self.a, self.c = A(jnp.ones(2)), C(jnp.ones(2))
            self.activation = jnp.tanh

    net = {"first": Net(), "second": Net()}
    loss = lambda *, net: sum(jnp.sum(part.a * part.c) for part in net.values())  # noqa: E731

    def selected(mask):
        gradients = cs.grad(loss, kwargs_mask={"net": mask})(net=net)
        return set(gradients.get("net", ()))

    assert selected({"first": M(A)}) == {"first.a"}
    assert selected({"first": A, "second.c": True}) == {"first.a", "second.c"}
    assert selected({"second": M(C)(net["second"])}) == {"second.c"}
    assert selected({"first": {"a": True, "b": None}}) == {"first.a"}
    with pytest.raises(
        InputError, match=r"`net.first.b`, but `net` has the parameters `net.first.a`"
    ):
        selected({"first": {"a": True, "b": True}})


def test_masks_made_in_the_same_way_are_equal():
    def make():
        return (M(A).at("layers.*").has(tag=[1, 2]) | ~M((B, C))).to((None, 0))

    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != make().to((None, 1))
    assert M(A) != M(B)
    assert M(A).at("x") != M(A).at("y")
    assert M(A) != "A"


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_masks_can_be_copied(twin):
    mask = (M(A).at("a*").hasnot(frozen=True) ^ M(C)).to((0, 1))
    assert twin(mask) == mask
    assert [twin(mask).value(p, "a") for p in POOL] == [mask.value(p, "a") for p in POOL]


MODEL = {"weight": A(1.0), "bias": B(jnp.ones(2))}
TYPO = M().at("wieght")


@pytest.mark.parametrize(
    "use",
    [
        lambda mask: cs.Optim(optax.sgd(0.1), mask).init(MODEL),
        lambda mask: cs.Optim({mask: optax.sgd(0.1)}).init(MODEL),
        lambda mask: cs.grad(lambda *, m: 0.0, kwargs_mask=mask)(m=MODEL),
        lambda mask: cs.grad(lambda *, m: 0.0, kwargs_mask={"m": mask})(m=MODEL),
        lambda mask: cs.vmap(lambda *, m: 0.0, kwargs_mask=mask.to((None, 0)))(m=MODEL),
        lambda mask: cs.tree_extract(MODEL, mask),
        lambda mask: cs.shared(MODEL, mask),
        lambda mask: cs.save(Path("/nowhere/at/all"), MODEL, mask=mask),
    ],
    ids=["Optim", "Optim per kind", "grad", "grad per keyword", "vmap", "tree_extract", "shared", "save"],
)  # fmt: skip
@pytest.mark.parametrize("mask", [TYPO, TYPO | M().at("bias"), ~TYPO, M(A) & TYPO], ids=repr)
def test_patterns_that_match_nothing_are_refused(use, mask):
    with pytest.raises(InputError, match=r"'wieght'.*`weight`") as caught:
        use(mask)
    assert caught.value.code == "bad_mask"


def test_a_pattern_has_to_match_in_one_of_the_keywords():
    loss = cs.grad(lambda *, a, b: jnp.sum(a["weight"].get()), kwargs_mask=M().at("weight"))
    assert loss(a=MODEL, b={"other": A(1.0)}).keys() == {"a"}
