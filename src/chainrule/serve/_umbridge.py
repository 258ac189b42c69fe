"""The UM-Bridge protocol beside our own routes: `GET /Info`, `POST /Evaluate`, `/Gradient`, ….

UM-Bridge knows models as functions of several vectors. A component is two such models:

    heat         one vector for every differentiable leaf, in the order of its schema
    heat-flat    one vector of all of them, for adapters that take exactly one (emcee, PyMC)

What does not vary, and what has no size of its own, is the `config` of a request:

    {"inputs": {"mode": "fine", "wings": [{"chord": [1, 1]}]}, "shapes": {"x": [3]}}

`inputs` are inputs of the component; arrays in them say the length of lists and the sizes of open dimensions,
and `null` leaves an optional input out.
`shapes` says such a size alone. `/ModelInfo` also has the names, units and bounds of the vectors.

`UmbridgeModels` answers requests where the component runs, in a worker: the event loop only moves their
bytes (`_umbridge_routes`). A few bytes of a request must not stand for much memory: placeholders take none,
and sizes are checked before anything is made of them.

Requests and answers are JSON. Errors have the protocol's form `{"error": {"type", "message"}}`, and numbers
that JSON does not have are `NaN` and `Infinity`, which clients in Python read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import orjson

from chainrule._codec import Limits, parse_json
from chainrule._describe import describe_value
from chainrule._device import to_host
from chainrule._doors import real_leaves
from chainrule._endpoints import HVP, JVP, VJP, DerivativeKind
from chainrule._errors import ChainruleError, InputError
from chainrule._lru_cache import LRUCache
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime import LocalComponent
from chainrule.runtime.internal import Document, Leaf
from chainrule.serve._calls import Call, Reply, url_name
from chainrule.serve._problems import PROBLEM

# Numbers that are converted in one step, in which no other thread runs.
_PIECE = 1 << 16
_MAX_RANK = 32
# Of messages, and of what a request says in them.
_MAX_MESSAGE = 2000
_MAX_SHOWN = 80
# Shapes for a longer config are not remembered.
_MAX_CONFIG_BYTES = 1 << 16
_FLAT = "-flat"
EVALUATE = "Evaluate"
"""The route that is answered by `apply`, and so may be merged."""
ENDPOINT_OF: Mapping[str, str] = {
    EVALUATE: "apply",
    "Gradient": VJP.endpoint,
    "ApplyJacobian": JVP.endpoint,
    "ApplyHessian": HVP.endpoint,
}
"""The endpoint of the component that answers each route with numbers."""


Ask = Callable[[str, Mapping[str, Any]], Any]
"""The result of an endpoint of the component for a payload."""


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
            value = np.asarray(to_host(value_of(path)))
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
        tree: the component's inputs, with numbers where the vectors go.
    """

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]
    tree: Any


