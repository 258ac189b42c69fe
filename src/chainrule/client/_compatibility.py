"""Which changes of a component's interface break its callers.

Callers send inputs and read outputs, so the two sides are judged in opposite directions: an input may
become more permissive and an output more definite. Works on OpenAPI documents, ours or Tesseract's. What
breaks callers:

    inputs     a field is removed; a new field is required; a type accepts less
    outputs    a field is removed; a type promises less
    endpoints  one is removed
    arrays     one is no longer differentiable
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainrule._paths import add_segment
from chainrule.runtime.internal import Document

Json = Mapping[str, Any]
_SHOWN = 5


@dataclass(frozen=True)
class Change:
    """One difference: where, what, and whether it breaks callers of the old component."""

    where: str
    what: str
    breaks: bool


@dataclass(frozen=True)
class InterfaceField:
    """A node of a schema tree.

    Attributes:
        accepts: its type, in words.
        required: whether a caller has to give it.
        shape: of an array; `None` for a size that is open, and for any rank.
        dtype: name of the declared dtype of an array, such as `float64`; empty where it is not named.
        dtypes: names of the dtypes that an array may have; an input may have those that are cast.
        differentiable: whether an array is.
        is_array: whether it is an array.
    """

    accepts: str
    required: bool
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""
    dtypes: frozenset[str] = frozenset()
    differentiable: bool = False
    is_array: bool = False


def compare_interfaces(old: Json, new: Json) -> list[Change]:
    """Every change between two OpenAPI documents, breaking ones first."""
    changes = [
        *_endpoint_changes(Document(old).endpoints, Document(new).endpoints),
        *_side_changes("inputs", *(read_interface(each, "inputs") for each in (old, new))),
        *_side_changes("outputs", *(read_interface(each, "outputs") for each in (old, new))),
    ]
    return sorted(changes, key=lambda change: not change.breaks)


def shown_changes(changes: Sequence[Change]) -> str:
    """The first few of some changes, in one line."""
    more = "" if len(changes) <= _SHOWN else f"; and {len(changes) - _SHOWN} more"
    return "; ".join(f"{change.where}: {change.what}" for change in changes[:_SHOWN]) + more


def _endpoint_changes(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    """Changes of the component's endpoints; other endpoints of its server do not count."""
    for name in old:
        if name not in new:
            yield Change(f"/{name}", "the endpoint was removed", True)
    for name in new:
        if name not in old:
            yield Change(f"/{name}", "a new endpoint", False)


def _side_changes(
    side: str, old: Mapping[str, InterfaceField], new: Mapping[str, InterfaceField]
) -> Iterator[Change]:
    for path, field in old.items():
        where = f"{side}.{path}"
        if path not in new:
            yield Change(where, "the field was removed", True)
        else:
            yield from _field_changes(side, where, field, new[path])
    for path, field in new.items():
        if path not in old:
            breaks = side == "inputs" and field.required
            kind = "required" if breaks else "optional" if side == "inputs" else ""
            yield Change(f"{side}.{path}", f"a new {kind} field".replace("  ", " "), breaks)


def _field_changes(
    side: str, where: str, old: InterfaceField, new: InterfaceField
) -> Iterator[Change]:
    is_input = side == "inputs"
    if old.required != new.required:
        what = "is required now" if new.required else "is optional now"
        yield Change(where, what, new.required if is_input else old.required)
    if old.is_array and new.is_array:
        yield from _array_changes(is_input, where, old, new)
    elif old.accepts != new.accepts:
        yield Change(where, f"was {old.accepts}, is {new.accepts}", True)


def _array_changes(
    is_input: bool, where: str, old: InterfaceField, new: InterfaceField
) -> Iterator[Change]:
    if old.shape != new.shape:
        narrower, wider = (new, old) if is_input else (old, new)
        breaks = not _covers(narrower.shape, wider.shape)
        yield Change(where, f"was of shape {_shape(old)}, is of shape {_shape(new)}", breaks)
    if old.dtypes != new.dtypes:
        lost = old.dtypes - new.dtypes if is_input else new.dtypes - old.dtypes
        yield Change(where, f"was {old.accepts}, is {new.accepts}", bool(lost))
    if old.differentiable != new.differentiable:
        what = "is differentiable now" if new.differentiable else "is no longer differentiable"
        yield Change(where, what, old.differentiable)


def _covers(general: tuple[int | None, ...] | None, special: tuple[int | None, ...] | None) -> bool:
    """Whether every array of the special shape is one of the general shape."""
    if general is None:
        return True
    if special is None or len(general) != len(special):
        return False
    return all(g is None or g == s for g, s in zip(general, special, strict=True))


def _shape(field: InterfaceField) -> str:
    if field.shape is None:
        return "any rank"
    return f"[{', '.join('?' if size is None else str(size) for size in field.shape)}]"


def read_interface(document: Json, side: str) -> dict[str, InterfaceField]:
    """The fields of the inputs or the outputs of a component, by path."""
    definitions = document["components"]["schemas"]
    name = {"inputs": "Apply_InputSchema", "outputs": "Apply_OutputSchema"}[side]
    return dict(_walk(definitions[name], definitions, "", True, ()))


def _walk(
    schema: Json, definitions: Json, path: str, required: bool, open_names: tuple[str, ...]
) -> Iterator[tuple[str, InterfaceField]]:
    while "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in open_names:
            return
        open_names = (*open_names, name)
        schema = definitions[name]
    if "array_flags" in schema:
        yield path, _array_field(schema, required)
        return
    if path:
        yield path, InterfaceField(_describe(schema), required)
    needed = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        yield from _walk(child, definitions, add_segment(path, name), name in needed, open_names)
    for segment, child in _children(schema):
        yield from _walk(child, definitions, add_segment(path, segment), required, open_names)


def _children(schema: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(schema.get("items"), Mapping):
        yield "[]", schema["items"]
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield "{}", schema["additionalProperties"]
    for position, child in enumerate(schema.get("prefixItems", ())):
        yield f"[{position}]", child
    for position, child in enumerate((*schema.get("anyOf", ()), *schema.get("oneOf", ()))):
        yield f"|{position}", child


def _describe(schema: Json) -> str:
    kind = schema.get("type") or " or ".join(
        str(choice.get("type", choice.get("$ref", "").rpartition("/")[2] or "any"))
        for choice in schema.get("anyOf", ())
    )
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return f"{kind or 'any'}{'' if choices is None else f' among {choices}'}"


def _array_field(schema: Json, required: bool) -> InterfaceField:
    properties = schema["properties"]
    dtype = properties["dtype"]
    dtypes = frozenset(dtype.get("enum", [dtype.get("const")]))
    name = schema["title"].split("__")[2] if "title" in schema else ""
    return InterfaceField(
        f"an array of {name}" if name else "an array",
        required,
        _array_shape(properties["shape"]),
        name,
        dtypes,
        "DIFFERENTIABLE" in schema["array_flags"],
        True,
    )


def _array_shape(schema: Json) -> tuple[int | None, ...] | None:
    if "prefixItems" not in schema:
        return () if schema.get("maxItems") == 0 else None
    return tuple(
        size.get("const", max(size["enum"]) if "enum" in size else None)
        for size in schema["prefixItems"]
    )
