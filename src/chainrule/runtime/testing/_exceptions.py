"""Matching an exception against the name that a test file gives.

Names are compared, nothing is imported: a test file must not be able to load code. An author's exception
may arrive wrapped, so everything in the chain of causes counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

__all__ = ["describe_chain", "matches_exception"]


def matches_exception(error: BaseException, name: str, regex: str | None) -> bool:
    """Whether an exception, or one that caused it, has this name (or a base of it) and message."""
    return any(
        _is_called(type(found), name) and (regex is None or re.search(regex, str(found)))
        for found in _chain(error)
    )


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
