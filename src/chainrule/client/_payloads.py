"""From the arguments of an endpoint's method to the request that is sent.

The server's document says which formats it reads (`Dialect`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from chainrule._codec import FRAMES_MEDIA_TYPE, Frames, encode_body, encode_frames
from chainrule._errors import DefinitionError, InputError
from chainrule._paths import join_path
from chainrule._trees import is_arraylike, iterate_leaves
from chainrule.runtime.internal import BATCHED, DERIVATIVES, batched_product, is_tracer

_KINDS = {kind.endpoint: kind for kind in DERIVATIVES}
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "apply": ("inputs",),
    "abstract_eval": ("abstract_inputs",),
    "tagged_intermediates": ("inputs",),
    **{name: kind.argument_names for name, kind in _KINDS.items()},
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "tagged_intermediates": ("tag", "tangent_vector", "cotangent_vector", "abstract"),
    **{name: (BATCHED,) for name, kind in _KINDS.items() if kind.takes_batches},
}
_PATH_ARGUMENTS = {
    name for kind in DERIVATIVES for name in (kind.inputs_argument, kind.outputs_argument)
}


def make_payload(endpoint: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The request of an endpoint.

    Raises:
        TypeError: not the arguments of this endpoint.
    """
    names = _ARGUMENTS[endpoint]
    if endpoint == "apply" and len(args) == 1 and not kwargs:
        return {"inputs": args[0]}
    optional = {n: kwargs.pop(n) for n in _OPTIONAL.get(endpoint, ()) if n in kwargs}
    kind = _KINDS.get(endpoint)
    given = dict(zip(names, args, strict=False)) | kwargs
    is_repeated = len(args) + len(kwargs) != len(given)
    if kind is not None and kind.all_paths:
        # Paths that are left out stand for all of them.
        given = {n: v for n, v in given.items() if v is not None or n in kind.required_names}
    required = names if kind is None else kind.required_names
    if is_repeated or not set(required) <= given.keys() <= set(names):
        found = ", ".join([*("…" for _ in args), *(f"{name}=…" for name in kwargs)])
        raise TypeError(f"{endpoint} takes {', '.join(names)}; found ({found})")
    if endpoint == "abstract_eval":
        return {"inputs": _to_abstract(given["abstract_inputs"])}
    if optional.get("abstract"):
        given["inputs"] = _to_abstract(given["inputs"])
    for name in _PATH_ARGUMENTS & given.keys():
        # What is no collection of paths, the component refuses with a better message.
        if isinstance(given[name], Iterable) and not isinstance(given[name], str):
            given[name] = list(given[name])
    # What has its default is left out: other servers refuse fields that they do not know.
    return given | {
        name: value for name, value in optional.items() if value is not False and value is not None
    }


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
        f"{_KINDS[endpoint].schema_prefix}InputSchema", {}
    )
    return BATCHED in request.get("properties", {})


def send_one_by_one(
    send: Callable[[dict[str, Any]], Mapping[str, Any]], endpoint: str, payload: Mapping[str, Any]
) -> dict[str, Any]:
    """A request with a batch of vectors, as one request for each of them."""
    names = _ARGUMENTS[endpoint]

    def product(*values: Any) -> Mapping[str, Any]:
        return send(dict(zip(names, values, strict=True)))

    inputs, input_paths, output_paths, vector = (payload[name] for name in names)
    return batched_product(product, inputs, input_paths, output_paths, vector)


def _to_abstract(tree: Any) -> Any:
    """The tree with `{"shape": …, "dtype": …}` in place of everything that has a shape and a dtype."""
    if is_arraylike(tree):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, BaseModel):
        return _to_abstract(dict(tree))
    if isinstance(tree, Mapping):
        return {key: _to_abstract(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_to_abstract(item) for item in tree]
    return tree


@dataclass(frozen=True)
class Dialect:
    """How to talk to a server.

    Attributes:
        content_type: of the requests we send.
        body_format: the codec's name of the format that goes with it.
        accept: what we ask for; `None` asks for whatever the server likes.
        is_native: whether the server is one of ours.
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
