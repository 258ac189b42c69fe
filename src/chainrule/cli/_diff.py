"""`chainrule diff`: what a newer component breaks for callers of an older one."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._arguments import add_token
from chainrule.cli._compatibility import Change, compare
from chainrule.cli._source import check_exists, is_url, read_document
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text


def add_arguments(parser: ArgumentParser) -> None:
    """Two components, here or served, or their OpenAPI documents."""
    for name in ("old", "new"):
        parser.add_argument(
            name, metavar=name.upper(), help="a component, its URL, or its OpenAPI document (.json)"
        )
    add_token(parser)


def run(options: Namespace) -> int:
    """Compare two components; 1 when something breaks."""
    with result_stream() as stdout:
        changes = compare(*(_document(source, options) for source in (options.old, options.new)))
        stdout.write_text(_text(changes, options.json))
    return int(any(change.breaks for change in changes))


def _document(source: str, options: Namespace) -> dict[str, Any]:
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


def _text(changes: Sequence[Change], as_json: bool) -> str:
    if as_json:
        facts = {
            "compatible": not any(change.breaks for change in changes),
            "changes": [dataclasses.asdict(change) for change in changes],
        }
        return json.dumps(facts) + "\n"
    if not changes:
        return "No change that callers could notice.\n"
    rows = [("breaks" if c.breaks else "fine", c.where, c.what) for c in changes]
    return table_text("changes", ("callers", "where", "what"), rows)
