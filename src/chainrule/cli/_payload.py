"""The payload of a call: inline, from a file or from standard input, with single values set on top."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from chainrule._codec import FRAMES_MEDIA_TYPE, Grants, Limits, decode_body
from chainrule._describe import describe_value
from chainrule._errors import DecodeError, InputError, LimitError, PathError
from chainrule._paths import Segment, split_path
from chainrule._trees import get_at_path
from chainrule.runtime import ComponentConfig

_ASSIGNMENT = re.compile(r"[^\W\d][\w.\[\]]*=")
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


@contextmanager
def inputs_explained(options: Namespace, payload: dict[str, Any]) -> Iterator[None]:
    """Where a component refuses inputs, say what was found. The data are those of the user of this shell.

    Where `--set` gave the input and its value was not JSON, say that it counts as text.
    """
    try:
        yield
    except InputError as error:
        for problem in error.details.get("problems", []):
            found = _found(payload["inputs"], problem)
            error.message = error.message.replace(problem["msg"], problem["msg"] + found, 1)
            problem["msg"] += found
        for assignment in options.values:
            path, _, value = assignment.partition("=")
            if path == error.path and _as_json(value) is value:
                error.message = (
                    f"{error.message.rstrip('.')}. `--set {path}=` takes JSON; {value[:40]!r} is not, and "
                    "counts as text."
                )
        raise


def _found(inputs: Any, problem: Mapping[str, Any]) -> str:
    """The number that pydantic refused, behind its message; messages of ours say what they found."""
    try:
        value = get_at_path(inputs, problem["path"])
    except PathError:
        return ""
    is_number = isinstance(value, (int, float)) and "found" not in problem["msg"]
    return f"; found {json.dumps(value)}" if is_number else ""


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
        content = _read_file(file, limits)
        try:
            return decode_body(content, media_type=kind, grants=grants, limits=limits)
        except DecodeError as error:
            raise type(error)(
                f"The payload file {str(file)!r}: {error.message}", code=error.code, path=error.path
            ) from error
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
        if _ASSIGNMENT.match(text):
            raise InputError(
                f"The payload sets one input, {text[:80]!r}. To set single inputs, write "
                f"`--set {text[:80]}`.",
                code="payload_is_assignment",
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
    return split_path(path), _as_json(value)


def _as_json(text: str) -> Any:
    """What a text says in JSON; the text itself if it is not JSON."""
    try:
        # Not orjson: NaN and Infinity are numbers here, as in every payload.
        return json.loads(text)
    except ValueError:
        return text


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
