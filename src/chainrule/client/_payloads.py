"""From the arguments of an endpoint's method to the request that is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from chainrule._trees import is_arraylike
from chainrule.runtime._derivatives._kinds import DERIVATIVES

__all__ = ["make_payload"]

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "apply": ("inputs",),
    "abstract_eval": ("abstract_inputs",),
    **{kind.endpoint: kind.argument_names for kind in DERIVATIVES},
}
_PATH_ARGUMENTS = {
    name for kind in DERIVATIVES for name in (kind.inputs_argument, kind.outputs_argument)
}


def make_payload(endpoint: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The request of an endpoint.

    Raises:
        TypeError: not the arguments of this endpoint.
    """
    names = _ARGUMENTS[endpoint]
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) + len(kwargs) != len(names) or given.keys() != set(names):
        raise TypeError(f"{endpoint} takes {', '.join(names)}; found {len(args)} and {[*kwargs]}")
    if endpoint == "abstract_eval":
        return {"inputs": _to_abstract(given["abstract_inputs"])}
    for name in _PATH_ARGUMENTS & given.keys():
        if not isinstance(given[name], str):  # which the component refuses with a better message
            given[name] = list(given[name])
    return given


def _to_abstract(tree: Any) -> Any:
    """The tree with `{"shape": …, "dtype": …}` in place of everything that has a shape and a dtype."""
    if is_arraylike(tree):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, BaseModel):
        return _to_abstract(dict(tree))
    if isinstance(tree, Mapping):
        return {key: _to_abstract(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_to_abstract(item) for item in tree]
    return tree
