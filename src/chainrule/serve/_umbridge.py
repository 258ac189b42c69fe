"""The UM-Bridge protocol beside our own routes: `GET /Info`, `POST /Evaluate`, `/Gradient`, ….

UM-Bridge knows models as functions of several vectors. A component is two such models:

    heat         one vector for every differentiable leaf, in the order of its schema
    heat-flat    one vector of all of them, for adapters that take exactly one (emcee, PyMC)

What does not vary, and what has no size of its own, is the `config` of a request:

    {"inputs": {"mode": "fine", "wings": [{"chord": [1, 1]}]}, "shapes": {"x": [3]}}

`inputs` are inputs of the component; arrays in them say the length of lists and the sizes of open dimensions,
and `null` leaves an optional input out.
`shapes` says such a size alone. `/ModelInfo` also has the names, units and bounds of the vectors.

A few bytes of a request must not stand for much memory, nor a long vector keep the event loop. Placeholders
take no memory, sizes are checked before anything is made of them, and what is long is parsed, converted and
written in threads, one body at a time.

Requests and answers are JSON. Errors have the protocol's form `{"error": {"type", "message"}}`, and numbers
that JSON does not have are `NaN` and `Infinity`, which clients in Python read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule._codec import FRAMES_MEDIA_TYPE, Limits, decode_body, encode_body, parse_json
from chainrule._describe import describe_value
from chainrule._endpoints import HVP, JVP, VJP, DerivativeKind
from chainrule._errors import ChainruleError, InputError
from chainrule._lru_cache import LRUCache
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime.internal import Document, Leaf
from chainrule.serve._calls import Call, Reply
from chainrule.serve._endpoint import (
    Disconnected,
    Grow,
    Intake,
    Receive,
    Watch,
    declared_length,
    read_body,
)
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PROTOCOL = 1.0
# Bodies and answers beyond this are not worked on by the event loop.
_LONG_BYTES = 1 << 16
# Numbers that are converted in one step, in which no other thread runs.
_PIECE = 1 << 16
_MAX_RANK = 32
# Of messages, and of what a request says in them.
_MAX_MESSAGE = 2000
_MAX_SHOWN = 80
# Shapes for a longer config are not remembered.
_MAX_CONFIG_BYTES = 1 << 16
_FLAT = "-flat"
_SUPPORT = {
    "Evaluate": "apply",
    "Gradient": VJP.endpoint,
    "ApplyJacobian": JVP.endpoint,
    "ApplyHessian": HVP.endpoint,
}


class RefusedError(Exception):
    """A request that is answered with an error of the protocol.

    Args:
        kind: the protocol's name of the error.
        message: for people.
        status: of HTTP.
    """

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        super().__init__(message[:_MAX_MESSAGE])
        self.kind = kind
        self.status = status


class Group:
    """The leaves of one vector, and where each of them is in it.

    Attributes:
        paths: of the leaves.
        size: of the vector.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        ends = list(accumulate(leaf.size for leaf in leaves))
        parts = map(slice, [0, *ends], ends)
        self._parts = [
            (leaf.path, part, leaf.shape) for leaf, part in zip(leaves, parts, strict=True)
        ]
        self.paths = [leaf.path for leaf in leaves]
        self.size = ends[-1] if ends else 0

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The leaves of a vector, by path."""
        return {path: vector[part].reshape(shape) for path, part, shape in self._parts}

    def joined(self, value_of: Callable[[str], Any]) -> np.ndarray:
        """The vector of the leaves that a function gives for their paths.

        Raises:
            RefusedError: one of them has another size than was told (`InvalidOutput`).
        """
        vector = np.empty(self.size)
        for path, part, shape in self._parts:
            value = np.asarray(value_of(path))
            if value.shape != shape:
                raise RefusedError(
                    "InvalidOutput",
                    f"The component gave {path!r} the shape {list(value.shape)}; its sizes were told for "
                    f"{list(shape)}. Vectors of this protocol have one size for every config.",
                    500,
                )
            vector[part] = value.ravel()
        return vector


@dataclass(frozen=True)
class Shapes:
    """The vectors of a model for one `config`.

    Attributes:
        inputs: one group of leaves for every input vector.
        outputs: the same for the outputs.
        tree: the component's inputs, with placeholders where the vectors go.
        nbytes: of all vectors together.
    """

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]
    tree: Any

    @cached_property
    def nbytes(self) -> int:
        return 8 * sum(group.size for group in (*self.inputs, *self.outputs))


class Model:
    """A component as a model of the protocol.

    Args:
        service: the component.
        limits: on what a request may stand for.
        is_flat: whether all leaves are one vector.
    """

    def __init__(self, service: Service, limits: Limits, *, is_flat: bool) -> None:
        self._service = service
        self._limits = limits
        self._is_flat = is_flat
        self._document = Document(service.facts.openapi)
        self._shapes: LRUCache[Any, Shapes] = LRUCache(64)

    def info(self) -> dict[str, Any]:
        """What the model can do; the facts beyond the protocol are ignored by its clients."""
        endpoints = self._service.facts.endpoints
        facts = {
            f"{side[:-1]}Patterns": {
                pattern: {
                    "units": spec.units,
                    **({} if spec.bounds is None else spec.bounds.json_schema()),
                }
                for pattern, spec in self._document.differentiable(side).items()
            }
            for side in ("inputs", "outputs")
        }
        support = {route: endpoint in endpoints for route, endpoint in _SUPPORT.items()}
        return {"support": support, **facts}

    async def sizes(self, config: Any, side: str) -> bytes:
        """The sizes of the vectors of one side, and their names."""
        groups = getattr(await self.shapes(config), f"{side}s")
        sizes = [group.size for group in groups]
        names = [", ".join(group.paths) for group in groups]
        return orjson.dumps({f"{side}Sizes": sizes, f"{side}Names": names})

    async def shapes(self, config: Any) -> Shapes:
        """The vectors for a config; asked for once."""
        key = _key(config)
        found = self._shapes.get(key)
        if found is None:
            tree = _inputs_of(self._document, config, self._limits)
            inputs = self._document.leaves("inputs", tree)
            outputs = self._document.leaves("outputs", await self._abstract_outputs(tree, inputs))
            found = Shapes(self._grouped(inputs), self._grouped(outputs), tree)
            if len(key) <= _MAX_CONFIG_BYTES:
                self._shapes.put(key, found)
        return found

    def _grouped(self, leaves: Sequence[Leaf]) -> tuple[Group, ...]:
        return (Group(leaves),) if self._is_flat else tuple(Group([leaf]) for leaf in leaves)

    async def _abstract_outputs(self, tree: Any, inputs: Sequence[Leaf]) -> Any:
        """The outputs as shapes; those of one evaluation where the component cannot tell them."""
        if "abstract_eval" not in self._service.facts.endpoints:
            nbytes = 8 * sum(leaf.size for leaf in inputs)
            return await self._ask("apply", {"inputs": tree}, nbytes, dict)
        abstract = {leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype} for leaf in inputs}
        return await self._ask("abstract_eval", {"inputs": set_at_path(tree, abstract)}, 0, dict)

    async def evaluate(self, body: Mapping[str, Any]) -> bytes:
        """The output vectors at some inputs."""
        shapes = await self.shapes(_config(body))

        def answer(outputs: Any) -> bytes:
            found = (group.joined(partial(get_at_path, outputs)) for group in shapes.outputs)
            return b'{"output":[%b]}' % b",".join(map(_written, found))

        return await self._ask("apply", {"inputs": self._at(shapes, body)}, shapes.nbytes, answer)

    async def gradient(self, body: Mapping[str, Any]) -> bytes:
        """sensᵀ · ∂(output vector)/∂(input vector)."""
        return await self._product(VJP, body, "sens")

    async def apply_jacobian(self, body: Mapping[str, Any]) -> bytes:
        """∂(output vector)/∂(input vector) · vec."""
        return await self._product(JVP, body, "vec")

    async def _product(self, kind: DerivativeKind, body: Mapping[str, Any], name: str) -> bytes:
        """The product with the vector that a request has under a name."""
        shapes = await self.shapes(_config(body))
        sides: dict[str, Group] = {
            "outputs": shapes.outputs[_index(body, "outWrt", shapes.outputs)],
            "inputs": shapes.inputs[_index(body, "inWrt", shapes.inputs)],
        }
        (vector,), (answer,) = kind.vectors, kind.result_over
        given = sides[vector.over]
        request = {
            "inputs": self._at(shapes, body),
            kind.inputs_argument: sides["inputs"].paths,
            kind.outputs_argument: sides["outputs"].paths,
            vector.name: given.split(_numbers(body.get(name), name, given)),
        }
        return await self._ask(
            kind.endpoint, request, shapes.nbytes, partial(_vector, sides[answer])
        )

    async def apply_hessian(self, body: Mapping[str, Any]) -> bytes:
        """∂/∂(second input) (sensᵀ · ∂(output)/∂(first input)) · vec."""
        shapes = await self.shapes(_config(body))
        outputs = shapes.outputs[_index(body, "outWrt", shapes.outputs)]
        first, second = (
            shapes.inputs[_index(body, name, shapes.inputs)] for name in ("inWrt1", "inWrt2")
        )
        # The endpoint has one set of inputs: those that do not move have a tangent of zero.
        tangent = first.split(np.zeros(first.size))
        tangent |= second.split(_numbers(body.get("vec"), "vec", second))
        request = {
            "inputs": self._at(shapes, body),
            "hvp_inputs": list(tangent),
            "hvp_outputs": outputs.paths,
            "cotangent_vector": outputs.split(_numbers(body.get("sens"), "sens", outputs)),
            "tangent_vector": tangent,
        }
        return await self._ask(HVP.endpoint, request, shapes.nbytes, partial(_vector, first))

    def _at(self, shapes: Shapes, body: Mapping[str, Any]) -> Any:
        """The component's inputs of a request."""
        vectors = body.get("input")
        if not isinstance(vectors, list) or len(vectors) != len(shapes.inputs):
            count = len(vectors) if isinstance(vectors, list) else "none"
            raise RefusedError(
                "InvalidInput",
                f"Expected input to be a list of {len(shapes.inputs)} vectors; found {count}.",
            )
        values: dict[str, Any] = {}
        for k, (vector, group) in enumerate(zip(vectors, shapes.inputs, strict=True)):
            values |= group.split(_numbers(vector, f"input[{k}]", group))
        return set_at_path(shapes.tree, values)

    async def _ask(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        nbytes: int,
        answer: Callable[[Any], T],
    ) -> T:
        """What is made of an answer of the component.

        Args:
            endpoint: of the component.
            payload: of the request.
            nbytes: of the arrays in it, at most.
            answer: makes something of the decoded answer.

        Raises:
            RefusedError: it has no such endpoint, or says no.
        """
        if endpoint not in self._service.facts.endpoints:
            raise RefusedError(
                "UnsupportedFeature", f"{self._service.facts.name} has no endpoint {endpoint}."
            )
        body = await _off_the_loop(nbytes, self._placed, payload)
        call = Call(endpoint, body, content_type=FRAMES_MEDIA_TYPE, accept=FRAMES_MEDIA_TYPE)
        try:
            reply = await self._service.call(call)
        except ChainruleError as error:
            raise RefusedError("ModelError", error.message, error.http_status) from error
        return await _off_the_loop(reply.nbytes, lambda: answer(_read(reply)))

    def _placed(self, payload: Mapping[str, Any]) -> Any:
        return self._service.pool.placed(b"".join(encode_body(payload, format=FRAMES_MEDIA_TYPE)))


