"""A model behind a UM-Bridge server as a component: `Component.from_umbridge`.

The model is asked once for its sizes and for the derivatives that it offers. Its vectors are the inputs and
outputs `input_0`, `input_1`, …, or have the names of leaves where a server of ours tells them. Derivatives
that it does not offer are derived from the others, as for any component, or are finite differences.

UM-Bridge has one (output, input) pair per request: a product over several of them is a sum of requests. Its
own server writes not-a-numbers as Python does (`nan`), which is not JSON; they are understood here.

A server may be broken, or hostile: what it answers is bounded, parsed or not, and checked before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, Field, create_model

from chainrule._codec import DEFAULT_LIMITS, parse_json
from chainrule._doors import as_identifier
from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    InputError,
    LimitError,
    TransportError,
)
from chainrule._visible import visible
from chainrule.client._connections import ConnectionPool, Deadline, Request, Verify, parse_url
from chainrule.client._transport import Ticket, check_count, check_seconds
from chainrule.runtime import Array, Differentiable, LocalComponent, load_component
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)

_BARE = re.compile(rb"(?<![\"\w])(-?)(nan|inf)\b")
_WORDS = {b"nan": b"NaN", b"inf": b"Infinity"}
_MAX_MESSAGE = 2000
_MAX_VECTORS = 10_000


class UmbridgeServer:
    """A UM-Bridge server.

    Args:
        url: of the server, with a path where the protocol is mounted below one.
        timeout: seconds that a request may take.
        verify: as in `Component.from_url`.
        max_answer_bytes: the same.
    """

    def __init__(
        self, url: str, *, timeout: float | None, verify: Verify, max_answer_bytes: int
    ) -> None:
        check_seconds("timeout", timeout)
        check_count("max_answer_bytes", max_answer_bytes, least=1)
        self._max_bytes = max_answer_bytes
        origin, self._base = parse_url(url, verify)
        self._pool = ConnectionPool(origin)
        self._headers = {"Host": str(origin), "Content-Type": "application/json"}
        self._timeout_s = timeout
        self.place = f"{origin}{self._base}"

    def ask(self, route: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the server answers.

        Raises:
            InputError: it refuses the request.
            ComponentError: the model failed.
            TransportError: no answer came, or none of this protocol (`not_umbridge`).
        """
        pieces = (
            [] if content is None else [orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)]
        )
        method = "GET" if content is None else "POST"
        request = Request(method, f"{self._base}/{route}", self._headers, pieces, self._max_bytes)
        answer = self._pool.exchange(request, Ticket(), Deadline(self._timeout_s))
        found = _parsed(bytes(answer.body))
        if not isinstance(found, dict):
            text = visible(bytes(answer.body[:1000]).decode("utf-8", "replace"))
            first = text.strip().splitlines()[0][:200] if text.strip() else "an empty body"
            if answer.status >= 500:
                raise ComponentError(f"The model at {self.place} failed ({answer.status}): {first}")
            raise TransportError(
                f"{self.place}/{route} does not answer as a UM-Bridge server ({answer.status}): {first}",
                code="not_umbridge",
            )
        if "error" in found:
            self._raise(found["error"], answer.status)
        return found

    def _raise(self, error: Any, status: int) -> None:
        kind, message = (
            (error.get("type"), error.get("message")) if isinstance(error, dict) else ("", error)
        )
        is_callers = kind in ("InvalidInput", "ModelNotFound", "UnsupportedFeature")
        cls = InputError if is_callers and status < 500 else ComponentError
        said = visible(f"{kind}: {message}"[:_MAX_MESSAGE])
        raise cls(f"The model at {self.place} says {said}", details={"type": str(kind)[:80]})

    def require(self, is_so: bool, expected: str) -> None:
        """Refuse an answer that is not as the protocol says."""
        if not is_so:
            raise TransportError(
                f"{self.place} does not answer as a UM-Bridge server: expected {expected}.",
                code="not_umbridge",
            )


