"""The way from many files to one module.

Scripts are small files that become one ES module (`join_modules`). They import each other by name
(`import { h } from "./dom.js";`), never under another name and never all at once, and no two files of one
page share a name at their top level. So the imported files can stand in front of their importer in one
module; nothing is parsed or renamed. Browsers refuse a module made of a file that breaks the rule, and the
tests of the page would fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from importlib.resources.abc import Traversable

_KINDS = ("css", "html", "js", "svg")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|class|const)\b)", re.MULTILINE)


def read_folder(folder: Traversable) -> dict[str, str]:
    """Name → content of the files of pages in a folder of a package."""
    found = (file for file in folder.iterdir() if file.name.rpartition(".")[2] in _KINDS)
    return {file.name: file.read_text(encoding="utf-8") for file in found}


@cache
def shared_files() -> dict[str, str]:
    """Name → content of the files that pages share."""
    return read_folder(files("chainrule._web"))


def join_modules(entry: str, read: Callable[[str], str]) -> str:
    """One module of a file and all that it imports, every file after those that it needs.

    Args:
        entry: the name of the file that a page starts with.
        read: the text of a file.

    Example:
        >>> sources = {
        ...     "add.js": "export const add = (a, b) => a + b;",
        ...     "page.js": 'import { add } from "./add.js";\\nadd(1, 2);',
        ... }
        >>> print(join_modules("page.js", sources.__getitem__))
        const add = (a, b) => a + b;
        add(1, 2);
    """
    texts: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = read(name)
            needs[name] = _IMPORT.findall(texts[name])
            waiting += needs[name]
    return "\n".join(_bare(texts[name]) for name in TopologicalSorter(needs).static_order())


def _bare(text: str) -> str:
    """A file without the lines that only modules need."""
    return _EXPORT.sub("", _IMPORT.sub("", text))