async def _off_the_loop(nbytes: int, function: Callable[..., T], *arguments: Any) -> T:
    """What a function returns; a thread runs it where that takes long."""
    if nbytes <= _LONG_BYTES:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _read(reply: Reply) -> Any:
    content = b"".join(reply.open())
    if reply.status == 200:
        return decode_body(content, media_type=reply.content_type)
    problem = orjson.loads(content)
    kind = "InvalidInput" if reply.status < 500 else "ModelError"
    raise RefusedError(kind, str(problem.get("message")), 400 if reply.status < 500 else 500)


def _config(body: Mapping[str, Any]) -> Mapping[str, Any]:
    config = _mapping(body.get("config"), "config")
    unknown = sorted(set(config) - {"inputs", "shapes"})
    if unknown:
        raise RefusedError(
            "InvalidInput",
            f'Expected config to have "inputs" and "shapes"; found {_listed(unknown)}. Inputs that do not '
            'vary go below "inputs".',
        )
    return {name: _mapping(value, f"config.{name}") for name, value in config.items()}


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    """An object of a request; nothing stands for an empty one."""
    if value is not None and not isinstance(value, dict):
        raise RefusedError(
            "InvalidInput", f"Expected {name} to be an object; found {describe_value(value)}."
        )
    return value or {}


