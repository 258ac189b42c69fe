"""Write docs/reference/error-codes.md: every code in the source, who raises it, what it means, its message.

Codes and messages are read from the source; what they mean, where the message alone does not say it, is in
`scripts/error_explanations.yaml`. `python scripts/error_codes.py` writes the page, and a test in
`tests/project/test_rules.py` holds it up to date.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chainrule"
PAGE = ROOT / "docs" / "reference" / "error-codes.md"
EXPLANATIONS = ROOT / "scripts" / "error_explanations.yaml"

_HEAD = """# Error codes

This page lists every error code, with its meaning and the beginning of its message (… stands for values
of the call). The class decides the HTTP status and the exit code ([errors](errors.md)); the code gives the
reason. Codes that begin with `array_` describe an array that does not fit its declaration.

"""


def codes() -> dict[str, tuple[str, str]]:
    """Code → (class, beginning of the message), as they are first found."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for code, raised, message in _codes_of(ast.parse(path.read_text())):
            if code not in found or (message and not found[code][1]):
                found[code] = (raised, message)
    return found


def _codes_of(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_array_problem(node):
            kind, reason = node.args
            yield from ((code, "InputError", _text(reason)) for code in _constants(kind))
        elif isinstance(node, ast.Call):
            message = _text(node.args[0]) if node.args else ""
            for code in _codes_of_call(node):
                yield code, _name(node.func), message
        elif isinstance(node, ast.Assign) and _name(node.targets[0]) == "_STORAGE_CODES":
            yield from ((code, "StorageError", "") for code in _constants(node.value))
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if _assigns_default_code(statement):
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    yield statement.value.value, node.name, summary  # type: ignore[attr-defined]


def _is_array_problem(node: ast.Call) -> bool:
    """An array that pydantic refuses: the type of its error becomes the code of an InputError."""
    codes = list(_constants(node.args[0])) if len(node.args) == 2 else []
    return _name(node.func) == "_problem" and any(code.startswith("array_") for code in codes)


def _codes_of_call(node: ast.Call) -> Iterator[str]:
    """What is given as `code=`, also as one of two; `unavailable` takes it second."""
    given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
    if _name(node.func) == "unavailable":
        given += node.args[1:2]
    for value in given:
        yield from _constants(value)


def _constants(value: ast.expr) -> Iterator[str]:
    """The texts that an expression can be: itself, one of two, or a value of a table."""
    choices = [value]
    if isinstance(value, ast.IfExp):
        choices = [value.body, value.orelse]
    elif isinstance(value, ast.Dict):
        choices = value.values
    for choice in choices:
        if isinstance(choice, ast.Constant) and isinstance(choice.value, str):
            yield choice.value


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
    meanings = explanations()
    rows = [
        f"| `{code}` | `{raised}` | {_meaning(meanings.get(code), message)} |"
        for code, (raised, message) in sorted(codes().items())
    ]
    return "\n".join(
        [_HEAD + "| code | raised by | what happened |", "| --- | --- | --- |", *rows, ""]
    )


def explanations() -> dict[str, str]:
    """Code → what it means."""
    return yaml.safe_load(EXPLANATIONS.read_text())


def _meaning(explanation: str | None, message: str) -> str:
    said = _shortened(message)
    if explanation is None:
        return said
    told = explanation[0].upper() + explanation[1:] + "."
    return f"{told}<br>*{said}*" if said else told


def _shortened(message: str) -> str:
    words = " ".join(message.split()).replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 110 else words[:110].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    PAGE.write_text(page())
