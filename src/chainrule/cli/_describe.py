"""`chainrule check`, `inspect`, `schema` and `diff`: what a component takes, gives and offers."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chainrule._errors import InputError
from chainrule.cli._output import make_table, result_stream, write_result
from chainrule.cli._sources import add_component, add_token, check_exists, is_url, read_document
from chainrule.runtime.internal import Document

if TYPE_CHECKING:  # only `diff` needs the client
    from chainrule.client.internal import Change

# Characters of a default that a table still shows.
_LONG = 40
_PARTS = {"inputs": "Apply_InputSchema", "outputs": "Apply_OutputSchema"}


def add_check_arguments(parser: ArgumentParser) -> None:
    """The component."""
    add_component(parser)
    parser.set_defaults(handler=_check)


def _check(options: Namespace) -> int:
    """Load a component or ask its server, and list its endpoints."""
    with result_stream() as stdout:
        # A local component makes its document here, which finds fields that cannot be described to callers.
        document = read_document(options)
        endpoints = _endpoints(document)
        device = document.get("x-device")
        facts = {"ok": True, "name": document["info"]["title"], "endpoints": endpoints}
        title = f"{Document(document).title} is fine"
        if device is not None:
            facts["device"], title = device, f"{title}, on {device}"
        columns = ("endpoint", "available")
        write_result(
            options, facts, lambda: make_table(title, columns, list(endpoints.items())), to=stdout
        )
    return 0


def add_schema_arguments(parser: ArgumentParser) -> None:
    """The component, and which part of the document; or a project file."""
    add_component(parser, is_optional=True)
    parser.add_argument(
        "--part",
        choices=("openapi", *_PARTS),
        default="openapi",
        help="Print the whole document, or the JSON schema of the inputs or outputs",
    )
    parser.add_argument(
        "--config",
        nargs="?",
        const="component.yaml",
        choices=("component.yaml", "tesseract_config.yaml"),
        help="Print the JSON schema of this project file instead, for editors (default: component.yaml)",
    )
    parser.set_defaults(handler=_schema)


def _schema(options: Namespace) -> int:
    with result_stream() as stdout:
        document = _document(options)
        if options.part in _PARTS:
            document = {
                "$ref": f"#/components/schemas/{_PARTS[options.part]}",
                "components": {"schemas": document["components"]["schemas"]},
            }
        stdout.write([json.dumps(document, indent=2, sort_keys=True).encode(), b"\n"])
    return 0


def _document(options: Namespace) -> dict[str, Any]:
    if options.config is not None:
        from chainrule.deploy.internal import settings_schema

        return settings_schema(options.config)
    if options.component is None:
        raise InputError(
            "Name a component, or pass --config for the schema of a project file.",
            code="bad_option",
        )
    return read_document(options)


def add_inspect_arguments(parser: ArgumentParser) -> None:
    """The component."""
    add_component(parser)
    parser.set_defaults(handler=_inspect)


def _inspect(options: Namespace) -> int:
    with result_stream() as stdout:
        facts = _facts(read_document(options))
        write_result(options, facts, lambda: _as_tables(facts), to=stdout)
    return 0


def _as_tables(facts: dict[str, Any]) -> Any:
    from rich.console import Group

    identity = ("version", "content_hash", "description", "batching", "device")
    rows = [(key, str(facts[key])) for key in identity if facts[key]]
    parts = [make_table(facts["name"], ("", ""), rows)]
    for side in ("inputs", "outputs"):
        fields = [
            (name, field["type"], "yes" if field["required"] else "no", _about(field))
            for name, field in facts[side].items()
        ]
        parts.append(make_table(side, ("field", "type", "required", "description"), fields))
    endpoints = list(facts["endpoints"].items())
    parts.append(make_table("endpoints", ("endpoint", "available"), endpoints))
    return Group(*parts)


def _about(field: Mapping[str, Any]) -> str:
    """What the author says about a field, its bounds, and its default where that is short."""
    default = "" if field["default"] is None else f"default {json.dumps(field['default'])}"
    said = (field["description"], field["bounds"], default if len(default) <= _LONG else "")
    return "\n".join(filter(None, said))


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Identity, fields and endpoints of a component, from its OpenAPI document."""
    info = document["info"]
    return {
        "name": info["title"],
        "version": info["version"],
        "content_hash": info.get("x-content-hash"),
        "description": info.get("description", ""),
        "batching": document.get("x-batching"),
        "device": document.get("x-device"),
        "inputs": _fields(document, "inputs"),
        "outputs": _fields(document, "outputs"),
        "differentiable_inputs": _differentiable(document, "inputs"),
        "differentiable_outputs": _differentiable(document, "outputs"),
        "endpoints": _endpoints(document),
    }


def _endpoints(document: Mapping[str, Any]) -> dict[str, str]:
    """How each endpoint is available, in words."""
    return {name: str(capability) for name, capability in Document(document).capabilities.items()}


def _fields(
    document: Mapping[str, Any], side: Literal["inputs", "outputs"]
) -> dict[str, dict[str, Any]]:
    """Every leaf by its path; the members of a union share a path."""
    found: dict[str, dict[str, Any]] = {}
    for field in Document(document).fields(side):
        marked = f"{field.type} differentiable" if field.is_differentiable else field.type
        if field.path in found:
            found[field.path]["type"] += f" | {marked}"
            continue
        found[field.path] = {
            "type": marked,
            "required": field.is_required,
            "description": field.description,
            "bounds": None if field.bounds is None else str(field.bounds),
            "default": field.default,
        }
    return found


def _differentiable(
    document: Mapping[str, Any], side: Literal["inputs", "outputs"]
) -> dict[str, str]:
    return {f.path: f.type for f in Document(document).fields(side) if f.is_differentiable}


def add_diff_arguments(parser: ArgumentParser) -> None:
    """Two components, here or served, or their OpenAPI documents."""
    for name in ("old", "new"):
        parser.add_argument(
            name, metavar=name.upper(), help="A component, its URL, or its OpenAPI document (.json)"
        )
    add_token(parser)
    parser.set_defaults(handler=_diff)


def _diff(options: Namespace) -> int:
    """Exit with 1 when a change breaks callers."""
    from chainrule.client.internal import compare_interfaces

    with result_stream() as stdout:
        changes = compare_interfaces(
            *(_compared_document(source, options) for source in (options.old, options.new))
        )
        write_result(options, _diff_facts(changes), lambda: _diff_table(changes), to=stdout)
    return int(any(change.breaks for change in changes))


def _compared_document(source: str, options: Namespace) -> dict[str, Any]:
    if is_url(source) or not source.endswith(".json"):
        return read_document(
            Namespace(component=source, token_file=options.token_file, peer_imports=False)
        )
    check_exists(source)
    try:
        document = json.loads(Path(source).read_text(encoding="utf-8"))
        document["components"]["schemas"]["Apply_InputSchema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{source} is not the OpenAPI document of a component; `chainrule schema` writes one.",
            code="bad_document",
        ) from error
    return document


def _diff_facts(changes: Sequence[Change]) -> Mapping[str, Any]:
    return {
        "compatible": not any(change.breaks for change in changes),
        "changes": [dataclasses.asdict(change) for change in changes],
    }


def _diff_table(changes: Sequence[Change]) -> Any:
    if not changes:
        return "No change that callers could notice."
    broken = sum(change.breaks for change in changes)
    title = f"diff: {broken} of {len(changes)} changes break callers"
    rows = [("breaks" if c.breaks else "fine", c.where, c.what) for c in changes]
    return make_table(title, ("callers", "where", "what"), rows)
