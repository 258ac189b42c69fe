"""One ES module of many files."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from chainrule._web import join_modules, read_folder, shared_files

SERVED = read_folder(files("chainrule.serve") / "_web")
VIEWED = read_folder(files("chainrule.view") / "_web")
TEXTS = {**shared_files(), **SERVED, **VIEWED}
ENTRIES = ["page.js", "dashboard.js", "watch.js", "pipeline.js", "elimination.js"]
PARTS = sorted(name for name in TEXTS if name.endswith(".js"))
DECLARED = re.compile(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)


def read(name):
    return TEXTS[name]


def test_what_is_needed_comes_first_and_once():
    sources = {
        "a.js": "export const a = 1;\n",
        "b.js": 'import { a } from "./a.js";\nexport class B { a = a; }\n',
        "c.js": 'import { a } from "./a.js";\nimport { B } from "./b.js";\nnew B(a);\n',
    }
    joined = join_modules("c.js", sources.__getitem__)
    assert joined.split() == "const a = 1; class B { a = a; } new B(a);".split()


def test_cycles_are_refused():
    sources = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(ValueError, match="cycle"):
        join_modules("a.js", sources.__getitem__)


@pytest.mark.parametrize("entry", ENTRIES)
def test_pages_are_whole(entry):
    joined = join_modules(entry, read)
    assert not re.search(r"^\s*(import|export)\b", joined, re.MULTILINE)
    names = DECLARED.findall(joined)
    assert len(names) == len(set(names))


def test_no_file_is_left_over():
    used = "".join(join_modules(entry, read) for entry in ENTRIES)
    assert [name for name in PARTS if read(name).splitlines()[0] not in used] == []


EXPORTED = {
    word
    for name in PARTS
    for word in re.findall(r"^export (?:function|class|const) (\w+)", read(name), re.MULTILINE)
}
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./\w+\.js";', re.MULTILINE)


@pytest.mark.parametrize("name", PARTS)
def test_files_import_what_they_call(name):
    """In one module a forgotten import goes unnoticed, until the order of the files changes."""
    text = re.sub(r"//.*|/\*.*?\*/|\"[^\"\n]*\"", '""', read(name).replace("export ", ""))
    imports = IMPORT.findall(read(name))
    imported = {word for words in imports for word in words.replace(",", " ").split()}
    declared = set(re.findall(r"(?:function\*?|class|const|let) (\w+)", text))
    called = {word for word in EXPORTED if re.search(rf"(?<![.#\w]){word}\(", text)}
    assert called <= imported | declared
    assert {word for word in imported if len(re.findall(rf"\b{word}\b", text)) < 2} == set()
