"""The OpenAPI document of a component, in the form that Tesseract clients read.

Models come from pydantic; the requests and responses around them are the same for every component and are
written out here. Beyond the peer, `info` has the content hash and `x-capabilities` says of every endpoint
whether it is native or derived and from what; `x-framework`, what the author's code is written in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, RootModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import models_json_schema

from chainrule._endpoints import (
    BATCHED,
    COTANGENT,
    DERIVATIVES,
    ENDPOINTS,
    TANGENT,
    DerivativeKind,
    Side,
)
from chainrule._errors import DefinitionError
from chainrule._paths import add_segment, pattern_to_regex
from chainrule.runtime._component._schemas import Schemas
from chainrule.runtime._schema import Array, ArraySpec
from chainrule.runtime._schema._json_schema import ArrayJsonSchema
from chainrule.runtime._schema._leaves import is_model_class, parts_of, unwrap

if TYPE_CHECKING:
    from chainrule.runtime._component._local import LocalComponent

Json = dict[str, Any]
_REFERENCE = "#/components/schemas/{model}"


class AnyArray(RootModel[Array[..., None]]):  # type: ignore[type-arg, misc]
    """An array of any shape and dtype: entries of vectors and blocks of derivatives."""


def openapi_document(component: LocalComponent, schemas: Schemas) -> Json:
    """The document of a component.

    Raises:
        DefinitionError: a field has no description in JSON schema (`bad_schema`).
    """
    endpoints = component.available_endpoints
    return {
        "openapi": "3.1.0",
        "info": {
            "title": component.name,
            "version": component.version,
            "description": component.description,
            "x-content-hash": component.content_hash,
        },
        "x-supported-output-formats": ["json", "json+base64", "json+binref"],
        "x-supported-gpu-transports": ["none", *(["cuda_ipc"] if component.place else [])],
        "x-supported-compressions": ["none", "lz4"],
        "x-capabilities": {
            name: asdict(capability) for name, capability in component.capabilities.items()
        },
        "x-batching": component.batching,
        **({"x-framework": component.framework} if component.framework else {}),
        **({"x-device": component.device} if component.place is not None else {}),
        **({"x-cheap": True} if component.cheap else {}),
        **({"x-prices": dict(component.prices)} if component.prices else {}),
        **({"x-sparsity": component.sparsity} if component.sparsity else {}),
        "paths": {f"/{name}": _path(name) for name in _ordered(endpoints)},
        "components": {"schemas": _schemas(schemas, endpoints)},
    }


def _ordered(endpoints: Iterable[str]) -> list[str]:
    """The peer lists `health` before `abstract_eval`."""
    return sorted(endpoints, key=lambda name: (name == "abstract_eval", name == "health"))


def _schemas(schemas: Schemas, endpoints: Iterable[str]) -> Json:
    has_abstract = "abstract_eval" in endpoints
    models: list[type[BaseModel]] = [schemas.inputs, schemas.outputs, AnyArray]
    if has_abstract:
        models += [schemas.abstract_inputs, schemas.abstract_outputs]
    components = _model_schemas(models)
    components |= _apply_wrappers(schemas)
    for kind in DERIVATIVES:
        if kind.endpoint in endpoints:
            components |= _derivative_wrappers(kind, schemas)
    if has_abstract:
        components |= _abstract_wrappers()
    if "tagged_intermediates" in endpoints:
        components |= _tagged_wrappers(schemas, has_abstract)
    return components | _error_schemas()


def _model_schemas(models: list[type[BaseModel]]) -> Json:
    try:
        _, document = models_json_schema(
            [(model, "validation") for model in models],
            ref_template=_REFERENCE,
            schema_generator=ArrayJsonSchema,
        )
    except PydanticInvalidForJsonSchema as error:
        raise DefinitionError(
            f"A field of the schemas cannot be described to callers: {error.message}. Use arrays, "
            "models, numbers, text, lists and dicts.",
            code="bad_schema",
        ) from error
    return dict(document.get("$defs", {}))


def _apply_wrappers(schemas: Schemas) -> Json:
    return {
        "ApplyInputSchema": {
            **_request("ApplyInputSchema", {"inputs": _reference("Apply_InputSchema")}),
            **_array_facts(schemas, "inputs"),
        },
        "ApplyOutputSchema": {
            **_reference("Apply_OutputSchema"),
            "title": "ApplyOutputSchema",
            **_array_facts(schemas, "outputs"),
        },
    }


def _abstract_wrappers() -> Json:
    fields = {"inputs": _reference("AbstractEval_InputSchema")}
    return {
        "AbstractInputSchema": _request("AbstractInputSchema", fields),
        "AbstractOutputSchema": {
            **_reference("AbstractEval_OutputSchema"),
            "title": "AbstractOutputSchema",
        },
    }


def _tagged_wrappers(schemas: Schemas, has_abstract: bool) -> Json:
    optional: Json = {
        "tag": {"type": "string", "default": "intermediates"},
        "abstract": {"type": "boolean", "default": False},
    }
    for vector in (TANGENT, COTANGENT):
        if schemas.differentiable[vector.over]:
            by_path = _keyed_by_path(schemas, [vector.over])
            optional[vector.name] = {"anyOf": [by_path, {"type": "null"}], "default": None}
    inputs = [_reference("Apply_InputSchema")]
    if has_abstract:
        inputs.append(_reference("AbstractEval_InputSchema"))
    fields = {"inputs": {"anyOf": inputs}}
    answer = {"type": "object", "additionalProperties": {"type": "object"}}
    return {
        "TaggedInputSchema": _request("TaggedInputSchema", fields, optional),
        "TaggedOutputSchema": {**answer, "title": "TaggedOutputSchema"},
    }


def _derivative_wrappers(kind: DerivativeKind, schemas: Schemas) -> Json:
    request, response = f"{kind.schema_prefix}InputSchema", f"{kind.schema_prefix}OutputSchema"
    inputs = f"{kind.model_prefix}_InputSchema"
    fields = {
        "inputs": _reference(inputs),
        kind.inputs_argument: _paths_schema(schemas, "inputs"),
        kind.outputs_argument: _paths_schema(schemas, "outputs"),
    }
    fields |= {vector.name: _keyed_by_path(schemas, [vector.over]) for vector in kind.vectors}
    optional = {name: fields.pop(name) for name in kind.optional_names if name in fields}
    if kind.takes_batches:
        optional[BATCHED] = {"type": "boolean", "default": False}
    result = _keyed_by_path(schemas, list(kind.result_over))
    if kind.with_value:
        result = _object({"outputs": _reference("Apply_OutputSchema"), "gradient": result})
    return {
        inputs: _reference("Apply_InputSchema"),
        request: _request(request, fields, optional),
        response: {**result, "title": response},
    }


def _paths_schema(schemas: Schemas, side: Side) -> Json:
    return {
        "type": "array",
        "items": _one_path(schemas, side),
        "minItems": 1,
        "uniqueItems": True,
    }


def _one_path(schemas: Schemas, side: Side) -> Json:
    patterns = schemas.differentiable[side]
    plain = [p for p in patterns if "[]" not in p and "{}" not in p]
    choices: list[Json] = [{"type": "string", "enum": plain}] if plain else []
    choices += [
        {"type": "string", "pattern": pattern_to_regex(p)} for p in patterns if p not in plain
    ]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _keyed_by_path(schemas: Schemas, sides: list[Side]) -> Json:
    if not sides:
        return _reference("AnyArray")
    return {
        "type": "object",
        "propertyNames": _one_path(schemas, sides[0]),
        "additionalProperties": _keyed_by_path(schemas, sides[1:]),
    }


def _request(title: str, fields: Json, optional: Json | None = None) -> Json:
    return {"title": title, **_object(fields, optional), "additionalProperties": False}


def _object(fields: Json, optional: Json | None = None) -> Json:
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
    }


def _reference(model: str) -> Json:
    return {"$ref": _REFERENCE.format(model=model)}


def _array_facts(schemas: Schemas, side: Side) -> Json:
    model = schemas.input_schema if side == "inputs" else schemas.output_schema
    return {
        "differentiable_arrays": {
            pattern: _array_fact(spec) for pattern, spec in schemas.differentiable[side].items()
        },
        "field_order": _field_order(model, ""),
    }


def _array_fact(spec: ArraySpec) -> Json:
    facts = {
        "shape": None if spec.shape is None else list(spec.shape),
        "dtype": spec.dtype,
        "dims": list(spec.dimension_names) or None,
        "units": spec.units,
        **({} if spec.bounds is None else spec.bounds.json_schema()),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _field_order(annotation: Any, prefix: str) -> Json:
    """Path pattern of every model in the tree → its fields as declared (JSON objects are sorted)."""
    annotation = unwrap(annotation)
    if not is_model_class(annotation):
        return _merged(
            _field_order(child, add_segment(prefix, segment))
            for segment, child in parts_of(annotation)
        )
    fields = annotation.model_fields
    if issubclass(annotation, RootModel):
        return _field_order(fields["root"].annotation, prefix)
    below = _merged(
        _field_order(field.annotation, add_segment(prefix, name)) for name, field in fields.items()
    )
    return {prefix: list(fields), **below}


def _merged(mappings: Iterable[Json]) -> Json:
    return {key: value for mapping in mappings for key, value in mapping.items()}


def _path(endpoint: str) -> Json:
    if endpoint == "health":
        summary = {"summary": "Whether the component is up.", "operationId": endpoint}
        status = {"type": "object", "properties": {"status": {"type": "string"}}}
        return {"get": {**summary, "responses": {"200": _response("Up", status)}}}
    kind = ENDPOINTS[endpoint]
    name = kind.schema_prefix
    body = {"application/json": {"schema": _reference(f"{name}InputSchema")}}
    return {
        "post": {
            "summary": kind.summary,
            "operationId": endpoint,
            "parameters": [
                {"name": "accept", "in": "header", "required": False, "schema": {"type": "string"}}
            ],
            "requestBody": {"required": True, "content": body},
            "responses": {
                "200": _response("Result", _reference(f"{name}OutputSchema")),
                "422": _response("The caller's mistake", _reference("Problem")),
                "500": _response("The component's mistake", _reference("Problem")),
            },
        }
    }


def _response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error_schemas() -> Json:
    return {
        "Problem": {
            "title": "Problem",
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "Stable name of the reason."},
                "title": {"type": "string"},
                "detail": {"description": "What was expected, what was found, and where."},
            },
        }
    }
