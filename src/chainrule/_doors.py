"""What the doors to other tools share: identifiers for paths, vectors of real numbers only, and examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from chainrule._errors import InputError

_NOT_WORD = re.compile(r"\W+")


def as_identifier(name: str) -> str:
    """A path, or the name of a variable elsewhere, as an identifier: `wings.[0].chord` → `wings_0_chord`.

    What is left may be empty, begin with a digit, or be the same for two names.
    """
    return _NOT_WORD.sub("_", name).strip("_")


def distinct_identifiers(paths: Sequence[str], tool: str) -> list[str]:
    """The same for several paths, for a tool that wants identifiers as names.

    Raises:
        InputError: two of them would have the same one (`bad_schema`).
    """
    names = [as_identifier(path) for path in paths]
    if len(set(names)) < len(names):
        raise InputError(
            f"Two of the paths {', '.join(paths)} have the same name in {tool}; rename a field.",
            code="bad_schema",
        )
    return names


class _Leaf(Protocol):
    """An array of a call, as `Document.leaves` gives it."""

    @property
    def path(self) -> str: ...

    @property
    def dtype(self) -> str: ...


LeafT = TypeVar("LeafT", bound=_Leaf)


def real_leaves(leaves: Iterable[LeafT], tool: str) -> tuple[LeafT, ...]:
    """The leaves, for a tool whose vectors have real numbers: others would lose their imaginary part.

    Raises:
        InputError: one of them is complex (`complex_leaf`).
    """
    leaves = tuple(leaves)
    for leaf in leaves:
        if leaf.dtype.startswith("complex"):
            raise InputError(
                f"{leaf.path} is {leaf.dtype}, and {tool} has real numbers only. Make its real and its "
                "imaginary part two fields, or do not mark it Differentiable.",
                code="complex_leaf",
                path=leaf.path,
            )
    return leaves


@contextmanager
def asking_for_example(component: Any, example: Any) -> Iterator[None]:
    """Say in the error of a component that refuses its inputs that it needs an example, where none was given.

    Raises:
        InputError: what the block raises, or the same with the argument that is missing.
    """
    try:
        yield
    except InputError as error:
        if example:
            raise
        field = (error.path or "x").removeprefix("inputs.")
        raise InputError(
            f"{component.name} has inputs without a default: pass an example of all of them, "
            f"example={{{field!r}: …}}. {error.message}",
            code=error.code,
            path=error.path,
        ) from error
