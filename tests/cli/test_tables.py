"""Tables of commands: whole cells at every width, and on one line each where no terminal limits it."""

import re

import pytest

from chainrule.cli import main

NAME, LONG = "a_name_of_thirty_characters_00", "word " * 30
COMPONENT = f"""
from pydantic import BaseModel, Field


class InputSchema(BaseModel):
    {NAME}: float = Field(description={LONG!r})


class OutputSchema(BaseModel):
    y: float


def apply(inputs):
    return OutputSchema(y=0.0)
"""


@pytest.fixture
def shown(tmp_path, monkeypatch, capfd):
    (tmp_path / "long_names.py").write_text(COMPONENT)

    def inspect(columns):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as left:
            main(["inspect", str(tmp_path / "long_names.py")])
        assert left.value.code == 0
        return capfd.readouterr().out

    return inspect


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_cells_are_whole(columns, shown):
    lines = shown(columns).splitlines()
    assert max(len(line) for line in lines) <= int(columns)
    assert NAME in "".join(lines)
    assert sum(len(re.findall("word", line)) for line in lines) == 30


def test_a_table_without_a_terminal_is_as_wide_as_it_needs(shown, monkeypatch):
    def no_terminal(descriptor):
        raise OSError

    monkeypatch.setattr("os.get_terminal_size", no_terminal)
    assert LONG.strip() in shown("")