class Model:
    """A component as a model of the protocol.

    Args:
        component: the component.
        ask: the result of one of its endpoints for a payload.
        is_flat: whether all leaves are one vector.
    """

    def __init__(self, component: LocalComponent, ask: Ask, *, is_flat: bool) -> None:
        self._component = component
        self._compute = ask
        self._limits = component.config.limits
        self._is_flat = is_flat
        self._document = Document(component.openapi_schema)
        self._shapes: LRUCache[Any, Shapes] = LRUCache(64)

    def info(self, body: Mapping[str, Any]) -> bytes:
        """What the model can do; the facts beyond the protocol are ignored by its clients."""
        endpoints = self._component.available_endpoints
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
        support = {route: endpoint in endpoints for route, endpoint in ENDPOINT_OF.items()}
        return orjson.dumps({"support": support, **facts})

    def input_sizes(self, body: Mapping[str, Any]) -> bytes:
        """The sizes of the input vectors, and their names."""
        return self._sizes(self.shapes(_config(body)).inputs, "input")

    def output_sizes(self, body: Mapping[str, Any]) -> bytes:
        """The same of the output vectors."""
        return self._sizes(self.shapes(_config(body)).outputs, "output")

    def _sizes(self, groups: Sequence[Group], side: str) -> bytes:
        sizes = [group.size for group in groups]
        names = [", ".join(group.paths) for group in groups]
        return orjson.dumps({f"{side}Sizes": sizes, f"{side}Names": names})

    def shapes(self, config: Any) -> Shapes:
        """The vectors for a config; asked for once."""
        key = _key(config)
        found = self._shapes.get(key)
        if found is None:
            tree = _inputs_of(self._document, config, self._limits)
            inputs = self._document.leaves("inputs", tree)
            outputs = self._document.leaves("outputs", self._abstract_outputs(tree, inputs))
            empty = set_at_path(tree, dict.fromkeys((leaf.path for leaf in inputs), 0.0))
            found = Shapes(self._grouped(inputs), self._grouped(outputs), empty)
            if len(key) <= _MAX_CONFIG_BYTES:
                self._shapes.put(key, found)
        return found

    def _grouped(self, leaves: Sequence[Leaf]) -> tuple[Group, ...]:
        leaves = real_leaves(leaves, "UM-Bridge")
        return (Group(leaves),) if self._is_flat else tuple(Group([leaf]) for leaf in leaves)

    def _abstract_outputs(self, tree: Any, inputs: Sequence[Leaf]) -> Any:
        """The outputs as shapes; those of one evaluation where the component cannot tell them."""
        if "abstract_eval" not in self._component.available_endpoints:
            return self._ask("apply", {"inputs": _copied(tree)})
        abstract = {leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype} for leaf in inputs}
        return self._ask("abstract_eval", {"inputs": set_at_path(tree, abstract)})

    def evaluate(self, body: Mapping[str, Any]) -> bytes:
        """The output vectors at some inputs."""
        return self.evaluated(body, self._ask("apply", self.evaluation(body)))

    def evaluation(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of `apply` for a request of `Evaluate`."""
        return {"inputs": self._at(self.shapes(_config(body)), body)}

    def evaluated(self, body: Mapping[str, Any], outputs: Any) -> bytes:
        """The answer to it, from the result of `apply`."""
        groups = self.shapes(_config(body)).outputs
        found = (group.joined(partial(get_at_path, outputs)) for group in groups)
        return b'{"output":[%b]}' % b",".join(map(_written, found))

    def gradient(self, body: Mapping[str, Any]) -> bytes:
        """sensᵀ · ∂(output vector)/∂(input vector)."""
        return self._product(VJP, body, "sens")

    def apply_jacobian(self, body: Mapping[str, Any]) -> bytes:
        """∂(output vector)/∂(input vector) · vec."""
        return self._product(JVP, body, "vec")

    def _product(self, kind: DerivativeKind, body: Mapping[str, Any], name: str) -> bytes:
        """The product with the vector that a request has under a name."""
        shapes = self.shapes(_config(body))
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
        return _vector(sides[answer], self._ask(kind.endpoint, request))

    def apply_hessian(self, body: Mapping[str, Any]) -> bytes:
        """∂/∂(second input) (sensᵀ · ∂(output)/∂(first input)) · vec."""
        shapes = self.shapes(_config(body))
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
        return _vector(first, self._ask(HVP.endpoint, request))

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
        # A copy: the author may change what is not an array too, and the tree is used again.
        return set_at_path(_copied(shapes.tree), values)

    def _ask(self, endpoint: str, payload: Mapping[str, Any]) -> Any:
        """The result of an endpoint of the component.

        Raises:
            RefusedError: it has no such endpoint.
            Exception: what the call raises.
        """
        if endpoint not in self._component.available_endpoints:
            raise RefusedError(
                "UnsupportedFeature", f"{self._component.name} has no endpoint {endpoint}."
            )
        return self._compute(endpoint, payload)


class UmbridgeModels:
    """Answers the requests of the protocol for one component, in a worker.

    Args:
        component: the component.
        ask: the result of one of its endpoints for a payload.
    """

    def __init__(self, component: LocalComponent, ask: Ask) -> None:
        self._limits = component.config.limits
        self._models = {
            name: Model(component, ask, is_flat=is_flat)
            for name, is_flat in zip(model_names(component.name), (False, True), strict=True)
        }

    def answer(self, call: Call) -> Reply:
        """The reply to a call of one of `ANSWERS`.

        Raises:
            Exception: what the component raises; `as_umbridge` makes an error of the protocol of its reply.
        """
        try:
            model, body = self._read(call, self._limits)
            return Reply(200, "application/json", [ANSWERS[call.endpoint](model, body)])
        except RefusedError as error:
            return refusal(error.kind, str(error), error.status)

    def evaluation(self, call: Call, limits: Limits) -> dict[str, Any]:
        """The payload of `apply` for a call of `Evaluate` that is merged with others.

        Raises:
            InputError: it cannot be merged; alone it says what is wrong.
        """
        try:
            model, body = self._read(call, limits)
            return model.evaluation(body)
        except RefusedError as error:
            raise InputError(str(error), code="invalid_input") from error

    def evaluated(self, call: Call, outputs: Any) -> Reply:
        """The reply to it, from its part of the result."""
        model, body = self._read(call, self._limits)
        return Reply(200, "application/json", [model.evaluated(body, outputs)])

    def _read(self, call: Call, limits: Limits) -> tuple[Model, Mapping[str, Any]]:
        body = _parse(call.body, limits)
        return self._models[named_model(body, self._models)], body


ANSWERS: Mapping[str, Callable[[Model, Mapping[str, Any]], bytes]] = {
    "ModelInfo": Model.info,
    "InputSizes": Model.input_sizes,
    "OutputSizes": Model.output_sizes,
    EVALUATE: Model.evaluate,
    "Gradient": Model.gradient,
    "ApplyJacobian": Model.apply_jacobian,
    "ApplyHessian": Model.apply_hessian,
}
"""The routes with a body, and what each says about a model."""


def model_names(component: str) -> tuple[str, str]:
    """The two models of a component."""
    name = url_name(component)
    return name, f"{name}{_FLAT}"


def named_model(body: Mapping[str, Any], names: Iterable[str]) -> str:
    """The model that a request names.

    Raises:
        RefusedError: it is none of these (`ModelNotFound`).
    """
    name = body.get("name")
    if not isinstance(name, str) or name not in names:
        raise RefusedError(
            "ModelNotFound", f"There is no model {_shown(name)}; there are {', '.join(names)}."
        )
    return name


def refusal(kind: str, message: str, status: int) -> Reply:
    """An error of the protocol."""
    content = {"error": {"type": kind, "message": message[:_MAX_MESSAGE]}}
    return Reply(status, "application/json", [orjson.dumps(content)])


def as_umbridge(reply: Reply) -> Reply:
    """A reply in the protocol's form: of a problem, only its message is told."""
    if reply.content_type != PROBLEM:
        return reply
    message = str(orjson.loads(reply.pieces[0])["message"])
    if reply.status >= 500:
        return refusal("ModelError", message, 500)
    # What the caller sent wrongly is 400 in this protocol; too much of it is not.
    return refusal("InvalidInput", message, 400 if reply.status == 422 else reply.status)


def parse_object(content: Any, limits: Limits) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        InputError: it is something else.
    """
    body = parse_json(content if isinstance(content, bytes) else bytes(content), limits)
    if not isinstance(body, dict):
        raise InputError("Expected the body to be a JSON object.", code="json_invalid")
    return body


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
    """The same tree with containers and arrays of its own."""
    if isinstance(tree, dict):
        return {name: _copied(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_copied(value) for value in tree]
    return np.array(tree) if isinstance(tree, np.ndarray) else tree


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


def _parse(content: Any, limits: Limits) -> dict[str, Any]:
    """A body with arrays in place of its vectors."""
    body = parse_object(content, limits)
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
