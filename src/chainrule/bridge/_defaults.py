"""Arrays that the caller left out: their shapes are known from the schema, their values from its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chainrule.bridge._types import ArrayType
from chainrule.runtime.internal import to_plain, unwrap


def with_defaults(completed: Any, given: Any, model: Any) -> Any:
    """Completed inputs, with the author's defaults as arrays where the caller gave nothing.

    Args:
        completed: what the schema makes of the inputs, arrays as types.
        given: the inputs as they came.
        model: the author's model of them. Below lists, dicts and unions nobody looks for defaults: types
            that stay say so.
    """
    fields = getattr(unwrap(model), "model_fields", None)
    if not isinstance(completed, Mapping) or not isinstance(given, Mapping) or not fields:
        return completed
    filled = {}
    for name, value in completed.items():
        if name not in fields:
            filled[name] = value
        elif name in given:
            filled[name] = with_defaults(value, given[name], fields[name].annotation)
        else:
            default = fields[name].get_default(call_default_factory=True)
            filled[name] = _as_arrays(value, to_plain(default))
    return filled


def _as_arrays(completed: Any, default: Any) -> Any:
    if isinstance(completed, ArrayType):
        return np.broadcast_to(np.asarray(default, completed.dtype), completed.shape)
    if isinstance(completed, Mapping) and isinstance(default, Mapping):
        return {name: _as_arrays(value, default.get(name)) for name, value in completed.items()}
    if isinstance(completed, list) and isinstance(default, (list, tuple)):
        return [_as_arrays(*pair) for pair in zip(completed, default, strict=True)]
    return completed
