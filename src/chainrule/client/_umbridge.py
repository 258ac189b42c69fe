"""A model behind a UM-Bridge server as a component: `Component.from_umbridge`.

The model is asked once for its sizes and for the derivatives that it offers. Its vectors are the inputs and
outputs `input_0`, `input_1`, …, or have the names of leaves where a server of ours tells them. Derivatives
that it does not offer are derived from the others, as for any component.

UM-Bridge has one (output, input) pair per request: a product over several of them is a sum of requests. Its
own server writes not-a-numbers as Python does (`nan`), which is not JSON; they are understood here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, Field, create_model

from chainrule._errors import CapabilityError, ComponentError, InputError, TransportError
from chainrule.client._connections import ConnectionPool, Deadline, Request, Verify, parse_url
from chainrule.client._transport import Ticket, check_seconds
from chainrule.runtime import Array, Differentiable, LocalComponent, load_component

_BARE = re.compile(r"(?<![\"\w])(-?)(nan|inf)\b")
_WORDS = {"nan": "NaN", "inf": "Infinity"}
_MAX_BYTES = 1 << 30


class Server:
    """A UM-Bridge server.

    Args:
        url: of the server, with a path where the protocol is mounted below one.
        timeout: seconds that a request may take.
        verify: as in `Component.from_url`.
    """

    def __init__(self, url: str, *, timeout: float | None, verify: Verify) -> None:
        check_seconds("timeout", timeout)
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
        request = Request(method, f"{self._base}/{route}", self._headers, pieces, _MAX_BYTES)
        answer = self._pool.exchange(request, Ticket(), Deadline(self._timeout_s))
        text = bytes(answer.body).decode("utf-8", "replace")
        found = _parsed(text)
        if not isinstance(found, dict):
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
        raise cls(f"The model at {self.place} says {kind}: {message}", details={"type": kind})


def _parsed(text: str) -> Any:
    """JSON, or what the protocol's own server writes in its place; `None` for anything else."""
    for attempt in (text, _BARE.sub(lambda m: m[1] + _WORDS[m[2]], text)):
        try:
            return json.loads(attempt)
        except ValueError:
            continue
    return None


@dataclass(frozen=True)
class Vectors:
    """The vectors of one side of a model: field → its index and size."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any], side: str) -> Vectors:
        """The vectors that a server tells of."""
        sizes = tuple(map(int, answer[f"{side}Sizes"]))
        told = answer.get(f"{side}Names", ())
        names = [re.sub(r"\W+", "_", str(name)).strip("_") for name in told]
        are_fields = len(names) == len(sizes) and all(
            name.isidentifier() and not name.startswith(("_", "model_")) for name in names
        )
        if not are_fields or len(set(names)) < len(names) or "config" in names:
            names = [f"{side}_{k}" for k in range(len(sizes))]
        return cls(tuple(names), sizes)

    def schema(self, name: str, *, differentiable: bool, **more: Any) -> type[BaseModel]:
        """A model with one array per vector."""
        fields: dict[str, Any] = {}
        for field, size in zip(self.names, self.sizes, strict=True):
            kind = Array.__class_getitem__(((size,), "float64"))
            fields[field] = (
                Differentiable.__class_getitem__(kind) if differentiable else kind,
                ...,
            )
        return create_model(name, **fields, **more)


class _Model:
    """The endpoints of one model."""

    def __init__(self, server: Server, name: str, inputs: Vectors, outputs: Vectors) -> None:
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


def open_model(
    url: str,
    name: str | None,
    *,
    config: Mapping[str, Any] | None,
    timeout: float | None,
    verify: Verify,
) -> LocalComponent:
    """The component of a model; arguments as in `Component.from_umbridge`."""
    server = Server(url, timeout=timeout, verify=verify)
    info = server.ask("Info")
    models = info.get("models")
    if not isinstance(models, list):
        raise TransportError(f"{server.place} is not a UM-Bridge server.", code="not_umbridge")
    name = _chosen(name, models, server.place)
    support = server.ask("ModelInfo", {"name": name}).get("support", {})
    asked = {"name": name, "config": dict(config or {})}
    inputs = Vectors.read(server.ask("InputSizes", asked), "input")
    outputs = Vectors.read(server.ask("OutputSizes", asked), "output")
    model = _Model(server, name, inputs, outputs)
    offered = {e: getattr(model, e) for route, e in _ENDPOINTS.items() if support.get(route)}
    module = ModuleType(re.sub(r"\W", "_", name) or "model")
    module.__doc__ = f"The UM-Bridge model {name} at {server.place}."
    settings = (dict[str, Any], Field(asked["config"], description="handed to the model as it is"))
    vars(module).update(
        InputSchema=inputs.schema("InputSchema", differentiable=bool(offered), config=settings),
        OutputSchema=outputs.schema("OutputSchema", differentiable=bool(offered)),
        apply=model.apply,
        **offered,
    )
    return load_component(module)


def _chosen(name: str | None, models: Sequence[str], place: str) -> str:
    if name is None and len(models) == 1:
        return models[0]
    if name is None or name not in models:
        raise CapabilityError(
            f"There is no model {name!r} at {place}; there are {', '.join(models)}.",
            code="model_unknown",
        )
    return name
