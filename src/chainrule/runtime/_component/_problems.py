"""From pydantic's list of problems to one Chainrule error.

The error names the first problem in full (code, path, reason) and carries the first twenty in
`details["problems"]` in the form that the peer's clients read, without ever echoing the data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from chainrule._errors import ChainruleError, ComponentError, InputError
from chainrule._paths import loc_to_path
from chainrule.runtime._schema import describe_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN = 20
_NAMED = 8


def bad_input(
    error: ValidationError,
    value: Any,
    *,
    names: Collection[str],
    endpoint: str,
    prefix: tuple[str, ...],
) -> InputError:
    """What the caller gets for inputs that do not fit the schema.

    Args:
        error: pydantic's report.
        value: what was validated.
        names: of the fields that were looked for.
        endpoint: the endpoint that was called.
        prefix: where in the request the validated part stands, for example `("inputs",)`.
    """
    problems, count = _problems(error, value, prefix)
    first, cause = problems[0], _first_cause(error)
    reason = _sentence(first["msg"]) if cause is None else cause.message
    if _has_level(value, names):
        message = (
            f"{endpoint}: the inputs are given with the level 'inputs' of a request around them. Drop it: "
            f"pass {_shown_names(names)}."
        )
    elif _is_bare(value, names):
        message = f"{endpoint}: {_told_the_names(value, names)}"
    else:
        message = f"{endpoint}: {_place(first)}{reason}{_more(problems, count)}"
    cls = type(cause) if isinstance(cause, InputError) else InputError
    return cls(
        message,
        code=_code(first, cause),
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def _has_level(value: Any, names: Collection[str]) -> bool:
    """Whether the body of a request stands where its inputs are expected."""
    return isinstance(value, Mapping) and set(value) == {"inputs"} and "inputs" not in names


def _shown_names(names: Collection[str]) -> str:
    shown = ", ".join(f"{name!r}: …" for name in islice(names, _NAMED))
    return f"{{{shown}{', …' if len(names) > _NAMED else ''}}}"


def _is_bare(value: Any, names: Collection[str]) -> bool:
    """Whether a value stands where a dictionary, a model or an object with the fields is expected."""
    return not isinstance(value, (Mapping, BaseModel)) and not any(
        hasattr(value, name) for name in names
    )


def _told_the_names(value: Any, names: Collection[str]) -> str:
    return (
        f"the inputs are a dictionary by name; found {describe_value(value)}. "
        f"Pass {_shown_names(names)}."
    )


def bad_output(error: ValidationError, value: Any, *, endpoint: str) -> ComponentError:
    """What the caller gets when the author's result does not fit the author's schema.

    Args:
        error: pydantic's report.
        value: what was validated; `None` when nobody knows.
        endpoint: the endpoint that was called.
    """
    problems, count = _problems(error, value, ())
    first = problems[0]
    message = (
        f"The component returned something from {endpoint} that its own OutputSchema forbids: "
        f"{_place(first)}{_sentence(first['msg'])}{_more(problems, count)}"
    )
    if isinstance(value, Mapping) and value and all(part is None for part in value.values()):
        message = f"{endpoint} returned None. Does its function end with `return`?"
    return ComponentError(
        message,
        code="bad_output",
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def _problems(
    error: ValidationError, value: Any, prefix: tuple[str, ...]
) -> tuple[list[dict[str, Any]], int]:
    listed = error.errors(include_url=False, include_input=False)
    shown = [
        {
            "type": entry["type"],
            "loc": [*prefix, *place],
            "path": loc_to_path(place),
            "msg": entry["msg"],
            "ctx": _plain_context(entry.get("ctx") or {}),
        }
        for entry in listed[:_SHOWN]
        for place in [_place_in_data(entry, value)]
    ]
    return shown, len(listed)


def _place_in_data(entry: ErrorDetails, value: Any) -> list[str | int]:
    """A location without the labels that pydantic puts in for members of unions: no keys of the data.

    What is not in the data is a label, unless it comes last: inside an object, or because it is missing.
    Without data (`None`) the location is taken as it is.
    """
    loc, is_missing = entry["loc"], entry["type"] == "missing"
    if value is None:
        return list(loc)
    place: list[str | int] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        if _has(value, part):
            value = value[part] if not isinstance(value, BaseModel) else getattr(value, str(part))
        elif not is_last or not (is_missing or isinstance(value, (Mapping, BaseModel))):
            continue
        place.append(part)
    return place


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    if isinstance(value, BaseModel):
        return part in type(value).model_fields
    return isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)


def _plain_context(context: dict[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, BaseException) else value
        for key, value in context.items()
    }


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


def _more(problems: list[dict[str, Any]], count: int) -> str:
    """That there are further problems; a name that is not a field is often the cause of the first."""
    if count == 1:
        return ""
    unknown = [f"{p['path']!r}" for p in problems[1:] if p["type"] == "extra_forbidden"]
    return f" (and {count - 1} more{': no such field as ' if unknown else ''}{', '.join(unknown)})"
