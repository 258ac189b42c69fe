"""`chainrule diff`: which changes of a component's interface break its callers."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._output import make_table, result_stream, write_result
from chainrule.cli._sources import add_token, check_exists, is_url, read_document
from chainrule.client.internal import Change, compare_interfaces


def add_arguments(parser: ArgumentParser) -> None:
    """Two components, here or served, or their OpenAPI documents."""
    for name in ("old", "new"):
        parser.add_argument(
            name, metavar=name.upper(), help="A component, its URL, or its OpenAPI document (.json)"
        )
    add_token(parser)
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    """Exit with 1 when a change breaks callers."""
    with result_stream() as stdout:
        changes = compare_interfaces(
            *(_document(source, options) for source in (options.old, options.new))
        )
        write_result(options, _facts(changes), lambda: _table(changes), to=stdout)
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


def _facts(changes: Sequence[Change]) -> Mapping[str, Any]:
    return {
        "compatible": not any(change.breaks for change in changes),
        "changes": [dataclasses.asdict(change) for change in changes],
    }


def _table(changes: Sequence[Change]) -> Any:
    if not changes:
        return "No change that callers could notice."
    broken = sum(change.breaks for change in changes)
    title = f"diff: {broken} of {len(changes)} changes break callers"
    rows = [("breaks" if c.breaks else "fine", c.where, c.what) for c in changes]
    return make_table(title, ("callers", "where", "what"), rows)
