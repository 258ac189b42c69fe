"""`sow` and `save_intermediates` with exactly the ancestor's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from chainrule import harvest

T = TypeVar("T")


def sow(value: T, name: str, *, tag: str = "intermediates") -> T:
    """Mark a value, a pytree, under a name; the identity."""
    return harvest.sow(value, name, tag=tag)


def save_intermediates(
    fn: Callable[..., Any], *, tag: str = "intermediates"
) -> Callable[..., tuple[Any, dict[str, dict[str, Any]]]]:
    """A function that returns `(result, {name: {"primal": …, "cotangent": …}})`.

    Args:
        fn: any function that JAX can trace; `jax.grad(f)` for cotangents.
        tag: only values marked with this tag are returned.
    """
    return harvest.save_intermediates(fn, tag=tag)
