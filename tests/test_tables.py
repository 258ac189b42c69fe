"""Tables for notebooks and pages."""

import doctest
from xml.etree import ElementTree

from chainrule import _tables
from chainrule._tables import Html, html_table


def test_text_is_escaped_and_html_is_not():
    table = ElementTree.fromstring(html_table([("a < b", Html("<b>bold</b>"))]))
    text, bold = table.findall(".//td")
    assert text.text == "a < b"
    assert bold.find("b").text == "bold"
    assert text.get("style") == "text-align:left"
    assert table.find("thead") is None


def test_heads_say_what_they_are_about():
    table = html_table([("x", "1")], head=("name", "value"), has_row_heads=True)
    heads = ElementTree.fromstring(table).findall(".//th")
    assert [(head.text, head.get("scope")) for head in heads] == [
        ("name", "col"), ("value", "col"), ("x", "row"),
    ]  # fmt: skip


def test_examples():
    assert doctest.testmod(_tables).failed == 0
