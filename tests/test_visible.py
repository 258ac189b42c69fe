"""Text of others cannot command a terminal."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from chainrule._visible import visible


@given(st.text())
def test_no_control_is_left(text):
    for character in visible(text):
        assert character in "\t\n" or unicodedata.category(character) != "Cc"
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "RLI",
        )


@given(st.text())
def test_json_stays_the_same(text):
    for is_ascii in (True, False):
        written = json.dumps({text: [text]}, ensure_ascii=is_ascii)
        assert json.loads(visible(written)) == {text: [text]}


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_plain_text_stays_as_it_is(text):
    assert visible(text) == text


def test_what_is_shown_instead():
    assert visible("\x1b]0;title\x07 a\x9bb\u202ec") == "\\x1b]0;title\\x07 a\\u009bb\\u202ec"
    assert visible("10 %\r20 %\r\nover\n") == "10 %\n20 %\nover\n"