def _shown(value: Any) -> str:
    """What a request says, short."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(_shown(name)[1:-1] for name in names[:5]) + more


def _inputs_of(document: Document, config: Mapping[str, Any], limits: Limits) -> Any:
    """The component's inputs with something at every leaf that has a fixed place."""
    tree = _copied(config.get("inputs", {}))
    shapes = dict(config.get("shapes", {}))
    fields = {field.path: field for field in document.fields("inputs")}
    for pattern, spec in document.differentiable("inputs").items():
        if "[" in pattern or "{" in pattern or _is_given(tree, pattern):
            continue
        field = fields.get(pattern)
        shape = shapes.pop(pattern, None)
        if shape is None and spec.shape is not None and None not in spec.shape:
            shape = spec.shape
        if shape is None and field is not None and field.default is not None:
            shape = np.shape(field.default)
        if shape is None and field is not None and not field.is_required:
            continue  # it may be left out
        if shape is None:
            raise RefusedError(
                "InvalidInput",
                f"The size of {pattern!r} is open ({spec}): give it in the config, for example "
                f'{{"shapes": {{"{pattern}": [3]}}}}.',
            )
        _check_shape(pattern, shape, limits)
        # A view of one number: it takes no memory, for any shape.
        _place(tree, pattern, np.broadcast_to(np.ones((), spec.dtype or "float64"), shape))
    if shapes:
        raise RefusedError(
            "InvalidInput",
            f"config.shapes names {_listed(list(shapes))}, which is not an input of open size.",
        )
    return tree


