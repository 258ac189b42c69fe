"""Arrays as what they look like, for abstract evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from chainrule._trees import is_arraylike

__all__ = ["to_abstract"]


def to_abstract(tree: Any) -> Any:
    """The tree with `{"shape": …, "dtype": …}` in place of everything that has a shape and a dtype."""
    if is_arraylike(tree):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, BaseModel):
        return to_abstract(dict(tree))
    if isinstance(tree, Mapping):
        return {key: to_abstract(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [to_abstract(item) for item in tree]
    return tree
