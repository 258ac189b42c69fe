"""What an OpenAPI document says about a component, for programs, the terminal and notebooks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from chainrule._codec import decode_tree
from chainrule._device import own_copy
from chainrule._endpoints import DERIVATIVE_ENDPOINTS, ENDPOINTS, Side
from chainrule._markdown import markdown
from chainrule._paths import add_segment, join_path, path_to_pattern, split_path
from chainrule._tables import html_table
from chainrule._trees import expand_pattern, get_at_path
from chainrule.runtime._component._definition import Capability, Cost
from chainrule.runtime._schema import ArraySpec, Bounds

if TYPE_CHECKING:
    from pydantic import BaseModel

SIDES: tuple[Side, Side] = ("inputs", "outputs")
_SCHEMAS: Mapping[Side, str] = {"inputs": "InputSchema", "outputs": "OutputSchema"}
_MAX_DEPTH = 8
_MAX_FIELDS = 12
_MAX_SIGNATURE = 6
_MAX_DEFAULT = 40


@dataclass(frozen=True)
class Field:
    """One leaf of a schema.

    Attributes:
        path: its path pattern.
        type: an array like `f64[n,3]`, or the JSON type.
        is_differentiable: whether derivatives may be asked for.
        is_required: whether the caller has to give it.
        description: what the author says about it.
        default: what it is when it is not given, as JSON.
        units: of an array.
        bounds: of a number, or of every element of an array.
        is_array: whether it is an array.
    """

    path: str
    type: str
    is_differentiable: bool = False
    is_required: bool = True
    description: str = ""
    default: Any = None
    units: str | None = None
    bounds: Bounds | None = None
    is_array: bool = False

    @staticmethod
    def table(fields: Sequence[Field], *, is_styled: bool = True) -> str:
        """Fields of a schema as a table in HTML; `is_styled` as in `html_table`."""
        names = ("path", "type", "∂", "default", "description")
        return html_table(map(_cells, fields), head=names, is_styled=is_styled)


@dataclass(frozen=True)
class Leaf:
    """One differentiable array of a call, as flat protocols and optimisers see it.

    Attributes:
        path: where it is in the tree.
        shape: its shape in this call; elements are counted in C order.
        dtype: name of its dtype.
        units: that it has.
        bounds: that every element keeps.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    units: str | None = None
    bounds: Bounds | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def lower(self) -> float:
        """The smallest value of an element that its bounds allow, in its dtype."""
        return -math.inf if self.bounds is None else self.bounds.smallest(self.dtype)

    @property
    def upper(self) -> float:
        """The largest value of an element that its bounds allow, in its dtype."""
        return math.inf if self.bounds is None else self.bounds.largest(self.dtype)


