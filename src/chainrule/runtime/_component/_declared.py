"""Schemas as data, for components that are not written in Python.

x: differentiable float64[n, 3]       an array; a size is a number, a name or `?`; `float64` is a scalar
mode: str                             str, int, float, bool
label: str?                           may be null
steps: {type: int, default: 10, description: "time steps"}
speed: {type: "float64[3]", units: m/s}
mesh: {points: "float64[n, 3]", cells: "int64[m, 4]"}       a nested object
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model

from chainrule._errors import DefinitionError
from chainrule.runtime._schema import array_type
from chainrule.runtime._schema._spec import make_spec

_SCALARS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
_TYPE = re.compile(
    r"(?P<differentiable>differentiable\s+)?(?P<name>[a-z]+\d*)\s*"
    r"(?P<shape>\[[^\]]*\])?\s*(?P<optional>\?)?"
)
_OPTIONS = frozenset(("type", "default", "description", "units"))


def declared_model(name: str, declaration: Any) -> type[BaseModel]:
    """The model of a declaration, or the model itself.

    Args:
        name: of the model.
        declaration: a mapping as this module describes, or a pydantic model.

    Raises:
        DefinitionError: the declaration cannot be read (`bad_schema`); the path says where.
    """
    if isinstance(declaration, type) and issubclass(declaration, BaseModel):
        return declaration
    return _model(name, declaration, name)


def _model(name: str, declaration: Any, where: str) -> type[BaseModel]:
    if not isinstance(declaration, Mapping) or not declaration:
        raise _bad(where, "expected a mapping of field names to types")
    fields: dict[str, Any] = {
        field: _field(field, value, f"{where}.{field}") for field, value in declaration.items()
    }
    return create_model(name, **fields)


def _field(name: str, value: Any, where: str) -> Any:
    if not isinstance(name, str) or not name.isidentifier():
        raise _bad(where, "a field name has to be an identifier")
    if isinstance(value, str):
        return _with_default(_type(value, None, where), {})
    if isinstance(value, Mapping) and "type" in value:
        unknown = sorted(set(value) - _OPTIONS)
        if unknown:
            raise _bad(where, f"unknown option {unknown[0]!r}; there are {sorted(_OPTIONS)}")
        return _with_default(_type(value["type"], value.get("units"), where), value)
    if isinstance(value, Mapping):
        return (_model(name.capitalize(), value, where), ...)
    raise _bad(where, f"expected a type such as 'float64[3]'; found {type(value).__name__}")


def _with_default(annotation: Any, options: Mapping[str, Any]) -> Any:
    required = None if _is_optional(annotation) else ...
    return annotation, Field(
        options.get("default", required), description=options.get("description")
    )


def _is_optional(annotation: Any) -> bool:
    return type(None) in getattr(annotation, "__args__", ())


def _type(text: Any, units: Any, where: str) -> Any:
    match = _TYPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _bad(
            where, f"cannot read the type {text!r}; write for example 'float64[n, 3]' or 'str'"
        )
    annotation: Any = _SCALARS.get(match["name"])
    if annotation is None or match["shape"]:
        shape = _shape(match["shape"] or "[]", where)
        spec = make_spec(shape, match["name"], units)
        annotation = array_type(spec.with_differentiable() if match["differentiable"] else spec)
    return annotation | None if match["optional"] else annotation


def _shape(text: str, where: str) -> Any:
    inside = text[1:-1].strip()
    if inside == "...":
        return ...
    return tuple(_size(part.strip(), where) for part in inside.split(",") if part.strip())


def _size(text: str, where: str) -> int | str | None:
    if text.isdigit():
        return int(text)
    if text == "?" or text.isidentifier():
        return None if text == "?" else text
    raise _bad(where, f"cannot read the size {text!r}; use a number, a name or '?'")


def _bad(where: str, reason: str) -> DefinitionError:
    return DefinitionError(f"{where}: {reason}.", code="bad_schema", path=where)
