"""From pydantic's list of problems to one Chainrule error.

The error names the first problem in full (code, path, reason) and carries the first twenty in
`details["problems"]` in the form that the peer's clients read, without ever echoing the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from chainrule._errors import ChainruleError, ComponentError, InputError
from chainrule._trees import Key, join_path

__all__ = ["bad_input", "bad_output", "loc_to_path"]

_SHOWN = 20


def bad_input(error: ValidationError, *, endpoint: str, prefix: tuple[str, ...]) -> InputError:
    """What the caller gets for inputs that do not fit the schema.

    Args:
        error: pydantic's report.
        endpoint: the endpoint that was called.
        prefix: where in the request the validated part stands, for example `("inputs",)`.
    """
    problems, count = _problems(error, prefix)
    first, cause = problems[0], _first_cause(error)
    reason = _sentence(first["msg"]) if cause is None else cause.message
    message = f"{endpoint}: {_place(first)}{reason}{_more(count)}"
    cls = type(cause) if isinstance(cause, InputError) else InputError
    return cls(
        message,
        code=_code(first, cause),
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def bad_output(error: ValidationError, *, endpoint: str) -> ComponentError:
    """What the caller gets when the author's result does not fit the author's schema."""
    problems, count = _problems(error, ())
    first = problems[0]
    message = (
        f"The component returned something from {endpoint} that its own OutputSchema forbids: "
        f"{_place(first)}{_sentence(first['msg'])}{_more(count)}"
    )
    return ComponentError(
        message,
        code="bad_output",
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def _problems(error: ValidationError, prefix: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    listed = error.errors(include_url=False, include_input=False)
    shown = [
        {
            "type": entry["type"],
            "loc": [*prefix, *_place_in_data(entry["loc"])],
            "path": loc_to_path(_place_in_data(entry["loc"])),
            "msg": entry["msg"],
            "ctx": _plain_context(entry.get("ctx") or {}),
        }
        for entry in listed[:_SHOWN]
    ]
    return shown, len(listed)


def _place_in_data(loc: tuple[str | int, ...]) -> list[str | int]:
    """A location without the labels of array members of unions, which are no keys of the data."""
    return [part for part in loc if not str(part).startswith("lax-or-strict[")]


def _plain_context(context: dict[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, BaseException) else value
        for key, value in context.items()
    }


def loc_to_path(loc: Iterable[str | int]) -> str:
    """A pydantic location as a path."""
    segments = [part if isinstance(part, int) or part.isidentifier() else Key(part) for part in loc]
    return join_path(*segments)


def _first_cause(error: ValidationError) -> ChainruleError | None:
    context = error.errors(include_url=False, include_input=False)[0].get("ctx") or {}
    cause = context.get("error")
    return cause if isinstance(cause, ChainruleError) else None


def _code(problem: dict[str, Any], cause: ChainruleError | None) -> str:
    if cause is not None:
        return cause.code
    if "code" in problem["ctx"]:
        return str(problem["ctx"]["code"])
    return problem["type"] if problem["type"].startswith("array_") else "invalid_input"


def _place(problem: dict[str, Any]) -> str:
    return f"at {problem['path']!r}: " if problem["path"] else ""


def _sentence(text: str) -> str:
    return text.removeprefix("Value error, ")


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