class Document:
    """What the OpenAPI document of a component says.

    Args:
        content: the document.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self._schemas: Mapping[str, Any] = content.get("components", {}).get("schemas", {})
        self._specs: dict[Side, dict[str, ArraySpec]] = {}

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> Document:
        """A document with nothing but the fields of one model, as the inputs."""
        # Imported here: a document that is read needs nothing that makes schemas.
        from chainrule.runtime._schema._json_schema import ArrayJsonSchema

        described = model.model_json_schema(schema_generator=ArrayJsonSchema)
        schemas = {**described.get("$defs", {}), "Apply_InputSchema": described}
        return cls({"components": {"schemas": schemas}})

    @staticmethod
    def resolve(node: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
        """A node of a schema without the `$ref` it may be; what stands beside that wins."""
        for _ in range(_MAX_DEPTH):
            if "$ref" not in node:
                break
            beside = {key: value for key, value in node.items() if key != "$ref"}
            node = {**schemas.get(node["$ref"].rsplit("/", 1)[-1], {}), **beside}
        return node

    @staticmethod
    def full_name(name: str, version: str) -> str:
        """A component's name, and its version where the author gave one."""
        return name if version == "unknown" else f"{name} {version}"

    @property
    def title(self) -> str:
        """The full name of the component."""
        info = self._content["info"]
        return self.full_name(info["title"], info["version"])

    @property
    def endpoints(self) -> list[str]:
        """The endpoints that are served, in the document's order; pages and probes are left out."""
        known = {*ENDPOINTS, "health"}
        return [name for path in self._content["paths"] if (name := path.strip("/")) in known]

    @property
    def capabilities(self) -> dict[str, Capability]:
        """How each endpoint is available; where this is not stated, what is served counts as native."""
        stated, served = self._content.get("x-capabilities", {}), self.endpoints

        def capability(name: str) -> Capability:
            if name not in stated:
                return Capability("native" if name in served else "absent")
            facts = stated[name]
            cost = Cost(**facts.get("cost", {}))
            return Capability(
                facts["status"], facts.get("via"), facts.get("batches", False), cost,
                facts.get("residuals", False), on_device=facts.get("on_device", False),
            )  # fmt: skip

        return {name: capability(name) for name in ENDPOINTS}

    def differentiable(self, side: Side) -> dict[str, ArraySpec]:
        """Path pattern → declaration of every differentiable array of one side."""
        declared = self._schemas[f"Apply{_SCHEMAS[side]}"].get("differentiable_arrays", {})
        return {
            pattern: ArraySpec(
                tuple(entry["shape"]) if "shape" in entry else None,
                entry.get("dtype"),
                True,
                dimension_names=tuple(entry.get("dims", ())),
                units=entry.get("units"),
                bounds=Bounds.from_json_schema(entry),
            )
            for pattern, entry in declared.items()
        }

    def fields(self, side: Side) -> list[Field]:
        """The leaves of one side's schema, for people."""
        return list(_walk(root_of(self._schemas, side), "", True, self._schemas, 0))

    def units(self, side: Side) -> dict[str, str]:
        """Path pattern → units of the arrays of one side that have some."""
        return {field.path: field.units for field in self.fields(side) if field.units}

    def with_defaults(self, side: Side, tree: Any) -> Any:
        """A tree of one side, and what the document says is there where the tree leaves it out."""
        return _completed(root_of(self._schemas, side), tree, self._schemas)

    def leaves(self, side: Side, tree: Any) -> tuple[Leaf, ...]:
        """The differentiable arrays of a tree in the order of the schema: the flattening rule of all doors.

        Fields come as they are declared, items of lists by their index, entries of dictionaries by their
        key. Each leaf is flattened in C order; a scalar has one element.

        Args:
            side: whose schema the tree has.
            tree: inputs or outputs as mappings and lists; arrays, lists of numbers, or
                `{"shape": …, "dtype": …}` as `abstract_eval` gives.
        """
        found = []
        for pattern, spec in self._complete_specs(side).items():
            for path in expand_pattern(pattern, tree):
                shape, dtype = _shape_and_dtype(get_at_path(tree, path))
                leaf = Leaf(path, shape, spec.dtype or str(dtype), spec.units, spec.bounds)
                found.append(leaf)
        return tuple(sorted(found, key=lambda leaf: self._place(side, leaf.path)))

    def _complete_specs(self, side: Side) -> dict[str, ArraySpec]:
        """Differentiable patterns with units and bounds, also where only the fields say them."""
        if side not in self._specs:
            fields = {field.path: field for field in self.fields(side)}
            self._specs[side] = {
                pattern: replace(
                    spec,
                    units=spec.units or (fields[pattern].units if pattern in fields else None),
                    bounds=spec.bounds or (fields[pattern].bounds if pattern in fields else None),
                )
                for pattern, spec in self.differentiable(side).items()
            }
        return self._specs[side]

    def _place(self, side: Side, path: str) -> tuple[tuple[int, str], ...]:
        """Where a path is in the order of the schema; JSON objects are sorted, so the document says it."""
        order = self._schemas[f"Apply{_SCHEMAS[side]}"].get("field_order", {})
        place: list[tuple[int, str]] = []
        segments = split_path(path)
        for depth, segment in enumerate(segments):
            above = path_to_pattern(join_path(*segments[:depth]))
            declared = order.get(above, ())
            if isinstance(segment, int):
                place.append((segment, ""))
            else:
                place.append((declared.index(segment) if segment in declared else 0, str(segment)))
        return tuple(place)

    def signature(self) -> str:
        """Name, inputs → outputs and derivatives, in one line."""
        inputs, outputs = (
            ", ".join(
                f"{field.path}: {field.type}{' ∂' if field.is_differentiable else ''}"
                for field in self.fields(side)[:_MAX_SIGNATURE]
            )
            + (", …" if len(self.fields(side)) > _MAX_SIGNATURE else "")
            for side in SIDES
        )
        present = {
            name: self.capabilities[name].status
            for name in DERIVATIVE_ENDPOINTS
            if self.capabilities[name].status != "absent"
        }
        own = [name for name, status in present.items() if status == "native"]
        derived = [name for name, status in present.items() if status != "native"]
        said = [
            *([", ".join(own)] if own else []),
            *([f"derived {', '.join(derived)}"] if derived else []),
        ]
        return (
            f"<component {self.title}({inputs}) → {outputs}; {'; '.join(said) or 'no derivatives'}>"
        )

    def summary(self, place: str) -> str:
        """Name, version, place, schema, and what is differentiable and how; about a screenful."""
        lines = [f"Component {self.title} ({place})"]
        for side in SIDES:
            fields = self.fields(side)
            width = max((len(field.path) for field in fields), default=0)
            for index, field in enumerate(fields[:_MAX_FIELDS]):
                heading = side if index == 0 else ""
                lines.append(f"  {heading:<10}{field.path:<{width}}  {_describe(field)}")
            if len(fields) > _MAX_FIELDS:
                lines.append(f"  {'':<10}… and {len(fields) - _MAX_FIELDS} more")
        lines.append(f"  {'endpoints':<10}{self._available()}")
        return "\n".join(lines)

    def summary_html(self, place: str) -> str:
        """The same for a notebook."""
        tables = "".join(
            f"<details open><summary>{side}</summary>{Field.table(self.fields(side))}</details>"
            for side in SIDES
        )
        return (
            f"<div><strong>{escape(self.title)}</strong> <small>{escape(place)}</small><br>"
            f"{markdown(self._content['info'].get('description', ''))}{tables}"
            f"<small>{escape(self._available())}</small></div>"
        )

    def _available(self) -> str:
        present = {n: c for n, c in self.capabilities.items() if c.status != "absent"}
        return ", ".join(f"{name} {capability}" for name, capability in present.items())