def _parsed(content: bytes) -> Any:
    """JSON, or what the protocol's own server writes in its place; `None` for anything else.

    Raises:
        TransportError: it would take too much memory (`answer_too_large`).
    """
    for read in (lambda: content, lambda: _BARE.sub(lambda m: m[1] + _WORDS[m[2]], content)):
        try:
            return parse_json(read(), DEFAULT_LIMITS)
        except LimitError as error:
            raise TransportError(error.message, code="answer_too_large") from error
        except ChainruleError:
            continue
    return None


@dataclass(frozen=True)
class Vectors:
    """The vectors of one side of a model: field → its index and size."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def read(cls, server: UmbridgeServer, side: str, asked: Mapping[str, Any]) -> Vectors:
        """The vectors that a server tells of."""
        answer = server.ask(f"{side.capitalize()}Sizes", asked)
        sizes: Any = answer.get(f"{side}Sizes")
        told: Any = answer.get(f"{side}Names") or ()
        server.require(
            isinstance(sizes, list)
            and len(sizes) <= _MAX_VECTORS
            and all(type(size) is int and 0 <= size < 2**48 for size in sizes)
            and isinstance(told, (list, tuple)),
            f"{side}Sizes to be a list of at most {_MAX_VECTORS} sizes",
        )
        names = [as_identifier(str(name)) for name in told]
        are_fields = len(names) == len(sizes) and all(
            name.isidentifier() and not name.startswith(("_", "model_")) for name in names
        )
        if not are_fields or len(set(names)) < len(names) or "config" in names:
            names = [f"{side}_{k}" for k in range(len(sizes))]
        return cls(tuple(names), tuple(sizes))

    def schema(self, name: str, **more: Any) -> type[BaseModel]:
        """A model with one array per vector."""
        fields: dict[str, Any] = {}
        for field, size in zip(self.names, self.sizes, strict=True):
            kind = Array.__class_getitem__(((size,), "float64"))
            fields[field] = (Differentiable.__class_getitem__(kind), ...)
        return create_model(name, **fields, **more)


class _Model:
    """The endpoints of one model."""

    def __init__(
        self, server: UmbridgeServer, name: str, inputs: Vectors, outputs: Vectors
    ) -> None:
        self._server = server
        self._name = name
        self._inputs = inputs
        self._outputs = outputs

    def apply(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs."""
        found = self._ask("Evaluate", inputs)
        if not isinstance(found, list) or len(found) != len(self._outputs.names):
            raise ComponentError(
                f"Expected {len(self._outputs.names)} output vectors from {self._name}; found "
                f"{len(found) if isinstance(found, list) else 'none'}.",
                code="bad_output",
            )
        return {n: np.asarray(v, float) for n, v in zip(self._outputs.names, found, strict=True)}

    def vector_jacobian_product(
        self, inputs: Any, vjp_inputs: Any, vjp_outputs: Any, cotangent_vector: Any
    ) -> dict[str, Any]:
        """One request for every pair of an output and an input."""
        return {
            into: sum(
                self._product("Gradient", inputs, outWrt=of, inWrt=into, sens=cotangent_vector[of])
                for of in vjp_outputs
            )
            for into in vjp_inputs
        }

    def jacobian_vector_product(
        self, inputs: Any, jvp_inputs: Any, jvp_outputs: Any, tangent_vector: Any
    ) -> dict[str, Any]:
        """The same in the other direction."""
        return {
            of: sum(
                self._product(
                    "ApplyJacobian", inputs, outWrt=of, inWrt=into, vec=tangent_vector[into]
                )
                for into in jvp_inputs
            )
            for of in jvp_outputs
        }

    def hessian_vector_product(
        self,
        inputs: Any,
        hvp_inputs: Any,
        hvp_outputs: Any,
        cotangent_vector: Any,
        tangent_vector: Any,
    ) -> dict[str, Any]:
        """One request for every output and pair of inputs."""
        return {
            first: sum(
                self._product(
                    "ApplyHessian", inputs, outWrt=of, inWrt1=first, inWrt2=second,
                    sens=cotangent_vector[of], vec=tangent_vector[second],
                )
                for of in hvp_outputs
                for second in hvp_inputs
            )
            for first in hvp_inputs
        }  # fmt: skip

    def _product(self, route: str, inputs: Any, **arguments: Any) -> np.ndarray:
        sent: dict[str, Any] = {}
        for key, value in arguments.items():
            if key in ("sens", "vec"):
                sent[key] = np.asarray(value, float).tolist()
            else:
                names = (self._outputs if key == "outWrt" else self._inputs).names
                sent[key] = names.index(value)
        return np.asarray(self._ask(route, inputs, **sent), float)

    def _ask(self, route: str, inputs: Any, **arguments: Any) -> Any:
        vectors = [np.asarray(getattr(inputs, name), float).tolist() for name in self._inputs.names]
        content = {"name": self._name, "input": vectors, "config": inputs.config, **arguments}
        return self._server.ask(route, content).get("output")


