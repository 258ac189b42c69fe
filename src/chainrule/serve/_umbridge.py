"""The UM-Bridge protocol beside our own routes: `GET /Info`, `POST /Evaluate`, `/Gradient`, ….

UM-Bridge knows models as functions of several vectors. A component is two such models:

    heat         one vector for every differentiable leaf, in the order of its schema
    heat-flat    one vector of all of them, for adapters that take exactly one (emcee, PyMC)

What does not vary, and what has no size of its own, is the `config` of a request:

    {"inputs": {"mode": "fine", "wings": [{"chord": [1, 1]}]}, "shapes": {"x": [3]}}

`inputs` are inputs of the component; arrays in them say the length of lists and the sizes of open dimensions.
`shapes` says such a size alone. `/ModelInfo` also has the names, units and bounds of the vectors.

Requests and answers are JSON. Errors have the protocol's form `{"error": {"type", "message"}}`, and numbers
that JSON does not have are `NaN` and `Infinity`, which clients in Python read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule._codec import FRAMES_MEDIA_TYPE, Limits, decode_body, encode_body, parse_json
from chainrule._errors import ChainruleError, InputError
from chainrule._lru_cache import LRUCache
from chainrule._trees import get_at_path, iterate_leaves, set_at_path
from chainrule.runtime.internal import HVP, JVP, VJP, DerivativeKind, Document, Leaf
from chainrule.serve._calls import Call, Reply
from chainrule.serve._endpoint import Disconnected, Intake, declared_length, read_body
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service

_PROTOCOL = 1.0
_FLAT = "-flat"
_SUPPORT = {
    "Evaluate": "apply",
    "Gradient": VJP.endpoint,
    "ApplyJacobian": JVP.endpoint,
    "ApplyHessian": HVP.endpoint,
}
Group = tuple[Leaf, ...]


class RefusedError(Exception):
    """A request that is answered with an error of the protocol.

    Args:
        kind: the protocol's name of the error.
        message: for people.
        status: of HTTP.
    """

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


@dataclass(frozen=True)
class Shapes:
    """The vectors of a model for one `config`.

    Attributes:
        inputs: one group of leaves for every input vector.
        outputs: the same for the outputs.
        tree: the component's inputs, with placeholders where the vectors go.
    """

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]
    tree: Any


class Model:
    """A component as a model of the protocol.

    Args:
        service: the component.
        is_flat: whether all leaves are one vector.
    """

    def __init__(self, service: Service, *, is_flat: bool) -> None:
        self._service = service
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

    async def sizes(self, config: Any, side: str) -> dict[str, Any]:
        """The sizes of the vectors of one side, and their names."""
        groups = getattr(await self.shapes(config), f"{side}s")
        return {
            f"{side}Sizes": [sum(leaf.size for leaf in group) for group in groups],
            f"{side}Names": [", ".join(leaf.path for leaf in group) for group in groups],
        }

    async def shapes(self, config: Any) -> Shapes:
        """The vectors for a config; asked for once."""
        key = orjson.dumps(config, option=orjson.OPT_SORT_KEYS)
        found = self._shapes.get(key)
        if found is None:
            tree = _inputs_of(self._document, config)
            inputs = self._document.leaves("inputs", tree)
            outputs = self._document.leaves("outputs", await self._abstract_outputs(tree, inputs))
            found = Shapes(self._grouped(inputs), self._grouped(outputs), tree)
            self._shapes.put(key, found)
        return found

    def _grouped(self, leaves: Sequence[Leaf]) -> tuple[Group, ...]:
        return (tuple(leaves),) if self._is_flat else tuple((leaf,) for leaf in leaves)

    async def _abstract_outputs(self, tree: Any, inputs: Sequence[Leaf]) -> Any:
        """The outputs as shapes; those of one evaluation where the component cannot tell them."""
        if "abstract_eval" not in self._service.facts.endpoints:
            return await self._ask("apply", {"inputs": tree})
        abstract = {leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype} for leaf in inputs}
        return await self._ask("abstract_eval", {"inputs": set_at_path(tree, abstract)})

    async def evaluate(self, body: Mapping[str, Any]) -> Any:
        """The output vectors at some inputs."""
        shapes = await self.shapes(_config(body))
        outputs = await self._ask("apply", {"inputs": self._at(shapes, body)})
        return [
            _joined({leaf.path: get_at_path(outputs, leaf.path) for leaf in group}, group)
            for group in shapes.outputs
        ]

    async def gradient(self, body: Mapping[str, Any]) -> Any:
        """sensᵀ · ∂(output vector)/∂(input vector)."""
        return await self._product(VJP, body, "sens")

    async def apply_jacobian(self, body: Mapping[str, Any]) -> Any:
        """∂(output vector)/∂(input vector) · vec."""
        return await self._product(JVP, body, "vec")

    async def _product(self, kind: DerivativeKind, body: Mapping[str, Any], name: str) -> Any:
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
            kind.inputs_argument: [leaf.path for leaf in sides["inputs"]],
            kind.outputs_argument: [leaf.path for leaf in sides["outputs"]],
            vector.name: _split(_vector(body, name, given), given),
        }
        return _joined(await self._ask(kind.endpoint, request), sides[answer])

    async def apply_hessian(self, body: Mapping[str, Any]) -> Any:
        """∂/∂(second input) (sensᵀ · ∂(output)/∂(first input)) · vec."""
        shapes = await self.shapes(_config(body))
        outputs = shapes.outputs[_index(body, "outWrt", shapes.outputs)]
        first, second = (
            shapes.inputs[_index(body, name, shapes.inputs)] for name in ("inWrt1", "inWrt2")
        )
        # The endpoint has one set of inputs: those that do not move have a tangent of zero.
        tangent = {leaf.path: np.zeros(leaf.shape) for leaf in first}
        tangent |= _split(_vector(body, "vec", second), second)
        found = await self._ask(
            HVP.endpoint,
            {
                "inputs": self._at(shapes, body),
                "hvp_inputs": list(tangent),
                "hvp_outputs": [leaf.path for leaf in outputs],
                "cotangent_vector": _split(_vector(body, "sens", outputs), outputs),
                "tangent_vector": tangent,
            },
        )
        return _joined(found, first)

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
            values |= _split(_numbers(vector, f"input[{k}]", group), group)
        return set_at_path(shapes.tree, values)

    async def _ask(self, endpoint: str, payload: Mapping[str, Any]) -> Any:
        """An answer of the component.

        Raises:
            RefusedError: it has no such endpoint, or says no.
        """
        if endpoint not in self._service.facts.endpoints:
            raise RefusedError(
                "UnsupportedFeature", f"{self._service.facts.name} has no endpoint {endpoint}."
            )
        body = b"".join(encode_body(payload, format=FRAMES_MEDIA_TYPE))
        call = Call(
            endpoint,
            self._service.pool.placed(body),
            content_type=FRAMES_MEDIA_TYPE,
            accept=FRAMES_MEDIA_TYPE,
        )
        try:
            reply = await self._service.call(call)
        except ChainruleError as error:
            raise RefusedError("ModelError", error.message, error.http_status) from error
        return _read(reply)


def _read(reply: Reply) -> Any:
    content = b"".join(reply.open())
    if reply.status == 200:
        return decode_body(content, media_type=reply.content_type)
    problem = orjson.loads(content)
    kind = "InvalidInput" if reply.status < 500 else "ModelError"
    raise RefusedError(kind, str(problem.get("message")), 400 if reply.status < 500 else 500)


def _config(body: Mapping[str, Any]) -> Mapping[str, Any]:
    config = body.get("config") or {}
    unknown = (
        sorted(set(config) - {"inputs", "shapes"}) if isinstance(config, Mapping) else ["config"]
    )
    if unknown:
        raise RefusedError(
            "InvalidInput",
            f'Expected config to have "inputs" and "shapes"; found {", ".join(unknown)}. Inputs that do not '
            'vary go below "inputs".',
        )
    return config


def _inputs_of(document: Document, config: Mapping[str, Any]) -> Any:
    """The component's inputs with something at every leaf that has a fixed place."""
    tree = deepcopy(config.get("inputs") or {})
    shapes = dict(config.get("shapes") or {})
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
        _place(tree, pattern, np.ones(tuple(shape), spec.dtype or "float64"))
    if shapes:
        raise RefusedError(
            "InvalidInput",
            f"config.shapes names {', '.join(shapes)}, which is not an input of open size.",
        )
    return tree


