"""The script of a page: small files for us, one ES module for the browser.

The files under `_web` import each other by name (`import { h } from "./dom.js";`), never under another name
and never all at once, and no two of one page share a name at their top level. What they import can then
stand in front of them in one module, and that is all that is done here: nothing is parsed or renamed. A file
that breaks the rule makes a module that browsers refuse, which the tests of the page would see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from graphlib import TopologicalSorter

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|class|const)\b)", re.MULTILINE)


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
