"""Rulesets: what `set` and `get` do in a status."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import DefinitionError
from chainrule.predictive import STATUS, Ruleset, Vode

names = st.text(
    st.characters(exclude_characters="<->:,", exclude_categories=["Z", "C"]), min_size=1
)


@given(key=names, targets=st.lists(names, min_size=1, max_size=3), space=st.sampled_from(["", " "]))
def test_any_name_can_be_a_slot(key, targets, space):
    text = f"{f',{space}'.join(targets)}{space}<-{space}{key}"
    (rule,) = Ruleset({".*": [text]}).inputs(None, key)
    assert rule.targets == tuple(targets)
    answer = Ruleset({".*": [f"{key}{space}->{space}{targets[0]}"]}).output("x", key)
    assert answer.target == targets[0]


@given(status=st.sampled_from([None, "init", "initial", "xinit", "a", ""]))
def test_the_whole_status_has_to_match(status):
    rules = Ruleset({"init": ["a <- k"], "in.*|a": ["b <- k"], STATUS.ALL: ["c <- k"]})
    patterns = {"a": "init", "b": "in.*|a", "c": ".*"}
    expected = [t for t, pattern in patterns.items() if re.fullmatch(pattern, status or "")]
    assert [rule.targets[0] for rule in rules.inputs(status, "k")] == expected


@pytest.mark.parametrize(
    "text", ["", "h", "h <-", "<- u", "h, <- u", "-> u", "h ->", "a <- b <- c"]
)
def test_unreadable_rule_is_refused_when_the_node_is_made(text):
    with pytest.raises(DefinitionError, match="A rule is written") as caught:
        Vode(ruleset={"init": [text]})
    assert caught.value.code == "bad_rule"


def test_unreadable_status_pattern_is_refused():
    with pytest.raises(DefinitionError, match="not a regular expression"):
        Ruleset({"(": ["h <- u"]})


def test_unknown_transform_is_refused_when_the_node_is_made():
    with pytest.raises(
        DefinitionError, match="names the transform 'noise', but given are: half"
    ) as e:
        Vode(ruleset={"init": ["h <- u:half:noise"]}, tforms={"half": lambda v, k, x, r: x / 2})
    assert e.value.code == "unknown_transform"


def test_input_rules_all_run_in_order_and_transforms_from_left_to_right():
    tforms = {
        "add": lambda vode, key, value, rkg: value + 1,
        "double": lambda vode, key, value, rkg: value * 2,
    }
    node = Vode(
        ruleset={"a": ["x <- u:add:double", "y, z <- u:double:add"], ".*": ["z <- u"]},
        tforms=tforms,
    )
    node.status = "a"
    node.set("u", 3.0)
    assert [node.get(k) for k in "xyzu"] == [8.0, 7.0, 3.0, None]
    node.status = "b"
    node.set("u", 5.0)
    assert [node.get(k) for k in "xyzu"] == [8.0, 7.0, 5.0, None]


def test_default_rule_makes_the_prediction_the_first_value_and_can_be_replaced():
    plain, replaced = Vode(), Vode(ruleset={"init": ["h <- start"]})
    for node in (plain, replaced):
        node.status = STATUS.INIT
        node(1.0)
        node.set("start", 2.0)
    assert (plain.get("h"), plain.get("u"), plain.get("start")) == (1.0, 1.0, 2.0)
    assert (replaced.get("h"), replaced.get("u"), replaced.get("start")) == (2.0, 1.0, None)


def test_output_rule_answers_from_another_slot_and_may_mention_its_own():
    node = Vode(
        ruleset={"s": ["h -> h:half", "out -> h"]},
        tforms={"half": lambda vode, key, value, rkg: value / 2},
    )
    node.set("h", 8.0)
    assert node.get("h") == 8.0
    node.status = "s"
    assert node.get("h") == 4.0
    assert node.get("out") == 4.0
    assert node.get("nothing", "default") == "default"


def test_several_output_rules_warn_and_the_first_answers():
    node = Vode(ruleset={"s": ["h -> a", "h -> b"]}).set("a", 1.0).set("b", 2.0)
    node.status = "s"
    with pytest.warns(UserWarning, match="2 output rules answer for slot 'h'"):
        assert node.get("h") == 1.0


def test_random_answer_is_kept_until_a_slot_changes():
    draws = iter(range(10))
    node = Vode(
        ruleset={".*": ["h -> h:noise"]},
        tforms={"noise": lambda vode, key, value, rkg: value + next(draws) + vode.get("bias", 0)},
    )
    node.h.set(jnp.zeros(()))
    assert [float(node.get("h")) for _ in range(3)] == [0.0, 0.0, 0.0]
    node.h.set(jnp.ones(()))
    assert [float(node.get("h")) for _ in range(2)] == [2.0, 2.0]
    node.set("bias", jnp.asarray(10.0))
    assert [float(node.get("h")) for _ in range(2)] == [13.0, 13.0]
    node.clear_params(type(node.cache))
    assert float(node.get("h")) == 4.0


def test_kept_answer_belongs_to_its_status():
    node = Vode(
        ruleset={"a": ["h -> u"], ".*": ["out -> h:status"]},
        tforms={"status": lambda vode, key, value, rkg: value + (100 if vode.status == "a" else 0)},
    )
    node.set("h", 1.0).set("u", 2.0)
    assert node.get("out") == 1.0
    node.status = "a"
    assert node.get("out") == 102.0


def test_transform_gets_the_node_the_slot_and_a_generator():
    seen = []

    def spy(vode, key, value, rkg):
        seen.append((vode, key, rkg is not None))
        return value

    node = Vode(ruleset={".*": ["a <- b:spy", "c -> a:spy"]}, tforms={"spy": spy})
    node.set("b", np.float32(1))
    node.get("c")
    assert seen == [(node, "b", True), (node, "c", True)]


def test_equal_rulesets_are_equal_so_that_equal_networks_share_a_program():
    def transform(vode, key, value, rkg):
        return value

    a, b = (Ruleset({"init": ["h <- u:t"]}, {"t": transform}) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != Ruleset({"init": ["h <- u"]})
