"""The path grammar and the tree walk, held to their stated invariants."""

import contextlib
import re
import threading
import unicodedata
from collections import namedtuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from chainrule._lru_cache import LRUCache
from chainrule._paths import (
    Key,
    escape_dict_key,
    join_path,
    matches_pattern,
    path_to_pattern,
    pattern_to_regex,
    split_path,
    unescape_dict_key,
)
from chainrule._trees import (
    filter_func,
    flatten_with_paths,
    get_at_path,
    is_arraylike,
    iterate_leaves,
    map_leaves,
    map_with_paths,
    set_at_path,
)
from chainrule.errors import PathError

keys = st.text(max_size=6) | st.sampled_from(
    ["a", "é", "e\u0301", "x·y", "a.b", "{", "}", "\\", "[0]"]
)
segments = st.one_of(
    st.integers(0, 10**6),
    keys.map(Key),
    st.sampled_from(["a", "_b", "naïve", "e\u0301", "变量", "x·", "field_2"]),
)
leaves = st.integers() | st.text(max_size=2) | st.none()
trees = st.recursive(
    leaves,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(keys, children, max_size=3)
        | st.tuples(children, children)
    ),
    max_leaves=12,
)


# The grammar


@given(st.lists(segments, max_size=6))
def test_splitting_undoes_joining(parts):
    again = split_path(join_path(*parts))
    assert again == tuple(parts)
    assert [type(part) for part in again] == [type(part) for part in parts]


@given(keys)
def test_unescaping_undoes_escaping(key):
    assert unescape_dict_key(escape_dict_key(key)) == key


@given(st.text(alphabet="ab.[]{}\\0 1é\n", max_size=8))
def test_any_text_is_a_path_or_a_path_error(text):
    with contextlib.suppress(PathError):
        parts = split_path(text)
        assert split_path(join_path(*parts)) == parts


@pytest.mark.parametrize(
    "text",
    [
        ".",
        "a.",
        ".a",
        "a..b",
        "[-1]",
        "[]",
        "[a]",
        "a[0]",
        "{a",
        "a}",
        "1a",
        "a b",
        "[٣]",
        "{\\",
        f"[{'9' * 5000}]",
    ],
)
def test_malformed_paths(text):
    with pytest.raises(PathError, match="Malformed path") as caught:
        split_path(text)
    assert caught.value.code == "path_malformed"
    assert caught.value.path == text


def test_the_empty_path_is_the_root():
    assert split_path("") == ()
    assert get_at_path({"a": 1}, "") == {"a": 1}
    assert set_at_path({"a": 1}, {"": 5}) == 5


# Patterns


@given(st.lists(segments, min_size=1, max_size=5))
def test_a_path_matches_its_own_pattern(parts):
    path = join_path(*parts)
    if "{}" in path:
        return  # the empty key is not what a placeholder stands for
    pattern = path_to_pattern(path)
    assert matches_pattern(path, pattern)
    assert re.match(pattern_to_regex(pattern), path, re.DOTALL)


def test_patterns_are_anchored_and_placeholders_do_not_span():
    assert matches_pattern("d.{a.b}.v", "d.{}.v")
    assert matches_pattern("t.[0].x", "t.[0].x")
    for path in ("d.{a}.v\n", "xd.{a}.v", "d.{a}.{b}.v", "d.[0].v", "d.{a}.vv"):
        assert not matches_pattern(path, "d.{}.v")


# Reading


class Inner(BaseModel):
    v: int
    é: int = 0


class Outer(BaseModel):
    inner: Inner
    several: list[Inner] = []
    by_name: dict[str, Inner] = {}


class Rows(RootModel[list[int]]):
    pass


Pair = namedtuple("Pair", "left right")


@given(trees)
def test_every_leaf_is_found_at_its_path(tree):
    flat = flatten_with_paths(tree)
    assert len(flat) == sum(1 for _ in iterate_leaves(tree))
    for path, leaf in flat.items():
        assert get_at_path(tree, path) is leaf


def test_models_roots_and_named_tuples():
    tree = {
        "m": Outer(inner=Inner(v=1), several=[Inner(v=2)], by_name={"a b": Inner(v=3)}),
        "r": Rows([4, 5]),
        "p": Pair(6, [7]),
        3: 8,
    }
    assert flatten_with_paths(tree) == {
        "m.inner.v": 1, "m.inner.é": 0, "m.several.[0].v": 2, "m.several.[0].é": 0,
        "m.by_name.{a b}.v": 3, "m.by_name.{a b}.é": 0, "r.[0]": 4, "r.[1]": 5,
        "p.left": 6, "p.right.[0]": 7, "{3}": 8,
    }  # fmt: skip
    assert get_at_path(tree, "p.[0]") == 6
    assert flatten_with_paths(tree, ["m.inner", "{3}"]) == {"m.inner": tree["m"].inner, "{3}": 8}


