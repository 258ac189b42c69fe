"""Matching an exception against the name that a test file gives.

Names are compared, nothing is imported: a test file must not be able to load code. An author's exception
may arrive wrapped, so everything in the chain of causes counts. From another process its message and the
names of its class and of its bases arrive, as details of the error that stands for it.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.runtime._component._failures import class_name
from chainrule.runtime._component._isolation import without_package


def matches_exception(error: BaseException, name: str, regex: str | None) -> bool:
    """Whether an exception, or one that caused it, has this name (or a base of it) and message."""

    name = without_package(name)  # as older recordings have it

    def says(text: str) -> bool:
        return regex is None or re.search(regex, text) is not None

    remote = _remote_facts(error)
    return any(_is_called(type(found), name) and says(str(found)) for found in _chain(error)) or (
        "exception" in remote
        and _was_called(remote, name)
        and says(remote.get("exception_message", ""))
    )


def exception_name(error: BaseException) -> str:
    """The name by which a test file expects an exception: that of the author's, if one was the cause."""
    remote = _remote_facts(error)
    if error.__cause__ is None and "exception" in remote:
        return _class_names(remote)[0].removeprefix("builtins.")
    return class_name(type(error.__cause__ or error)).removeprefix("builtins.")


def describe_chain(error: BaseException) -> str:
    """`Type: message`, with causes."""
    return ", caused by ".join(f"{type(found).__name__}: {found}" for found in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _is_called(cls: type[BaseException], name: str) -> bool:
    exported = _exported(name)
    if exported is not None:
        return issubclass(cls, exported)
    return any(class_name(base) == name for base in cls.__mro__)


def _exported(name: str) -> type | None:
    """The class of this process that a name means; often it was defined in a longer module."""
    module, _, short = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), short, None)
    return found if isinstance(found, type) else None


def _remote_facts(error: BaseException) -> dict[str, Any]:
    return error.details if isinstance(error, ChainruleError) else {}


def _was_called(remote: dict[str, Any], name: str) -> bool:
    """Whether an exception of another process, or a base of it, is meant by a name."""
    exported = _exported(name)
    names = _class_names(remote)
    if exported is not None and "." in names[0]:
        return class_name(exported) in names
    return any(_may_be(found, name) for found in names)


def _may_be(full_name: str, name: str) -> bool:
    """Whether a class may be known by a name: the whole one, or that of another module of its package."""
    package, _, _ = full_name.rpartition(".")
    same_package = not package or package.split(".")[0] == name.split(".")[0]
    return same_package and full_name.rpartition(".")[2] == name.rpartition(".")[2]


def _class_names(remote: dict[str, Any]) -> list[str]:
    """Full names of the class and its bases; of a server that does not tell them, the short name.

    That of a builtin is then taken for the builtin.
    """
    names = remote.get("exception_classes")
    if names:
        return list(names)
    builtin = getattr(builtins, remote["exception"], None)
    if not isinstance(builtin, type):
        return [remote["exception"]]
    return [class_name(base) for base in builtin.__mro__]
