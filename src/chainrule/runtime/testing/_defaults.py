"""What a test file need not say: fields of the outputs that have a default, and have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from chainrule.runtime._component._document import resolve, root_of

_NO_DOCUMENT: Mapping[str, Any] = {"components": {"schemas": {}}}


def with_defaults(component: Any, endpoint: str, expected: Any) -> Any:
    """Expected outputs with the defaults of the component's schema.

    Args:
        component: a component in this process, or a handle to any. Of one that is elsewhere those defaults
            are known that its OpenAPI document states.
        endpoint: only `apply` answers by the schema.
        expected: the outputs, arrays decoded.
    """
    if endpoint != "apply":
        return expected
    schema = getattr(getattr(component, "local", None) or component, "output_schema", None)
    if schema is None:
        schemas = getattr(component, "openapi_schema", _NO_DOCUMENT)["components"]["schemas"]
        return _completed(expected, root_of(schemas, "Output"), schemas)
    try:
        model = schema.model_validate(expected, context={"skip_path_checks": True})
    except ValidationError:
        return expected  # the comparison says what is wrong
    return _filled(expected, model)


def _completed(expected: Any, node: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """What is expected as it was written, and what a node of a JSON schema says is there anyway."""
    node = _only_member(resolve(node, schemas), schemas)
    fields = node.get("properties", {})
    of_others = node.get("additionalProperties")
    others = of_others if isinstance(of_others, Mapping) else {}
    if isinstance(expected, Mapping):
        stated = {name: resolve(field, schemas) for name, field in fields.items()}
        missing = {
            name: field["default"]
            for name, field in stated.items()
            if name not in expected and "default" in field
        }
        return missing | {
            name: _completed(value, stated.get(name, others), schemas)
            for name, value in expected.items()
        }
    if isinstance(expected, list) and isinstance(node.get("items"), Mapping):
        return [_completed(value, node["items"], schemas) for value in expected]
    return expected


def _only_member(node: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one thing that an optional field may be besides null; a union of several says too little."""
    members = [m for m in node.get("anyOf", ()) if m.get("type") != "null"]
    return resolve(members[0], schemas) if len(members) == 1 else node


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