def test_nfc_and_nfd_keys_are_two_keys():
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    tree = {composed: 1, decomposed: {"x": 2}}
    assert get_at_path(tree, composed) == 1
    assert get_at_path(tree, f"{decomposed}.x") == 2
    assert set_at_path(tree, {f"{decomposed}.x": 3}) == {composed: 1, decomposed: {"x": 3}}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("m.other", "m has: inner, several, by_name"),
        ("m.inner.v.x", "m.inner.v is an int and has no parts"),
        ("m.several.[1]", "m.several has: [0]"),
        ("m.model_fields", "m has: inner"),
        ("m.{inner}", "m has: inner"),
        ("gone", "the root has: m"),
        ("m.inner.__class__", "m.inner has: v"),
    ],
)
def test_a_missing_path_says_how_far_it_could_be_followed(path, said):
    tree = {"m": Outer(inner=Inner(v=1), several=[Inner(v=2)])}
    for look in (get_at_path, lambda tree, path: set_at_path(tree, {f"{path}": 0, f"{path}.x": 0})):
        if path == "gone" and look is not get_at_path:
            continue  # a mapping takes new keys
        with pytest.raises(PathError) as caught:
            look(tree, path)
        assert said in str(caught.value)


# Writing


@given(trees, st.data())
def test_setting_changes_one_leaf_and_shares_the_rest(tree, data):
    flat = flatten_with_paths(tree)
    if not flat:
        return
    path = data.draw(st.sampled_from(sorted(flat)))
    before = repr(tree)
    new = object()
    changed = set_at_path(tree, {path: new})
    assert get_at_path(changed, path) is new
    assert repr(tree) == before
    assert {**flatten_with_paths(changed), path: None} == {**flat, path: None}
    way = split_path(path)
    for depth in range(len(way)):
        node, copy = (get_at_path(t, join_path(*way[:depth])) for t in (tree, changed))
        for other in node if isinstance(node, dict) else range(len(node)):
            if other != way[depth]:
                assert copy[other] is node[other]


@given(trees, st.data())
@settings(max_examples=50)
def test_setting_many_is_setting_one_after_the_other(tree, data):
    flat = flatten_with_paths(tree)
    chosen = data.draw(st.lists(st.sampled_from(sorted(flat)), unique=True)) if flat else []
    updates = {path: index for index, path in enumerate(chosen)}
    one_by_one = tree
    for path, value in updates.items():
        one_by_one = set_at_path(one_by_one, {path: value})
    assert set_at_path(tree, updates) == one_by_one


def test_a_later_update_wins_over_one_inside_it():
    tree = {"a": {"b": 1, "c": 2}}
    assert set_at_path(tree, {"a": {"x": 0}, "a.b": 5}) == {"a": {"x": 0, "b": 5}}
    assert set_at_path(tree, {"a.b": 5, "a": {"x": 0}}) == {"a": {"x": 0}}
    assert tree == {"a": {"b": 1, "c": 2}}


def test_new_keys_are_added_in_order_and_only_to_mappings():
    assert list(set_at_path({"a": 1}, {"c": 2, "b": 3, "{d e}": 4})) == ["a", "c", "b", "d e"]
    for tree, path in (([1], "[1]"), ((), "[0]"), (Inner(v=1), "w"), ({}, "a.b"), ({}, "[0]")):
        with pytest.raises(PathError):
            set_at_path(tree, {path: 0})


def test_models_roots_and_named_tuples_are_rebuilt_as_what_they_are():
    outer = Outer(inner=Inner(v=1), several=[Inner(v=2), Inner(v=3)])
    changed = set_at_path(outer, {"several.[1].v": 9, "inner.é": 7})
    assert isinstance(changed, Outer)
    assert changed.several[1].v == 9
    assert changed.several[0] is outer.several[0]
    assert changed.by_name is outer.by_name
    assert outer.several[1].v == 3
    assert set_at_path(Rows([1, 2]), {"[0]": 5}) == Rows([5, 2])
    assert set_at_path(Pair(1, 2), {"right": 5}) == Pair(1, 5)
    assert set_at_path(Pair(1, 2), {"[0]": 5, "right": 6}) == Pair(5, 6)
    with pytest.raises(PathError, match="only mappings, models"):
        set_at_path(memoryview_like(), {"part": 1})


def memoryview_like():
    class Opaque:
        part = 0

    return Opaque()


def test_a_thousand_levels_do_not_exhaust_the_stack():
    depth = 1000
    tree = "leaf"
    for level in range(depth):
        tree = {"a": tree} if level % 2 else [tree]
    ((path, leaf),) = flatten_with_paths(tree).items()
    assert leaf == "leaf"
    assert len(split_path(path)) == depth
    assert get_at_path(set_at_path(tree, {path: "new"}), path) == "new"
    assert get_at_path(map_with_paths(lambda path, leaf: leaf * 2, tree), path) == "leafleaf"


def test_ten_thousand_fields_are_rebuilt_in_one_pass():
    copies = 0

    class Counted(dict):
        def keys(self):
            nonlocal copies
            copies += 1
            return super().keys()

    tree = Counted((f"k{i}", i) for i in range(10_000))
    doubled = map_with_paths(lambda path, leaf: 2 * leaf, tree)
    assert doubled == {f"k{i}": 2 * i for i in range(10_000)}
    assert copies <= 2


