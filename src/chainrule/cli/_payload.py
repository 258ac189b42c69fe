"""The payload of a call: inline, from a file or from standard input, with single values set on top."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from chainrule._codec import FRAMES_MEDIA_TYPE, Grants, Limits, decode_body
from chainrule._describe import describe_value
from chainrule._errors import DecodeError, InputError, LimitError
from chainrule._paths import Segment, split_path
from chainrule.runtime import ComponentConfig

_SHORT = 300  # characters of a payload that are shown whole


def add_payload(parser: ArgumentParser) -> None:
    """What the endpoint is called with."""
    parser.add_argument(
        "payload",
        metavar="PAYLOAD",
        nargs="?",
        help='JSON such as {"inputs": {…}}, @FILE, or - for standard input (default: no inputs)',
    )
    parser.add_argument(
        "--set",
        "-s",
        dest="values",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="Set one input by its path, for example a.b=1.5; repeat for more (default: none)",
    )


def given_payload(options: Namespace, config: ComponentConfig) -> dict[str, Any]:
    """The payload that `add_payload`'s arguments give; see `read_payload`."""
    return read_payload(options.payload, options.values, grants=config.grants, limits=config.limits)


def read_payload(
    text: str | None, values: Sequence[str], *, grants: Grants, limits: Limits
) -> dict[str, Any]:
    """The whole body of a request.

    Args:
        text: JSON, `@file`, `-` for standard input, or nothing.
        values: `path=value` settings of single inputs; a value is JSON, or else text.
        grants: folders that references in the payload may name.
        limits: how large it may be.

    Raises:
        InputError: it cannot be read, is not an object, or has no inputs.
    """
    payload = {"inputs": {}} if text is None else _decode(text, grants, limits)
    if not isinstance(payload, dict):
        raise DecodeError(
            f'Expected the payload to be an object such as {{"inputs": {{…}}}}; found '
            f"{type(payload).__name__}.",
            code="invalid_input",
        )
    for assignment in values:
        _assign(payload.setdefault("inputs", {}), *_parse_assignment(assignment))
    if "inputs" not in payload:
        raise InputError(
            f"The payload has no `inputs`. Put them under `inputs`: '{_corrected(payload)}', or give them "
            "one by one with --set.",
            code="missing_field",
            path="inputs",
        )
    return payload


def _corrected(payload: dict[str, Any]) -> str:
    """The payload as it was probably meant: every name that is not a field of a request is an input."""
    # Imported here, so that a correct call does not wait for the derivatives' modules.
    from chainrule._endpoints import ENDPOINTS

    fields: set[str] = set()
    for kind in ENDPOINTS.values():
        fields.update(kind.argument_names, kind.optional_names)
    inputs = {name: value for name, value in payload.items() if name not in fields}
    beside = {name: value for name, value in payload.items() if name in fields}
    meant = {"inputs": inputs, **beside}
    text = orjson.dumps(meant, default=lambda _: "…", option=orjson.OPT_SERIALIZE_NUMPY).decode()
    if len(text) <= _SHORT:
        return text
    return orjson.dumps(
        {"inputs": dict.fromkeys(inputs, "…"), **dict.fromkeys(beside, "…")}
    ).decode()


def _decode(text: str, grants: Grants, limits: Limits) -> Any:
    if text.startswith("@"):
        file = Path(text[1:])
        kind = FRAMES_MEDIA_TYPE if file.suffix == ".frames" else "application/json"
        return decode_body(_read_file(file, limits), media_type=kind, grants=grants, limits=limits)
    if text == "-":
        return decode_body(_read_stdin(limits), grants=grants, limits=limits)
    try:
        return decode_body(text.encode(), grants=grants, limits=limits)
    except DecodeError as error:
        if _names_file(text):
            raise InputError(
                f"The payload is the name of a file, {text!r}. To read the payload from the file, "
                f"write '@{text}'.",
                code="payload_is_file_name",
            ) from error
        raise


def _names_file(text: str) -> bool:
    """Whether a text that is not JSON is the name of a file, or looks like one that does not exist."""
    try:
        return Path(text).suffix in (".json", ".frames") or Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def _read_file(file: Path, limits: Limits) -> bytes:
    try:
        if not file.is_file():
            raise InputError(f"There is no payload file {str(file)!r}.", code="payload_missing")
        limits.check_body(file.stat().st_size)
        return file.read_bytes()
    except OSError as error:
        raise InputError(
            f"The payload file {str(file)!r} cannot be read: {error.strerror}.",
            code="payload_unreadable",
        ) from error


def _read_stdin(limits: Limits) -> bytes:
    content = sys.stdin.buffer.read(limits.max_body_bytes + 1)
    if len(content) > limits.max_body_bytes:
        raise LimitError(
            f"Standard input has more than {limits.max_body_bytes} bytes.", code="body_too_large"
        )
    return content


def _parse_assignment(assignment: str) -> tuple[tuple[Segment, ...], Any]:
    path, separator, value = assignment.partition("=")
    if not separator or not path:
        raise InputError(
            f"--set takes path=value, for example --set a.b=1.5; found {assignment[:80]!r}.",
            code="bad_assignment",
        )
    try:
        # Not orjson: NaN and Infinity are numbers here, as in every payload.
        return split_path(path), json.loads(value)
    except ValueError:
        return split_path(path), value


def _assign(node: Any, segments: tuple[Segment, ...], value: Any) -> None:
    """Put a value at a path; mappings that are missing on the way are made."""
    *parents, last = segments
    for segment in parents:
        node = node.setdefault(str(segment), {}) if isinstance(node, dict) else _item(node, segment)
    if isinstance(node, dict):
        node[str(last)] = value
    else:
        _item(node, last)
        node[last] = value


def _item(node: Any, segment: Segment) -> Any:
    if isinstance(node, list) and isinstance(segment, int) and segment < len(node):
        return node[segment]
    raise InputError(
        f"--set cannot reach {segment!r}: there is {describe_value(node)} in the payload.",
        code="bad_assignment",
    )