def root_of(schemas: Mapping[str, Any], side: Side) -> Mapping[str, Any]:
    """The schema of one side, among those of a document."""
    root = schemas.get(f"Apply_{_SCHEMAS[side]}")
    if root is None:  # the peer names the model after the author's class
        root = schemas.get(f"Apply{_SCHEMAS[side]}", {})
        root = root.get("properties", {}).get("inputs", root)
    return root


def complete_inputs(component: Any, inputs: Mapping[str, Any]) -> Any:
    """Inputs of a component, in this process or behind a handle, as a plain tree with all its defaults.

    Raises:
        InputError: the component is in this process and refuses them.
    """
    local = getattr(component, "local", None) or component
    if hasattr(local, "read_inputs"):
        return local.read_inputs({"inputs": inputs})
    return Document(component.openapi_schema).with_defaults("inputs", own_copy(inputs))


def _completed(node: Mapping[str, Any], tree: Any, schemas: Mapping[str, Any]) -> Any:
    node = _only_member(Document.resolve(node, schemas), schemas)
    if isinstance(tree, (list, tuple)) and isinstance(node.get("items"), Mapping):
        return [_completed(node["items"], each, schemas) for each in tree]
    if not isinstance(tree, Mapping) or "array_flags" in node:
        return tree
    fields = {
        name: Document.resolve(field, schemas) for name, field in node.get("properties", {}).items()
    }
    of_others = node.get("additionalProperties")
    others = of_others if isinstance(of_others, Mapping) else {}
    missing = {
        name: _completed(field, decode_tree(field.get("default", {})), schemas)
        for name, field in fields.items()
        if name not in tree and ("default" in field or _is_made(name, node, field))
    }
    given = {
        name: _completed(fields.get(name, others), value, schemas) for name, value in tree.items()
    }
    return missing | given


def _is_made(name: str, node: Mapping[str, Any], field: Mapping[str, Any]) -> bool:
    """Whether the author's schema makes a model of defaults where a field is left out."""
    is_model = "properties" in field and "array_flags" not in field
    return is_model and name not in node.get("required", ())