def _key(config: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(config, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers of more than 64 bits
        return json.dumps(config, sort_keys=True).encode()


def _copied(tree: Any) -> Any:
    """The same tree with objects of its own; what is in them is shared."""
    if isinstance(tree, dict):
        return {name: _copied(value) for name, value in tree.items()}
    return tree


def _check_shape(path: str, shape: Any, limits: Limits) -> None:
    """Refuse what is not a shape, or the shape of more memory than a request may stand for."""
    is_shape = isinstance(shape, (list, tuple)) and len(shape) <= _MAX_RANK
    if not is_shape or not all(type(size) is int and size >= 0 for size in shape):
        raise RefusedError(
            "InvalidInput",
            f"Expected the shape of {path!r} to be a list of at most {_MAX_RANK} sizes, such as [3]; found "
            f"{_shown(shape)}.",
        )
    # Zeros count as ones: the other sizes have to be sizes of something.
    nbytes = 8 * math.prod(max(size, 1) for size in shape)
    if nbytes > limits.max_expanded_bytes:
        raise RefusedError(
            "InvalidInput",
            f"An array of the shape of {path!r}, {_shown(shape)}, has more than the "
            f"{limits.max_expanded_bytes} bytes that a request may stand for (max_expanded_bytes).",
            413,
        )


def _is_given(tree: Any, path: str) -> bool:
    """Whether a config says something about an input; `null` leaves it out."""
    try:
        get_at_path(tree, path)
    except ChainruleError:
        return False
    return True


def _place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value into nested dictionaries, which are made on the way."""
    *above, last = path.split(".")
    for depth, name in enumerate(above, 1):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise RefusedError(
                "InvalidInput",
                f"Expected config.inputs.{'.'.join(above[:depth])} to be an object; found "
                f"{describe_value(tree)}.",
            )
    tree[last] = value


def _index(body: Mapping[str, Any], name: str, groups: Sequence[Group]) -> int:
    index = body.get(name)
    if type(index) is not int or not 0 <= index < len(groups):
        raise RefusedError(
            "InvalidInput",
            f"Expected {name} to be a number from 0 to {len(groups) - 1}; found {_shown(index)}.",
        )
    return index


def _numbers(vector: Any, name: str, group: Group) -> np.ndarray:
    """A vector of a request, which `_parse` has made an array of."""
    if not isinstance(vector, np.ndarray):
        raise RefusedError(
            "InvalidInput", f"Expected {_with_paths(name, group)} to be a list of numbers."
        )
    if len(vector) != group.size:
        raise RefusedError(
            "InvalidInput",
            f"{_with_paths(name, group)} has invalid length! Expected {group.size} but got {len(vector)}.",
        )
    return vector


def _with_paths(name: str, group: Group) -> str:
    """A vector of a request, and which leaves it is."""
    return f"{name} ({_listed(group.paths)})"


def umbridge_routes(
    services: Mapping[str, Service], options: ServeOptions, intake: Intake, limits: Limits
) -> list[Route]:
    """The routes of the protocol for all components of a server."""
    models: dict[str, Model] = {}
    for name, service in services.items():
        models[name] = Model(service, limits, is_flat=False)
        models[f"{name}{_FLAT}"] = Model(service, limits, is_flat=True)
    max_bytes = max(service.facts.max_body_bytes for service in services.values())
    reader = _RequestReader(max_bytes, options.read_timeout_s, limits)

    async def info(request: Request) -> Response:
        return _json(orjson.dumps({"protocolVersion": _PROTOCOL, "models": list(models)}))

    async def model_info(model: Model, body: Mapping[str, Any]) -> bytes:
        return orjson.dumps(model.info())

    answers: dict[str, Answer] = {
        "/ModelInfo": model_info,
        "/InputSizes": lambda model, body: model.sizes(_config(body), "input"),
        "/OutputSizes": lambda model, body: model.sizes(_config(body), "output"),
        "/Evaluate": Model.evaluate,
        "/Gradient": Model.gradient,
        "/ApplyJacobian": Model.apply_jacobian,
        "/ApplyHessian": Model.apply_hessian,
    }
    return [
        Route("/Info", info, methods=["GET"]),
        *(
            Route(path, UmbridgeEndpoint(path, answer, models, reader, intake), methods=["POST"])
            for path, answer in answers.items()
        ),
    ]


Answer = Callable[[Model, Mapping[str, Any]], Awaitable[bytes]]


class UmbridgeEndpoint:
    """One `POST` route of the protocol as an ASGI application.

    Args:
        path: of the route.
        answer: what it says about a model and the body of a request, as JSON.
        models: by their names.
        reader: of bodies.
        intake: bounds the bodies of all endpoints together.
    """

    def __init__(
        self,
        path: str,
        answer: Answer,
        models: Mapping[str, Model],
        reader: _RequestReader,
        intake: Intake,
    ) -> None:
        self._path = path
        self._answer = answer
        self._models = models
        self._reader = reader
        self._intake = intake

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Answer one request."""
        response = await self._respond(dict(scope["headers"]), receive)
        await response(scope, receive, send)

    async def _respond(self, headers: Mapping[bytes, bytes], receive: Receive) -> Response:
        try:
            nbytes = self._reader.declared(headers)
            with self._intake.room_for(nbytes) as grow:
                body = await self._reader.read(receive, nbytes, grow)
                answer = self._answer(_find(self._models, body), body)
                return _json(await _unless_the_caller_leaves(receive, answer))
        except RefusedError as error:
            return _failed(error.kind, str(error), error.status)
        except Disconnected:
            return Response(status_code=499)
        except ChainruleError as error:
            # What the caller sent wrongly is 400 in this protocol; too much of it, or too slowly, is not.
            status = 400 if error.http_status == 422 else error.http_status
            return _failed("InvalidInput", error.message, status)
        except Exception:
            _log.exception("A request for %s was lost", self._path)
            return _failed("ModelError", "The server failed on this request.", 500)


class _RequestReader:
    """Reads requests, long ones one at a time: parsed they take many times their bytes.

    Args:
        max_bytes: of a body.
        timeout_s: how long a caller may pause.
        limits: on what is parsed.
    """

    def __init__(self, max_bytes: int, timeout_s: float, limits: Limits) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._limits = limits
        self._turn = asyncio.Lock()

    def declared(self, headers: Mapping[bytes, bytes]) -> int | None:
        """The length of a body, if its headers say it."""
        return declared_length(headers, self._max_bytes)

    async def read(self, receive: Receive, nbytes: int | None, grow: Grow) -> Mapping[str, Any]:
        """The body of a request, with arrays in place of its vectors."""
        content = await read_body(
            receive,
            nbytes,
            max_bytes=self._max_bytes,
            timeout_s=self._timeout_s,
            grow=grow,
        )
        is_long = len(content) > _LONG_BYTES
        async with self._turn if is_long else contextlib.nullcontext():
            return await _off_the_loop(len(content), _parse, content, self._limits)


def _parse(content: bytes, limits: Limits) -> Mapping[str, Any]:
    body = parse_json(content, limits)
    if not isinstance(body, dict):
        raise InputError("Expected the body to be a JSON object.", code="json_invalid")
    for name in ("sens", "vec"):
        body[name] = _as_array(body.get(name))
    if isinstance(body.get("input"), list):
        body["input"] = [_as_array(vector) for vector in body["input"]]
    return body


def _as_array(vector: Any) -> np.ndarray | None:
    """A list of numbers as an array; `None` for anything else."""
    if not isinstance(vector, list):
        return None
    pieces = []
    for start in range(0, len(vector), _PIECE):
        try:
            piece = np.asarray(vector[start : start + _PIECE])
        except ValueError:  # nested lists of unequal lengths
            return None
        if piece.ndim != 1 or piece.dtype.kind not in "iuf":
            return None
        pieces.append(piece.astype(float))
    return np.concatenate(pieces) if pieces else np.zeros(0)


async def _unless_the_caller_leaves(receive: Receive, answer: Awaitable[T]) -> T:
    """An answer; the work for it is cancelled when the caller disconnects.

    Raises:
        Disconnected: that is so.
    """
    watch = Watch(receive)
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.left:
            raise Disconnected from None
        raise
    finally:
        watch.stop()


def _find(models: Mapping[str, Model], body: Mapping[str, Any]) -> Model:
    name = body.get("name")
    if not isinstance(name, str) or name not in models:
        raise RefusedError(
            "ModelNotFound", f"There is no model {_shown(name)}; there are {', '.join(models)}."
        )
    return models[name]


def _failed(kind: str, message: str, status: int) -> Response:
    content = {"error": {"type": kind, "message": message[:_MAX_MESSAGE]}}
    return _json(orjson.dumps(content), status)


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def _vector(group: Group, leaves: Mapping[str, Any]) -> bytes:
    """The answer of a derivative: one vector."""
    return b'{"output":%b}' % _written(group.joined(leaves.__getitem__))


def _written(vector: np.ndarray) -> bytes:
    """A vector as JSON, piece by piece."""
    pieces = (vector[start : start + _PIECE] for start in range(0, len(vector), _PIECE))
    return b"[%b]" % b",".join(map(_written_piece, pieces))


def _written_piece(numbers: np.ndarray) -> bytes:
    """Numbers between commas."""
    if np.isfinite(numbers).all():
        return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    # The standard library writes NaN and Infinity, which clients in Python read; orjson writes null.
    return json.dumps(numbers.tolist())[1:-1].encode()
