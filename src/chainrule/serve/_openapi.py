"""The server's own routes in the OpenAPI document: jobs and status.

They stand beside those of the component, whose part of the document is not changed: clients find endpoints by
their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.serve._jobs._store import STATES

_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_STATE = {"name": "state", "in": "query", "schema": {"enum": list(STATES)}}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_JOB = {
    "type": "object",
    "title": "ServerJob",
    "properties": {
        "id": {"type": "string"},
        "component": {"type": "string"},
        "endpoint": {"type": "string"},
        "run_id": {"type": ["string", "null"]},
        "state": {"enum": list(STATES)},
        "fraction": {"type": ["number", "null"]},
        "message": {"type": ["string", "null"]},
        "queue_position": {"type": ["integer", "null"]},
        "submitted_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
        "error": {"type": ["object", "null"]},
    },
    "required": ["id", "component", "endpoint", "state"],
}
_ONE_JOB = {"$ref": "#/components/schemas/ServerJob"}
_JOBS = {"type": "object", "properties": {"jobs": {"type": "array", "items": _ONE_JOB}}}
_UNKNOWN = {"404": {"description": "There is no such job."}}


def with_server_routes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of the component at the root, with the routes of its server."""
    components = document.get("components", {})
    schemas = {**components.get("schemas", {}), "ServerJob": _JOB}
    return {
        **document,
        "paths": {**document["paths"], **_PATHS},
        "components": {**components, "schemas": schemas},
    }


def _operation(
    summary: str, *parameters: Mapping[str, Any], media: str, schema: Any = None, **more: Any
) -> dict[str, Any]:
    content = {media: {} if schema is None else {"schema": schema}}
    return {
        "summary": summary,
        "tags": ["server"],
        "parameters": list(parameters),
        "responses": {"200": {"description": "Successful Response", "content": content}, **more},
    }


_JSON = "application/json"
_UNFINISHED = {"description": "It is not finished yet.", "content": {_JSON: {"schema": _ONE_JOB}}}
_GONE = {"description": "It was cancelled, or its result is not kept any more."}
_PATHS: dict[str, Any] = {
    "/jobs": {"get": _operation("Jobs, newest first.", _STATE, _LIMIT, media=_JSON, schema=_JOBS)},
    "/jobs/{id}": {
        "get": _operation("One job.", _ID, media=_JSON, schema=_ONE_JOB, **_UNKNOWN),
        "delete": _operation("Cancel a job.", _ID, media=_JSON, schema=_ONE_JOB, **_UNKNOWN),
    },
    "/jobs/{id}/result": {
        "get": _operation(
            "What the endpoint answered.",
            _ID,
            media=_JSON,
            **{"202": _UNFINISHED, "410": _GONE},
            **_UNKNOWN,
        )
    },
    "/jobs/{id}/events": {
        "get": _operation(
            "State, progress and output as they come.", _ID, media="text/event-stream", **_UNKNOWN
        )
    },
    "/jobs/{id}/log": {
        "get": _operation("What the call has printed.", _ID, media="text/plain", **_UNKNOWN)
    },
    "/status": {
        "get": _operation(
            "Components, workers, queue, requests and jobs.", media=_JSON, schema={"type": "object"}
        )
    },
}
