"""Names of a function's arguments, as a reader of its definition knows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax


def argument_names(fun: Callable[..., Any], count: int) -> list[str]:
    """A name for each of the first positional arguments."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # functions without a signature, such as some of C
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            break
        names.append(parameter.name)
    return (names + [f"argument {k}" for k in range(len(names), count)])[:count]


def leaf_names(fun: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> list[str]:
    """A name for every leaf of the arguments at these positions."""
    names = argument_names(fun, len(args))
    return [
        names[k] + jax.tree_util.keystr(path)
        for k in positions
        for path, _ in jax.tree_util.tree_leaves_with_path(args[k])
    ]
