"""What a test file need not say: fields of the outputs that have a default, and have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

__all__ = ["with_defaults"]


def with_defaults(component: Any, endpoint: str, expected: Any) -> Any:
    """Expected outputs with the defaults of the component's own schema, where that is in sight.

    Args:
        component: a component in this process, or a handle to one; others have no schema here.
        endpoint: only `apply` answers by the schema.
        expected: the outputs, arrays decoded.
    """
    schema = getattr(getattr(component, "local", component), "output_schema", None)
    if endpoint != "apply" or schema is None:
        return expected
    try:
        model = schema.model_validate(expected, context={"skip_path_checks": True})
    except ValidationError:
        return expected  # the comparison says what is wrong
    return _filled(expected, model)


def _filled(expected: Any, model: Any) -> Any:
    """What is expected as it was written, and what only the validated form of it has."""
    if isinstance(model, BaseModel) and isinstance(expected, Mapping):
        missing = set(type(model).model_fields) - set(expected)
        return model.model_dump(include=missing) | {
            name: _filled(value, getattr(model, name, None)) for name, value in expected.items()
        }
    if isinstance(model, Mapping) and isinstance(expected, Mapping):
        return {key: _filled(value, model.get(key)) for key, value in expected.items()}
    if isinstance(model, (list, tuple)) and len(model) == len(expected):
        return [_filled(*pair) for pair in zip(expected, model, strict=True)]
    return expected