_ENDPOINTS = {
    "Gradient": "vector_jacobian_product",
    "ApplyJacobian": "jacobian_vector_product",
    "ApplyHessian": "hessian_vector_product",
}
_DIFFERENCES: Mapping[str, Callable[..., Any]] = {
    "jacobian": finite_difference_jacobian,
    "jacobian_vector_product": finite_difference_jvp,
    "vector_jacobian_product": finite_difference_vjp,
}


def component_of_model(
    url: str,
    name: str | None,
    *,
    config: Mapping[str, Any] | None,
    derivatives: Literal["server", "finite"],
    timeout: float | None,
    verify: Verify,
    max_answer_bytes: int,
) -> LocalComponent:
    """The component of a model; arguments as in `Component.from_umbridge`."""
    if derivatives not in ("server", "finite"):
        raise InputError(
            f"Expected derivatives='server' or 'finite'; found {derivatives!r}.", code="bad_option"
        )
    server = UmbridgeServer(url, timeout=timeout, verify=verify, max_answer_bytes=max_answer_bytes)
    models: Any = server.ask("Info").get("models")
    is_list = isinstance(models, list) and all(isinstance(model, str) for model in models)
    server.require(is_list, "models to be a list of names")
    name = _chosen(name, models, server.place)
    support = server.ask("ModelInfo", {"name": name}).get("support", {})
    server.require(isinstance(support, dict), "support to be an object")
    asked = {"name": name, "config": dict(config or {})}
    inputs, outputs = (Vectors.read(server, side, asked) for side in ("input", "output"))
    model = _Model(server, name, inputs, outputs)
    if derivatives == "finite":
        endpoints = {name: partial(made, model.apply) for name, made in _DIFFERENCES.items()}
    else:
        endpoints = {e: getattr(model, e) for route, e in _ENDPOINTS.items() if support.get(route)}
    module = ModuleType(re.sub(r"\W", "_", name) or "model")
    module.__doc__ = f"The UM-Bridge model {name} at {server.place}."
    settings = (dict[str, Any], Field(asked["config"], description="handed to the model as it is"))
    vars(module).update(
        InputSchema=inputs.schema("InputSchema", config=settings),
        OutputSchema=outputs.schema("OutputSchema"),
        apply=model.apply,
        **endpoints,
    )
    return load_component(module)


def _chosen(name: str | None, models: Sequence[str], place: str) -> str:
    if name is None and len(models) == 1:
        return models[0]
    if name is None or name not in models:
        raise CapabilityError(
            f"There is no model {name!r} at {place}; there are "
            f"{visible(', '.join(models)[:_MAX_MESSAGE])}.",
            code="model_unknown",
        )
    return name
