"""Matching an exception against the name that a test file gives.

Names are compared, nothing is imported: a test file must not be able to load code. An author's exception
may arrive wrapped, so everything in the chain of causes counts. From another process only its short name and
its message arrive, as details of the error that stands for it.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from typing import Any

from chainrule._errors import ChainruleError

__all__ = ["describe_chain", "exception_name", "matches_exception"]


def matches_exception(error: BaseException, name: str, regex: str | None) -> bool:
    """Whether an exception, or one that caused it, has this name (or a base of it) and message."""

    def says(text: str) -> bool:
        return regex is None or re.search(regex, text) is not None

    remote = _remote_facts(error)
    return any(_is_called(type(found), name) and says(str(found)) for found in _chain(error)) or (
        "exception" in remote
        and _was_called(remote["exception"], name)
        and says(remote.get("exception_message", ""))
    )


def exception_name(error: BaseException) -> str:
    """The name by which a test file expects an exception: that of the author's, if one was the cause."""
    remote = _remote_facts(error)
    if error.__cause__ is None and "exception" in remote:
        return remote["exception"]
    cls = type(error.__cause__ or error)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def describe_chain(error: BaseException) -> str:
    """`Type: message`, with causes."""
    return ", caused by ".join(f"{type(found).__name__}: {found}" for found in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _is_called(cls: type[BaseException], name: str) -> bool:
    module, _, short = name.rpartition(".")
    # A class is often known under a shorter module than the one it was defined in.
    exported = getattr(sys.modules.get(module or "builtins"), short, None)
    if isinstance(exported, type):
        return issubclass(cls, exported)
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in cls.__mro__)


def _remote_facts(error: BaseException) -> dict[str, Any]:
    return error.details if isinstance(error, ChainruleError) else {}


def _was_called(short_name: str, name: str) -> bool:
    """Whether a name without its module may be meant by a name; of builtins the bases are known too."""
    there, expected = getattr(builtins, short_name, None), getattr(builtins, name, None)
    if isinstance(there, type) and isinstance(expected, type):
        return issubclass(there, expected)
    return short_name == name.rpartition(".")[2]
