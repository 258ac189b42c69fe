"""What the docs tell readers to type exists: commands, options, figures, links between pages.

Python blocks run as tests of their own (conftest.py at the root).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from benchmarks import _transports
from benchmarks.__main__ import PAGE, TRANSPORTS

from chainrule.cli.internal import find_command, make_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = {"", "bash", "sh", "shell", "console"}
OPERATORS = {"|", "||", "&&", ";", "&", ">", "<", "(", ")", "<(", ">("}


def shell_lines(text):
    """The lines of shell blocks, fenced or indented, with continuations joined."""
    fenced = [code for _, language, code in FENCED.findall(text) if language in SHELLS]
    rest = FENCED.sub("", text)
    indented = re.findall(r"^ {4}(\S.*)$", rest, re.MULTILINE)
    lines = "\n".join(fenced).replace("\\\n", " ").splitlines() + indented
    return [line.removeprefix("$ ").strip() for line in lines]


def commands_in(line):
    """Arguments of every call of `chainrule` in a line of shell."""
    if "chainrule " not in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for k, word in enumerate(words):
        is_first = k == 0 or words[k - 1] in OPERATORS or "=" in words[k - 1]
        if word in ("chainrule", ".venv/bin/chainrule") and is_first:
            rest = words[k + 1 :]
            end = next((n for n, other in enumerate(rest) if other in OPERATORS), len(rest))
            yield rest[:end]


SHELL_COMMANDS = [
    pytest.param(arguments, id=f"{page.relative_to(ROOT)}: {' '.join(arguments)[:60]}")
    for page in PAGES
    for line in shell_lines(page.read_text())
    for arguments in commands_in(line)
    if arguments[0] != "COMMAND" and "--help" not in arguments
]


@pytest.mark.parametrize("arguments", SHELL_COMMANDS)
def test_commands_parse(arguments, monkeypatch):
    name, rest = find_command(arguments)
    parser = make_parser(name)
    monkeypatch.setattr(parser, "error", pytest.fail)
    parser.parse_intermixed_args(rest)


def test_there_are_commands_to_check():
    assert len(SHELL_COMMANDS) > 25


INLINE = [
    pytest.param(words.split(), id=f"{page.relative_to(ROOT)}: {words[:60]}")
    for page in PAGES
    for words in re.findall(
        r"(?<!`)`chainrule ([a-z][^`\n]*)`(?!`)", FENCED.sub("", page.read_text())
    )
]


@pytest.mark.parametrize("words", INLINE)
def test_commands_in_sentences_exist(words):
    """Names and options; what stands for a value is left to the reader."""
    found = find_command(words)
    assert found is not None
    known = make_parser(found[0])._option_string_actions
    options = {word.partition("=")[0] for word in found[1] if word.startswith("-")}
    assert {option for option in options if len(option) > 1} <= set(known)


def test_times_of_transports_are_those_of_the_benchmarks():
    table = _transports.table(PAGE.read_text())
    assert "not measured" not in table
    assert table in TRANSPORTS.read_text()


def test_code_fits_beside_the_navigation():
    """76 columns are what a page shows without scrolling; tables that a program draws may be wider."""
    taken_in = re.compile(r'^--8<-- "(.*\.py)"$', re.MULTILINE)
    too_wide = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for indent, _, code in FENCED.findall(page.read_text())
        for line in taken_in.sub(lambda file: (ROOT / file[1]).read_text(), code).splitlines()
        if len(line) - len(indent) > 76 and not set(line) & set("│┃┏┡└")
    ]
    assert not too_wide


def test_files_are_titled_blocks():
    """A file of a reader is shown as a file, not as a string that a program writes."""
    as_string = re.compile(r"write_text\(\s*(\"\"\"|''')")
    assert [page for page in PAGES if as_string.search(page.read_text())] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_twelve_lines_are_twelve(page):
    _, _, section = (ROOT / page).read_text().partition("\n## Twelve lines\n")
    _, _, code = FENCED.findall(section)[0]
    assert len([line for line in code.splitlines() if line.strip()]) == 12


def test_pictures_are_there():
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / target).is_file(), (page, target)