def _is_given(tree: Any, path: str) -> bool:
    try:
        return get_at_path(tree, path) is not None
    except ChainruleError:
        return False


def _place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value into nested dictionaries, which are made on the way."""
    *above, last = path.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _index(body: Mapping[str, Any], name: str, groups: Sequence[Group]) -> int:
    index = body.get(name)
    if type(index) is not int or not 0 <= index < len(groups):
        raise RefusedError(
            "InvalidInput",
            f"Expected {name} to be a number from 0 to {len(groups) - 1}; found {index!r}.",
        )
    return index


def _vector(body: Mapping[str, Any], name: str, group: Group) -> np.ndarray:
    return _numbers(body.get(name), name, group)


def _numbers(vector: Any, name: str, group: Group) -> np.ndarray:
    size = sum(leaf.size for leaf in group)
    try:
        numbers = np.asarray(vector)
    except ValueError:  # nested lists of unequal lengths
        numbers = np.asarray(None)
    if not isinstance(vector, list) or numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise RefusedError("InvalidInput", f"Expected {name} to be a list of numbers.")
    if len(vector) != size:
        paths = ", ".join(leaf.path for leaf in group)
        raise RefusedError(
            "InvalidInput",
            f"{name} ({paths}) has invalid length! Expected {size} but got {len(vector)}.",
        )
    return numbers.astype(float)


def _split(vector: np.ndarray, group: Group) -> dict[str, np.ndarray]:
    ends = np.cumsum([leaf.size for leaf in group])[:-1]
    parts = np.split(vector, ends)
    return {leaf.path: part.reshape(leaf.shape) for leaf, part in zip(group, parts, strict=True)}


def _joined(values: Mapping[str, Any], group: Group) -> np.ndarray:
    parts = [np.ravel(np.asarray(values[leaf.path], float)) for leaf in group]
    return np.concatenate(parts) if parts else np.zeros(0)


def umbridge_routes(
    services: Mapping[str, Service], options: ServeOptions, intake: Intake, limits: Limits
) -> list[Route]:
    """The routes of the protocol for all components of a server."""
    models: dict[str, Model] = {}
    for name, service in services.items():
        models[name] = Model(service, is_flat=False)
        models[f"{name}{_FLAT}"] = Model(service, is_flat=True)

    async def info(request: Request) -> Response:
        return _json({"protocolVersion": _PROTOCOL, "models": list(models)})

    def route(path: str, answer: Callable[[Model, Mapping[str, Any]], Any]) -> Route:
        async def respond(request: Request) -> Response:
            try:
                body = await _read_request(request, services, options, intake, limits)
                content = await answer(_find(models, body), body)
                return await asyncio.to_thread(_json, content)
            except RefusedError as error:
                content = {"error": {"type": error.kind, "message": str(error)}}
                return _json(content, error.status)
            except Disconnected:
                return Response(status_code=499)
            except ChainruleError as error:
                content = {"error": {"type": "InvalidInput", "message": error.message}}
                return _json(content, error.http_status)

        return Route(path, respond, methods=["POST"])

    async def model_info(model: Model, body: Mapping[str, Any]) -> Any:
        return model.info()

    def output(method: Callable[[Model, Mapping[str, Any]], Any]) -> Callable[..., Any]:
        async def answer(model: Model, body: Mapping[str, Any]) -> Any:
            return {"output": await method(model, body)}

        return answer

    return [
        Route("/Info", info, methods=["GET"]),
        route("/ModelInfo", model_info),
        route("/InputSizes", lambda model, body: model.sizes(_config(body), "input")),
        route("/OutputSizes", lambda model, body: model.sizes(_config(body), "output")),
        route("/Evaluate", output(Model.evaluate)),
        route("/Gradient", output(Model.gradient)),
        route("/ApplyJacobian", output(Model.apply_jacobian)),
        route("/ApplyHessian", output(Model.apply_hessian)),
    ]


async def _read_request(
    request: Request,
    services: Mapping[str, Service],
    options: ServeOptions,
    intake: Intake,
    limits: Limits,
) -> Mapping[str, Any]:
    limit = max(service.facts.max_body_bytes for service in services.values())
    nbytes = declared_length(request.headers.get("content-length"), limit)
    with intake.room_for(nbytes) as grow:
        content = await read_body(
            request.receive, nbytes, max_bytes=limit, timeout_s=options.read_timeout_s, grow=grow
        )
    # Not on the event loop, nor past the limits: a long vector takes long to read, and many times its text.
    body = await asyncio.to_thread(parse_json, bytes(content), limits)
    if not isinstance(body, dict):
        raise InputError("Expected the body to be a JSON object.", code="json_invalid")
    return body


def _find(models: Mapping[str, Model], body: Mapping[str, Any]) -> Model:
    name = body.get("name")
    if not isinstance(name, str) or name not in models:
        raise RefusedError(
            "ModelNotFound", f"There is no model {name!r}; there are {', '.join(models)}."
        )
    return models[name]


def _json(content: Any, status: int = 200) -> Response:
    arrays = [leaf for _, leaf in iterate_leaves(content) if isinstance(leaf, np.ndarray)]
    text: bytes | str
    if all(np.isfinite(array).all() for array in arrays):
        text = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    else:
        # The standard library writes NaN and Infinity, which clients in Python read; orjson writes null.
        text = json.dumps(content, default=lambda array: array.tolist())
    return Response(text, status, media_type="application/json")