def _only_member(node: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one thing that an optional field may be besides null; a union of several says too little."""
    members = [m for m in node.get("anyOf", ()) if m.get("type") != "null"]
    return Document.resolve(members[0], schemas) if len(members) == 1 else node


def _walk(
    node: Mapping[str, Any], path: str, required: bool, schemas: Mapping[str, Any], depth: int
) -> Iterator[Field]:
    node = Document.resolve(node, schemas)
    said = {
        "description": node.get("description", ""),
        "default": node.get("default"),
        "bounds": Bounds.from_json_schema(node),
    }
    if depth > _MAX_DEPTH:
        yield Field(path, "…", is_required=required)
    elif "array_flags" in node:
        is_differentiable = "DIFFERENTIABLE" in node["array_flags"]
        units = node.get("array_units")
        described = _array_type(node)
        yield Field(
            path, described, is_differentiable, required, units=units, is_array=True, **said
        )
    elif node.get("properties"):
        needed = node.get("required", ())
        for name, child in node["properties"].items():
            inner = required and name in needed
            yield from _walk(child, add_segment(path, name), inner, schemas, depth + 1)
    elif "prefixItems" in node:
        for index, child in enumerate(node["prefixItems"]):
            yield from _walk(child, add_segment(path, f"[{index}]"), required, schemas, depth + 1)
    elif isinstance(node.get("items"), Mapping):
        yield from _walk(node["items"], add_segment(path, "[]"), required, schemas, depth + 1)
    elif isinstance(node.get("additionalProperties"), Mapping):
        child = node["additionalProperties"]
        yield from _walk(child, add_segment(path, "{}"), required, schemas, depth + 1)
    else:
        yield from _walk_union(node, path, required, schemas, depth)


def _walk_union(
    node: Mapping[str, Any], path: str, required: bool, schemas: Mapping[str, Any], depth: int
) -> Iterator[Field]:
    members = [m for m in node.get("anyOf", node.get("oneOf", ())) if m.get("type") != "null"]
    said = {key: node[key] for key in ("description", "default") if key in node}
    if not members:
        bounds = Bounds.from_json_schema(node)
        yield Field(path, _plain_type(node), is_required=required, bounds=bounds, **said)
    for member in members:
        yield from _walk(
            {**Document.resolve(member, schemas), **said}, path, required, schemas, depth + 1
        )


def _shape_and_dtype(value: Any) -> tuple[tuple[int, ...], Any]:
    # Imported here: a call does not load what derivatives need.
    from chainrule.runtime._derivatives._layout import is_abstract, shape_and_dtype

    if is_abstract(value):
        return shape_and_dtype(value)
    array = np.asarray(value)
    return array.shape, array.dtype


def _plain_type(node: Mapping[str, Any]) -> str:
    choices = node.get("enum", [node["const"]] if "const" in node else [])
    return " | ".join(map(repr, choices)) or str(node.get("type", "any"))


def _array_type(node: Mapping[str, Any]) -> str:
    """`f64[n,3] m/s`, read from the title, which states shape and dtype in every version of the peer."""
    _, shape_text, dtype, _ = (*node.get("title", "").split("__"), "", "", "", "")[:4]
    shape: tuple[int | None, ...] | None
    if shape_text == "anyrank":
        shape = None
    elif shape_text in ("scalar", ""):
        shape = ()
    else:
        shape = tuple(None if size == "any" else int(size) for size in shape_text.split("_"))
    names = tuple(node.get("array_dims", ()))
    return str(
        ArraySpec(
            shape,
            None if dtype in ("None", "") else dtype,
            dimension_names=names,
            units=node.get("array_units"),
        )
    )


def _cells(field: Field) -> tuple[str, ...]:
    default = "" if field.default is None else json.dumps(field.default)
    shown = default if len(default) <= _MAX_DEFAULT else f"{default[:_MAX_DEFAULT]}…"
    mark = "∂" if field.is_differentiable else ""
    return field.path, field.type, mark, shown, markdown(field.description)


def _describe(field: Field) -> str:
    marks = [
        *(["differentiable"] if field.is_differentiable else []),
        *([] if field.is_required else ["optional"]),
        *([] if field.bounds is None else [str(field.bounds)]),
    ]
    return " ".join([field.type, *(f"({mark})" for mark in marks)])
