"""Bodies: from the arguments of a call to a request, and from an answer to a result or the right exception.

The server's document says which formats it reads (`Dialect`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np
import orjson

from chainrule._codec import FRAMES_MEDIA_TYPE, TRUSTING_LIMITS, Limits, decode_body, encode_body
from chainrule._endpoints import ENDPOINTS
from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    DecodeError,
    DefinitionError,
    InputError,
    LimitError,
    NotGrantedError,
    PathError,
    StorageError,
    TransportError,
)
from chainrule._paths import join_path, loc_to_path
from chainrule._trees import is_tracer, iterate_leaves, map_leaves
from chainrule._visible import visible
from chainrule.runtime.derivatives import batched_product


def as_body(payload: Mapping[str, Any], body_format: str) -> list[Any]:
    """A request as the pieces of a body.

    Raises:
        InputError: something in it cannot be sent (`not_encodable`).
    """
    try:
        return encode_body(payload, format=body_format)
    except DefinitionError as error:
        # The codec takes it for the author's mistake; in a request it is the caller's.
        place = f"At {error.path!r}: " if error.path else ""
        raise InputError(f"{place}{error.message}", code=error.code, path=error.path) from None


def explained(error: TypeError, payload: Mapping[str, Any]) -> Exception:
    """What to raise when something of a request was not what it looked like: JAX may be tracing it."""
    for segments, leaf in iterate_leaves(payload):
        if is_tracer(leaf):
            path = join_path(*segments)
            return InputError(
                f"At {path!r}: JAX is tracing this value (under jit, grad or vmap), so there is nothing to "
                "send yet. Call chainrule.apply_component(component, inputs) inside of JAX programs.",
                code="traced_value",
                path=path,
            )
    return error


def takes_batches(document: Mapping[str, Any], endpoint: str) -> bool:
    """Whether a server says that requests to a product endpoint may carry `batched`."""
    request = document["components"]["schemas"].get(
        f"{ENDPOINTS[endpoint].schema_prefix}InputSchema", {}
    )
    return "batched" in request.get("properties", {})


def send_one_by_one(
    send: Callable[[dict[str, Any]], Mapping[str, Any]], endpoint: str, payload: Mapping[str, Any]
) -> dict[str, Any]:
    """A request with a batch of vectors, as one request for each of them."""
    names = ENDPOINTS[endpoint].argument_names

    def product(*values: Any) -> Mapping[str, Any]:
        return send(dict(zip(names, values, strict=True)))

    inputs, input_paths, output_paths, vector = (payload[name] for name in names)
    return batched_product(product, inputs, input_paths, output_paths, vector)


@dataclass(frozen=True)
class Dialect:
    """How to talk to a server.

    Attributes:
        content_type: of requests.
        body_format: the codec's name of the format that goes with it.
        accept: which formats of answers are asked for; `None` leaves that to the server.
        is_native: whether the server is one of Chainrule.
    """

    content_type: str
    body_format: str
    accept: str | None
    is_native: bool = False


NATIVE = Dialect(
    FRAMES_MEDIA_TYPE, FRAMES_MEDIA_TYPE.removeprefix("application/"), FRAMES_MEDIA_TYPE, True
)
# The peer takes arrays as base64 inside a body that has to call itself application/json.
_PEER = Dialect("application/json", "json+base64", "application/json+base64; gpu_transport=none")
# Servers before 1.13 answer 500 to any Accept header but their own format's.
_OLD_PEER = Dialect("application/json", "json+base64", None)


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """The dialect of the server that published this document."""
    if "x-capabilities" in document:
        return NATIVE
    return _PEER if "x-supported-output-formats" in document else _OLD_PEER


# Members of enumerations take long to look up.
_OK = HTTPStatus.OK.value
TURNED_AWAY = (HTTPStatus.SERVICE_UNAVAILABLE.value, HTTPStatus.TOO_MANY_REQUESTS.value)

_SMALL = 64 << 20  # bytes of parsed text that any answer may take
_FACTS = (
    "exception", "exception_message", "exception_classes", "count", "signal", "exit_code", "stderr",
)  # fmt: skip
_CLASS_OF_STATUS: dict[int, type[ChainruleError]] = {
    401: NotGrantedError,
    403: NotGrantedError,
    404: CapabilityError,
    405: CapabilityError,
    410: CapabilityError,
    412: TransportError,
    413: LimitError,
    507: StorageError,
    **dict.fromkeys((408, 429, 499, 502, 503, 504), TransportError),
}
_CLASS_OF_CODE: dict[str, type[ChainruleError]] = {
    "path_not_granted": NotGrantedError,
    **dict.fromkeys(
        (
            "json_invalid",
            "duplicate_key",
            "frames_malformed",
            "decode_failed",
            "unsupported_media_type",
        ),
        DecodeError,
    ),
}


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: HTTP status.
        content_type: media type of the body.
        body: bytes or another buffer.
        retry_after_s: when a caller that was turned away may come back.
        memory: where a server on this host has put the body; see `_same_host`.
        forward_pass: the token of a forward pass that the server has kept; see `_forward_passes`.
        exports: the name of what the other side has exported on a GPU, and keeps until this name comes back.
    """

    status: int
    content_type: str
    body: Any
    retry_after_s: float | None = None
    memory: str | None = None
    forward_pass: str | None = None
    exports: str | None = None

    @property
    def was_turned_away(self) -> bool:
        """Whether the server says that it has done nothing and may do it later."""
        return self.status in TURNED_AWAY and self.retry_after_s is not None