class Open(BaseModel, extra="allow"):
    v: int


class Table(dict):
    """A dictionary of an author's class, which cannot be made from items."""

    def __init__(self, name):
        super().__init__()
        self.name = name


def test_mapping_leaves_makes_every_container_again_as_what_it_is():
    table = Table("t")
    table["x"] = [1, (2,)]
    tree = {"a": table, 3: Pair(3, Rows([4])), "m": Open(v=5, more=[6])}
    doubled = map_leaves(lambda leaf: 2 * leaf, tree)
    assert list(doubled) == ["a", 3, "m"]
    assert type(doubled["a"]) is Table
    assert doubled["a"].name == "t"
    assert doubled["a"] == {"x": [2, (4,)]}
    assert doubled[3] == Pair(6, Rows([8]))
    assert doubled["m"] == Open(v=10, more=[12])
    assert table["x"] == [1, (2,)]
    assert tree["m"].more == [6]


def test_mapping_leaves_to_plain_data():
    tree = {"a": Table("t"), 3: Pair(3, Rows([4])), "m": Open(v=5, more=(6,))}
    assert map_leaves(str, tree, plain=True) == {
        "a": {}, 3: ["3", ["4"]], "m": {"v": "5", "more": ["6"]},
    }  # fmt: skip


def test_mapping_leaves_stops_where_it_is_told():
    tree = {"a": [1, 2], "b": {"c": [3]}}
    assert map_leaves(len, tree, is_leaf=lambda node: isinstance(node, list)) == {
        "a": 2, "b": {"c": 1},
    }  # fmt: skip


def test_extra_fields_of_a_model_have_paths():
    model = Open(v=1, more={"x": 2})
    assert flatten_with_paths(model) == {"v": 1, "more.x": 2}
    assert set_at_path(model, {"more.x": 3}) == Open(v=1, more={"x": 3})


# Functions of trees


def test_filter_func_narrows_inputs_and_outputs():
    def func(tree):
        return {"sum": tree["a"] + tree["b"]["c"], "a": tree["a"]}

    defaults = {"a": 1, "b": {"c": 2}}
    assert filter_func(func, defaults)({"a": 10}) == {"sum": 12, "a": 10}
    by_position = filter_func(func, defaults, output_paths=["sum"], input_paths=["b.c", "a"])
    assert by_position(5, 3) == {"sum": 8}
    with pytest.raises(ValueError, match="argument"):
        by_position(5)


def test_arraylike():
    np = pytest.importorskip("numpy")
    assert is_arraylike(np.ones(2))
    assert is_arraylike(np.float32(1))
    assert not is_arraylike([1.0])


# The cache


@given(st.integers(0, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_the_cache_forgets_what_was_used_longest_ago(maxsize, operations):
    cache, model = LRUCache(maxsize), []
    for is_put, key in operations:
        if is_put:
            cache.put(key, -key)
            model = [*(k for k in model if k != key), key][-maxsize:] if maxsize else []
        elif cache.get(key) is not None:
            model = [*(k for k in model if k != key), key]
        assert [key for key in range(7) if key in cache] == sorted(model)
        assert len(cache) == len(model)


def test_the_cache_is_bounded_in_bytes():
    cache = LRUCache(10, max_bytes=10, size_of=len)
    for name in "abc":
        cache.put(name, name * 4)
    assert "a" not in cache
    cache.put("b", "b")
    cache.put("d", "dddd")
    assert {"b", "c", "d"} <= {key for key in "abcd" if key in cache}
    cache.put("e", "e")
    assert cache.pop("e") == "e"
    assert cache.pop("e", "gone") == "gone"
    assert repr(cache) == "LRUCache(3 of 10 entries, 9 bytes)"
    cache.clear()
    assert repr(cache) == "LRUCache(0 of 10 entries, 0 bytes)"


def test_a_value_larger_than_the_cache_drives_nobody_out():
    cache = LRUCache(10, max_bytes=10, size_of=len)
    cache.put("a", "aaaa")
    cache.put("b", "bbbb")
    cache.put("big", "x" * 11)
    cache.put("b", "x" * 11)
    assert [key for key in ("a", "b", "big") if key in cache] == ["a"]
    assert repr(cache) == "LRUCache(1 of 10 entries, 4 bytes)"


def test_the_cache_is_safe_between_threads():
    cache = LRUCache(8, max_bytes=64, size_of=lambda value: 8)
    failures = []

    def work(seed):
        try:
            for i in range(2000):
                key = (seed * 31 + i * 7) % 20
                cache.put(key, key)
                found = cache.get((key + 1) % 20)
                assert found is None or found == (key + 1) % 20
                if i % 50 == 0:
                    cache.pop(key)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(cache) <= 8
    while len(cache):
        cache.pop(next(key for key in range(20) if key in cache))
    assert "0 bytes" in repr(cache)
