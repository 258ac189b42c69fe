"""Whether source files are Python at all, found out without running them."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from chainrule._errors import DefinitionError

# Statements and literals that have changed since Python 3.11: type aliases and parameters, what stands in
# an f-string, t-strings, `except` without parentheses.
_CHANGED = re.compile(
    r"""^\s*type\s|\b(def|class)\s+\w+\s*\[|\b[rR]?[fFtT][rR]?["']|\bexcept\b.*,"""
)


def check_syntax(file: Path) -> None:
    """Compile a Python file.

    Raises:
        DefinitionError: it cannot be read, or it is not Python (`module_failed`); the message says the line.
    """
    try:
        _compile(file)
    except (OSError, SyntaxError, ValueError) as error:
        raise _problem(file, error) from error


def check_sources(file: Path) -> None:
    """Compile a Python file, and those of its neighbours that it imports, for another interpreter.

    What only a newer Python may take is let through: who has that Python will tell.

    Raises:
        DefinitionError: as in `check_syntax`.
    """
    pending, seen = [file], set[Path]()
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        try:
            tree = _compile(source)
        except (OSError, SyntaxError, ValueError) as error:
            if not _may_be_newer(error):
                raise _problem(source, error) from error
        else:
            pending += _imported(tree, source.parent, file.parent)


def _compile(file: Path) -> ast.Module:
    content = file.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again, once, when the file is run
        compile(content, file, "exec", dont_inherit=True)
        return ast.parse(content, file)


def _problem(file: Path, error: Exception) -> DefinitionError:
    if isinstance(error, OSError):
        what, line = f"{file} cannot be read: {error.strerror}.", None
    else:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        what = f"{where}: {type(error).__name__}: {getattr(error, 'msg', None) or error}."
    details = {"file": str(file), "line": line, "exception": type(error).__name__}
    return DefinitionError(what, code="module_failed", details=details)


def _may_be_newer(error: Exception) -> bool:
    if not isinstance(error, SyntaxError):
        return False
    return error.msg.startswith("f-string") or bool(_CHANGED.search(error.text or ""))


def _imported(tree: ast.Module, here: Path, root: Path) -> Iterator[Path]:
    """Files in the component's folder that a module imports in any case; other names are packages."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], root
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            names = [start + alias.name for alias in node.names]
            base = here.joinpath(*[".."] * (node.level - 1)).resolve() if node.level else root
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if base != root or top not in sys.stdlib_module_names:
                yield from _files(base, [top, *rest])


def _files(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The packages on the way to a module, and the module."""
    for part in parts:
        for file in (folder / f"{part}.py", folder / part / "__init__.py"):
            if file.is_file():
                yield file
        folder /= part