def read_answer(
    answer: Answer, limits: Limits = TRUSTING_LIMITS, *, on_device: bool = False
) -> Any:
    """The result that an answer carries, as a plain tree. Its arrays belong to the caller.

    With `on_device`, arrays on a GPU are `DeviceArray`s.

    Raises:
        ChainruleError: the exception that the answer stands for.
    """
    if answer.status == _OK:
        tree = _decoded(answer, limits, on_device)
        return with_numpy_scalars(tree)
    error = _error_of(answer)
    if answer.retry_after_s is not None:
        error.details["retry_after_s"] = answer.retry_after_s
    raise error


def _decoded(answer: Answer, limits: Limits, on_device: bool) -> Any:
    try:
        return decode_body(
            answer.body,
            media_type=answer.content_type,
            limits=limits,
            writable=True,
            on_device=on_device,
        )
    except LimitError as error:  # of the answer: the request is not at fault
        raise TransportError(
            f"The answer declares more data than is read: {error.message} Pass a larger max_answer_bytes if "
            "you trust the server.",
            code="answer_too_large",
            details=error.details,
        ) from error


def answer_limits(max_bytes: int) -> Limits:
    """Bounds of an answer: what it declares may not be larger than what would be read.

    JSON text of numbers with all their digits takes four times as much memory when it is parsed.
    """
    return replace(
        TRUSTING_LIMITS,
        max_body_bytes=max_bytes,
        max_array_bytes=max_bytes,
        max_total_bytes=max_bytes,
        max_expanded_bytes=max_bytes,
        max_parsed_bytes=4 * max_bytes + _SMALL,
    )


def with_numpy_scalars(tree: Any) -> Any:
    """The same tree with NumPy scalars for arrays of rank 0, as a component in this process returns them."""

    def scalar(leaf: Any) -> Any:
        return leaf[()] if type(leaf) is np.ndarray and not leaf.ndim else leaf

    return map_leaves(scalar, tree, is_leaf=_is_list_of_numbers)


def _is_list_of_numbers(node: Any) -> bool:
    """Whether a node may be long and holds nothing to look at."""
    return type(node) is list and all(type(item) in (float, int) for item in node)


def _error_of(answer: Answer) -> ChainruleError:
    problem = _read_problem(answer)
    if "code" in problem:
        return _chainrule_error(answer.status, problem)
    return _peer_error(answer.status, problem)


def _read_problem(answer: Answer) -> dict[str, Any]:
    """The body of an error: a problem of Chainrule, JSON of another server, or plain text."""
    body = bytes(answer.body)
    if "json" in answer.content_type:
        try:
            content = orjson.loads(body)
            if isinstance(content, dict):
                return content
        except ValueError:
            pass
    return {"text": body.decode("utf-8", "replace").strip()}


def _chainrule_error(status: int, problem: dict[str, Any]) -> ChainruleError:
    code = str(problem["code"])
    facts: dict[str, Any] = {
        "code": code,
        "path": problem.get("path"),
        "details": _details(problem) | {"status": status},
    }
    message = visible(str(problem.get("message", code)))
    trace = problem.get("traceback")
    cls = _class_of(status, code)
    if cls is ComponentError:
        facts["remote_traceback"] = trace
    error = cls(message, **facts)
    if trace:
        error.add_note(f"Traceback of the component:\n{visible(str(trace))}")
    return error


def _class_of(status: int, code: str) -> type[ChainruleError]:
    if status in _CLASS_OF_STATUS:
        return _CLASS_OF_STATUS[status]
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ComponentError
    if code in _CLASS_OF_CODE:
        return _CLASS_OF_CODE[code]
    return PathError if code.startswith("path_") else InputError


def _details(problem: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: problem[name] for name in _FACTS if name in problem}
    if isinstance(problem.get("detail"), list):
        kept["problems"] = [_without_data(entry) for entry in problem["detail"]]
    return kept


def _without_data(entry: Any) -> Any:
    """One problem in pydantic's form, with the location as a component in this process states it."""
    if not isinstance(entry, dict):
        return entry
    kept = {key: value for key, value in entry.items() if key not in ("input", "url")}
    loc = kept.get("loc")
    if isinstance(loc, list):
        loc = loc[1:] if loc[:1] == ["body"] else loc
        kept["loc"] = loc
        kept["path"] = _path_of(loc)
    return kept


def _path_of(loc: list[str | int]) -> str:
    """The path that a location in a request stands for.

    The first part is a field of the request. Below `inputs` the parts are names and indices; below the
    other fields (`tangent_vector`, …) there is one part, which is a path already.
    """
    if loc[:1] == ["inputs"] and len(loc) > 1:
        return loc_to_path(loc[1:])
    return ".".join(map(str, loc[1:] or loc))


def _peer_error(status: int, problem: dict[str, Any]) -> ChainruleError:
    """The error of a server that has no codes: a Tesseract, or a proxy in between."""
    text = problem.get("text", "")
    detail = problem.get("detail", text)
    details = _details(problem) | {"status": status}
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and "problems" in details:
        first = details["problems"][0] if details["problems"] else {}
        place = ".".join(map(str, first.get("loc", ())))
        message = f"The component refused the request at {place!r}: {first.get('msg', '')}"
        return InputError(message, details=details)
    cls = _class_of(status, "")
    summary = detail if isinstance(detail, str) else str(detail)
    last_line = summary.splitlines()[-1] if summary else "nothing more"
    message = f"The server answered {status}: {visible(last_line)}"
    if cls is not ComponentError:
        return cls(message, details=details)
    error = ComponentError(message, remote_traceback=text or None, details=details)
    if text:
        error.add_note(f"What the component sent:\n{visible(text)}")
    return error
