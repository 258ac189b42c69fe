"""From the arguments of an endpoint's method to the request that is sent.

The server's document says which formats it reads (`Dialect`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chainrule._codec import FRAMES_MEDIA_TYPE, Frames, encode_body, encode_frames
from chainrule._endpoints import ENDPOINTS
from chainrule._errors import DefinitionError, InputError
from chainrule._paths import join_path
from chainrule._trees import is_tracer, iterate_leaves
from chainrule.runtime.derivatives import batched_product


def as_frames(payload: Mapping[str, Any]) -> Frames:
    """A request as frames.

    Raises:
        InputError: something in it cannot be sent (`not_encodable`).
    """
    try:
        return encode_frames(payload)
    except DefinitionError as error:
        raise _unfit(error) from None


def as_body(payload: Mapping[str, Any], body_format: str) -> list[Any]:
    """A request as the pieces of a body; errors as in `as_frames`."""
    try:
        return encode_body(payload, format=body_format)
    except DefinitionError as error:
        raise _unfit(error) from None


def _unfit(error: DefinitionError) -> InputError:
    """For the codec what cannot be encoded is the author's mistake; of a request it is the caller's."""
    place = f"At {error.path!r}: " if error.path else ""
    return InputError(f"{place}{error.message}", code=error.code, path=error.path)


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
