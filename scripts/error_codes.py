"""Write docs/reference/error-codes.md: every code in the source, who raises it, and how its message begins.

`python scripts/error_codes.py` writes the page; `tests/project/test_house.py` holds it up to date.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chainrule"
PAGE = ROOT / "docs" / "reference" / "error-codes.md"

_HEAD = """# Error codes

Every code that an error can carry, by room. The class decides the HTTP status and the exit code
([errors](errors.md)); the code says why. Messages are shown as they begin; … stands for facts of the case.

"""


def codes() -> dict[str, dict[str, tuple[str, str]]]:
    """Room → code → (class, beginning of the message)."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        room = parts[0].removesuffix(".py")
        for code, raised, message in _codes_of(ast.parse(path.read_text())):
            found.setdefault(room, {}).setdefault(code, (raised, message))
    return found


def _codes_of(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if keyword.arg == "code" and isinstance(value, str):
                    message = _text(node.args[0]) if node.args else ""
                    yield value, _name(node.func), message
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if _assigns_default_code(statement):
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    yield statement.value.value, node.name, summary  # type: ignore[attr-defined]


def _assigns_default_code(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return False
    named = any(isinstance(t, ast.Name) and t.id == "default_code" for t in targets)
    return named and isinstance(statement.value, ast.Constant)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
    return ""


def page() -> str:
    """The page's text."""
    sections = []
    for room, entries in sorted(codes().items()):
        rows = [
            f"| `{code}` | `{raised}` | {_shortened(message)} |"
            for code, (raised, message) in sorted(entries.items())
        ]
        head = [f"## {room}", "", "| code | raised by | message |", "| --- | --- | --- |"]
        sections.append("\n".join([*head, *rows]))
    return _HEAD + "\n\n".join(sections) + "\n"


def _shortened(message: str) -> str:
    words = " ".join(message.split()).replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 110 else words[:110].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    PAGE.write_text(page())
