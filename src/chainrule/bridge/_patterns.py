"""Which paths a schema declares as arrays, and how it spells them.

A tree alone does not say whether `a` in `params.a` is a field or a key; a schema does, by the pattern
`params.{}`, and endpoints then expect `params.{a}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from chainrule._paths import Key, join_path, split_path


class Patterns:
    """A set of path patterns with a value for each."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._declared = [(pattern.split("."), value) for pattern, value in declared.items()]
        self._known: dict[str, tuple[str, Any] | None] = {}

    def find(self, path: str) -> tuple[str, Any] | None:
        """The schema's spelling of a path and the value of its pattern; `None` if no pattern fits."""
        if path not in self._known:
            self._known[path] = self._search(path)
        return self._known[path]

    def __contains__(self, path: str) -> bool:
        return self.find(path) is not None

    def has_below(self, path: str, names: Collection[str | int]) -> bool:
        """Whether a pattern is one of these names below a path, or goes on from there."""
        segments = split_path(path)
        depth = len(segments)
        return any(
            len(parts) > depth
            and all(map(_fits, segments, parts))
            and any(_fits(name, parts[depth]) for name in names)
            for parts, _ in self._declared
        )

    def spell(self, path: str) -> str:
        """A path as the schema spells it."""
        found = self.find(path)
        return path if found is None else found[0]

    def _search(self, path: str) -> tuple[str, Any] | None:
        segments = split_path(path)
        for parts, value in self._declared:
            if len(parts) == len(segments) and all(map(_fits, segments, parts)):
                spelled = (
                    Key(s) if part == "{}" else s for s, part in zip(segments, parts, strict=True)
                )
                return join_path(*spelled), value
        return None


def _fits(segment: str | int, part: str) -> bool:
    if isinstance(segment, int):
        return part in ("[]", f"[{segment}]")
    return part in ("{}", segment)


def array_patterns_of_document(document: Mapping[str, Any], model: str) -> dict[str, None]:
    """The patterns of all arrays in one model of an OpenAPI document."""
    schemas = document["components"]["schemas"]
    if model not in schemas:
        return {}
    return dict.fromkeys(_walk(schemas[model], "", schemas, frozenset()))


def fields_of_document(document: Mapping[str, Any], model: str) -> Collection[str] | None:
    """The fields of one model of an OpenAPI document; `None` if it takes others, or does not say."""
    schema = document["components"]["schemas"].get(model, {})
    if schema.get("additionalProperties") is not False:
        return None
    return schema.get("properties", {}).keys()


def _walk(
    schema: Mapping[str, Any], prefix: str, schemas: Mapping[str, Any], parents: frozenset[str]
) -> Iterator[str]:
    reference = schema.get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        if name not in parents:  # a recursive model ends where it begins again
            yield from _walk(schemas[name], prefix, schemas, parents | {name})
        return
    properties = schema.get("properties", {})
    if properties.get("object_type", {}).get("const") == "array":
        yield prefix
        return
    for name, part in properties.items():
        yield from _walk(part, _join(prefix, name), schemas, parents)
    for number, part in enumerate(schema.get("prefixItems", ())):
        yield from _walk(part, _join(prefix, f"[{number}]"), schemas, parents)
    for key, segment in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), Mapping):
            yield from _walk(schema[key], _join(prefix, segment), schemas, parents)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _walk(part, prefix, schemas, parents)


def _join(prefix: str, segment: str) -> str:
    return f"{prefix}.{segment}" if prefix else segment
