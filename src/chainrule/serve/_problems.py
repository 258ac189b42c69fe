"""Errors as `application/problem+json`, with the `detail` list that Tesseract clients read.

At most 20 problems and 16 kB, never the data, no traceback unless the operator debugs.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import orjson

from chainrule._errors import ChainruleError, ComponentError, DefinitionError
from chainrule._frames import users_traceback
from chainrule._paths import split_path
from chainrule.serve._calls import Reply

PROBLEM = "application/problem+json"

_MAX_BYTES = 16_000
_MAX_TEXT = 600
_FACTS = (
    "exception", "exception_message", "exception_classes", "count", "signal", "exit_code",
)  # fmt: skip
# The folders at the beginning of an absolute path; not those of a URL with a host, nor a fraction such as
# `m/s/s`. In quotes, names of folders may have spaces.
_FOLDERS = re.compile(
    r"""(?<=['"`])/[^'"`\n]*/"""
    r"""|(?:(?<![\w./…)-])|(?<=-[A-Za-z])|(?<=://)|(?<=:///))/(?:[^\s/'"`,;:()<>]+/)+"""
)
_STATUS = {
    "duplicate_key": 400,
    "bad_content_encoding": 400,
    "unsupported_media_type": 415,
    "unsupported_content_encoding": 415,
}


def status_of(error: ChainruleError) -> int:
    """The HTTP status of an error."""
    return _STATUS.get(error.code, error.http_status)


def problem_reply(error: ChainruleError, *, debug: bool = False) -> Reply:
    """The answer for an error."""
    try:
        return _problem_reply(error, debug)
    except Exception as reason:  # authors may raise these errors too, with anything in them
        plain = ComponentError(
            f"The component raised {type(error).__name__} with parts that cannot be sent "
            f"({type(reason).__name__})."
        )
        plain.__cause__ = error
        return _problem_reply(plain, debug)


def _problem_reply(error: ChainruleError, debug: bool) -> Reply:
    status = status_of(error)
    facts: dict[str, Any] = {"message": error.message, "detail": _detail(error, status)}
    facts |= {name: error.details[name] for name in _FACTS if name in error.details}
    content: dict[str, Any] = {
        "type": f"urn:chainrule:error:{error.code}",
        "status": status,
        "code": error.code,
        **{
            name: _clipped(fact if debug else _without_folders(fact))
            for name, fact in facts.items()
        },
    }
    if error.path:
        content["path"] = _clip(error.path)
    if debug:
        if not _says_it_all(error):
            text = "".join(traceback.format_exception(error))
            content["traceback"] = _sound(text[-8000:])
        if "stderr" in error.details:
            content["stderr"] = _clipped(error.details["stderr"])
    retry_after_s = getattr(error, "retry_after_s", None)
    return Reply(status, PROBLEM, [_dump(content)], retry_after_s)


def _says_it_all(error: ChainruleError) -> bool:
    """Whether no line of the author's led to an error, as for a missing file: its message is enough."""
    is_first = error.__cause__ is None and error.__context__ is None
    return isinstance(error, DefinitionError) and is_first and users_traceback(error) is None


def _detail(error: ChainruleError, status: int) -> Any:
    if status == 406:
        return {"message": error.message, **error.details}
    if status not in (400, 413, 415, 422):
        return error.message
    problems = error.details.get("problems") or [
        {"type": error.code, "loc": _location(error.path), "msg": error.message}
    ]
    return [_problem(problem) for problem in problems]


def _problem(problem: dict[str, Any]) -> dict[str, Any]:
    loc = [_clip(part) if isinstance(part, str) else part for part in problem["loc"]]
    if loc[:1] != ["body"]:
        loc = ["body", *loc]
    kept: dict[str, Any] = {"type": problem["type"], "loc": loc, "msg": problem["msg"]}
    context = orjson.dumps(problem.get("ctx") or {}, default=str, option=orjson.OPT_NON_STR_KEYS)
    if len(context) < _MAX_TEXT:
        kept["ctx"] = orjson.loads(context)
    return kept


def _location(path: str | None) -> list[str | int]:
    return [str(s) if isinstance(s, str) else s for s in split_path(path)] if path else []


def _clip(text: str) -> str:
    return _sound(text) if len(text) <= _MAX_TEXT else f"{_sound(text[:_MAX_TEXT])}…"


def _sound(text: str) -> str:
    """Text that JSON can carry: names of files may have halves of surrogate pairs."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _clipped(value: Any) -> Any:
    return _in_texts(_clip, value)


def _without_folders(value: Any) -> Any:
    """The same without folders of this machine, which callers must not learn; names of files stay.

    What the author's code raises often names a file with its whole path, also where the author has not
    written a word of the message.
    """
    return _in_texts(lambda text: _FOLDERS.sub("…/", text), value)


def _in_texts(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, dict):
        return {
            # A location is a path into the caller's data.
            key: item if key in ("loc", "type") else _in_texts(change, item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_in_texts(change, item) for item in value]
    return change(value) if isinstance(value, str) else value


def _dump(content: dict[str, Any]) -> bytes:
    """The problem as JSON; of a long one the traceback goes first, then the end of the list."""
    while True:
        body = orjson.dumps(content, default=str)
        if len(body) <= _MAX_BYTES:
            return body
        if len(content.get("traceback", "")) > _MAX_TEXT:
            content["traceback"] = content["traceback"][-(len(content["traceback"]) // 2) :]
        elif isinstance(content["detail"], list) and len(content["detail"]) > 1:
            content["detail"] = content["detail"][: len(content["detail"]) // 2]
        else:
            return body
