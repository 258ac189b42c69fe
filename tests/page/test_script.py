"""The scripts of the pages: ES modules, small files that import each other."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

WEB = files("chainrule.serve") / "_web"
PARTS = sorted(file.name for file in WEB.iterdir() if file.name.endswith(".js"))


def read(name):
    return (WEB / name).read_text(encoding="utf-8")


def parts_of(entry):
    """The files of a page: the one that it starts with, and all that those import."""
    found, waiting = set(), [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(r'from "\./(\w+\.js)"', read(name))
    return found


def test_no_file_is_missing_or_left_over():
    assert parts_of("page.js") | parts_of("dashboard.js") == set(PARTS)


EXPORTED = {
    word
    for name in PARTS
    for word in re.findall(r"^export (?:function|class|const) (\w+)", read(name), re.MULTILINE)
}
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./\w+\.js";', re.MULTILINE)


@pytest.mark.parametrize("name", PARTS)
def test_files_import_what_they_call(name):
    """A forgotten import is noticed only when the line that needs it runs."""
    text = re.sub(r"//.*|/\*.*?\*/|\"[^\"\n]*\"", '""', read(name).replace("export ", ""))
    imports = IMPORT.findall(read(name))
    imported = {word for words in imports for word in words.replace(",", " ").split()}
    declared = set(re.findall(r"(?:function\*?|class|const|let) (\w+)", text))
    called = {word for word in EXPORTED if re.search(rf"(?<![.#\w]){word}\(", text)}
    assert called <= imported | declared
    assert {word for word in imported if len(re.findall(rf"\b{word}\b", text)) < 2} == set()
