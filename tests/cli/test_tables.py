"""Tables of commands: whole cells at every width, and on one line each where no terminal limits it."""

import re

import pytest

from chainrule.cli._output import make_table, renderable_text

COLUMNS = ("case", "endpoint", "status", "message")
NAME, LONG = "a-name-of-thirty-characters-000", "word " * 30


def shown(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    rows = [(NAME, "vector_jacobian_product", "failed", LONG)]
    return renderable_text(make_table("title", COLUMNS, rows))


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_cells_are_whole(columns, monkeypatch):
    lines = shown(columns, monkeypatch).splitlines()
    assert max(len(line) for line in lines) <= int(columns)
    assert NAME in "".join(lines)
    assert sum(len(re.findall("word", line)) for line in lines) == 30


def test_a_table_without_a_terminal_is_as_wide_as_it_needs(monkeypatch):
    def no_terminal(descriptor):
        raise OSError

    monkeypatch.setattr("os.get_terminal_size", no_terminal)
    text = shown("", monkeypatch)
    assert LONG.strip() in text
    assert len(text.split("\n\n")) == 3  # title, table, end
