"""Between gradients by path, as Chainrule has them, and trees of parameters, as the ancestor does."""

from __future__ import annotations

import copy
from typing import Any

from chainrule.stateful import BaseParam, StaticParam
from chainrule.stateful.internal import params_of, replicate


def gradient_tree(tree: Any, gradients: Any) -> Any:
    """A copy of a tree whose parameters hold gradients; `None` where there is none.

    Args:
        tree: what was differentiated.
        gradients: `{path: gradient}`; for a bare parameter its gradient; `None` for no gradient at all.
    """
    if isinstance(tree, BaseParam):
        return None if gradients is None else copy.copy(tree).set(gradients)
    found = gradients or {}

    def replace(path: str, param: BaseParam) -> Any:
        if isinstance(param, StaticParam):
            return param
        gradient = found.get(path)
        return None if gradient is None else copy.copy(param).set(gradient)

    return replicate(tree, replace)


def by_path(tree: Any) -> dict[str, Any]:
    """The inverse: `{path: value}` of every parameter in a tree that holds something."""
    return {path: param.get() for path, param in params_of(tree).items() if param.get() is not None}
