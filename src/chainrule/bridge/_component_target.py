"""Components as targets: ours in this process, ours over HTTP, and real Tesseracts, by what they offer.

A tree alone does not say whether `a` in `params.a` is a field or a key. A schema does, by the pattern
`params.{}`, and endpoints then expect `params.{a}`: `_Patterns` finds the pattern of a path and its spelling.
Arrays that the caller left out have their shapes from the schema and their values from its defaults.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import PydanticCustomError

from chainrule._codec import dtype_from_name
from chainrule._describe import describe_value
from chainrule._device import own_copy
from chainrule._endpoints import DERIVATIVES, JACOBIAN, JVP, VJP, DerivativeKind, Side, to_abstract
from chainrule._errors import ComponentError, DefinitionError
from chainrule._lru_cache import LRUCache
from chainrule._paths import Key, join_path, split_path
from chainrule.bridge._target import Target
from chainrule.bridge._types import ArrayType, read_types
from chainrule.runtime import ArraySpec, LocalComponent
from chainrule.runtime.internal import Document, array_leaves, fit_abstract

# Calls under way at once to a component elsewhere that does not say how many it takes.
_REMOTE_CONCURRENCY = 32
_INDEX = re.compile(r"\[\d+\]")


_MEASURED = {
    "apply": "apply",
    JVP.endpoint: "jvp",
    VJP.endpoint: "vjp",
    JACOBIAN.endpoint: "jacobian",
}


class ComponentTarget(Target):
    """A component behind the methods that all of them share: `apply`, `jacobian`, …, `abstract_eval`."""

    abstract_advice = (
        "Two ways out. Give every array of the outputs its shape in the schema, in numbers or in names of "
        'dimensions that the inputs have: `y: Array[("n",), Float64]` in the OutputSchema, where the '
        'InputSchema has `x: Array[("n",), Float64]`. Or write the endpoint, for example `def '
        'abstract_eval(abstract_inputs): return {"y": abstract_inputs.x}`, which says that `y` has the shape '
        "and dtype of `x`. Without changing the component: `infer_by_evaluation=True` allows one real "
        "evaluation per signature."
    )

    def __init__(self, component: Any, *, derives: bool = True) -> None:
        self._component = component
        self._takes_arrays = False
        self.name = getattr(component, "name", None) or type(component).__name__
        self.framework = getattr(component, "framework", None)
        transport = getattr(component, "transport", None)  # the handle of a peer has none
        self.address = getattr(transport, "place", self.address)
        self.endpoints = frozenset(component.available_endpoints)
        self.batching = getattr(component, "batching", None)
        self.batched_endpoints = _endpoints_that(component, "batches")
        self.residual_endpoints = _endpoints_that(component, "residuals")
        self.device_library = _device_library(component)
        self.device_endpoints = _endpoints_that(component, "on_device")
        self.prices = getattr(component, "prices", None) or {}
        self._sparsity = getattr(component, "sparsity", None) or {}
        self.jax_function = getattr(component, "jax_function", None)
        self.jax_derivatives = getattr(component, "jax_derivatives", True)
        self.runs_jax = self.jax_function is not None
        self.is_remote = not _is_local(component)
        self.max_concurrency = _concurrency(component, self.is_remote)
        self._inputs = _Patterns(_differentiable(component, "inputs"))
        self._outputs = _Patterns(_differentiable(component, "outputs"))
        arrays = _array_inputs(component)
        self._arrays, self._tells_arrays = _Patterns(arrays), bool(arrays)
        self.derives = derives
        if not derives:
            self.endpoints -= _derived_endpoints(component)
            self.jax_derivatives = False  # JAX derives what the author did not write

    @cached_property
    def written(self) -> Target:
        """The same component without derived endpoints; JAX does not differentiate it either."""
        return ComponentTarget(self._component, derives=False)

    def apply(self, inputs: Any) -> Any:
        """Ask `apply`."""
        return self._ask_endpoint("apply", inputs=inputs)

    def abstract_eval(self, inputs: Any) -> Any:
        """Ask `abstract_eval`."""
        return read_types(self._component.abstract_eval(to_abstract(inputs)))

    def evaluations(self, kind: DerivativeKind, n: int, m: int) -> int:
        """What our own components say about themselves; a peer's are taken to be the author's."""
        known = getattr(self._component, "capabilities", {}).get(kind.endpoint)
        return 1 if known is None else max(1, known.cost.at(n, m))

    def measure(self) -> Mapping[str, float]:
        """Of this process; what it has not called, as the server of the component has measured it."""
        ask_server = getattr(self._component, "mean_seconds", None)
        served = {} if ask_server is None else ask_server()
        named = {_MEASURED[name]: seconds for name, seconds in served.items() if name in _MEASURED}
        return {**named, **super().measure()}

    def declared_block(self, output: str, given: str) -> Any | None:
        """What the component's `sparsity` says."""
        row = self._sparsity.get(self._outputs.spell(output), {})
        return row.get(self._inputs.spell(given))

    def complete_inputs(self, inputs: Any) -> tuple[Any, dict[str, Any]]:
        """What the schema makes of the inputs; only asked of components in this process."""
        completed, sizes = self._component.read_abstract_inputs(to_abstract(inputs))
        return read_types(completed), sizes

    def fit_output(self, path: str, type_: ArrayType, sizes: dict[str, Any]) -> ArrayType:
        """What the schema makes of an output; only asked of components in this process."""
        found = self._output_arrays.find(path)
        if found is None:
            return type_
        try:
            shape, dtype = fit_abstract(found[1], path, type_.shape, type_.dtype, sizes)
        except PydanticCustomError as problem:
            raise ComponentError(
                f"{self.name} computes something that its own OutputSchema forbids: at {path!r}: "
                f"{problem.message()}",
                code="bad_output",
                path=path,
            ) from problem
        return ArrayType(shape, dtype)

    @cached_property
    def _output_arrays(self) -> _Patterns:
        return _Patterns(array_leaves(self._component.output_schema))

    def derivative(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Sequence[Mapping[str, np.ndarray]] = (),
        *,
        batched: bool = False,
    ) -> Mapping[str, Any]:
        """Ask a derivative endpoint, in the schema's spelling of the paths."""
        arguments, spelled = self._write(kind, inputs, input_paths, output_paths, vectors)
        if batched:
            arguments["batched"] = True
        answer = self._ask_endpoint(kind.endpoint, **arguments)
        return _rename(answer, spelled)

    def prepare(
        self,
        kind: DerivativeKind | None,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Sequence[Mapping[str, Any]],
        arrays: Sequence[Any],
    ) -> Callable[[Sequence[Any]], tuple[Any, bool]] | None:
        """Let a component in this process validate the request once."""
        if not isinstance(self._component, LocalComponent):
            return None
        if kind is None:
            return self._component.prepare("apply", {"inputs": inputs}, arrays)
        arguments, spelled = self._write(kind, inputs, input_paths, output_paths, vectors)
        prepared = self._component.prepare(kind.endpoint, arguments, arrays)
        if prepared is None:
            return None

        def call(others: Sequence[Any]) -> tuple[Any, bool]:
            answer, is_known = prepared(others)
            return _rename(answer, spelled), is_known

        return call

    def _write(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Sequence[Mapping[str, Any]],
    ) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """The arguments of a derivative endpoint, and the spelling of the paths in its answer."""
        spelled = {
            "inputs": {path: self._inputs.spell(path) for path in input_paths},
            "outputs": {path: self._outputs.spell(path) for path in output_paths},
        }
        arguments: dict[str, Any] = {
            "inputs": inputs,
            kind.inputs_argument: list(spelled["inputs"].values()),
            kind.outputs_argument: list(spelled["outputs"].values()),
        }
        for vector, values in zip(kind.vectors, vectors, strict=True):
            names = spelled[vector.over]
            arguments[vector.name] = {names[path]: value for path, value in values.items()}
        return arguments, [spelled[side] for side in kind.result_over]

    def _ask_endpoint(self, name: str, **arguments: Any) -> Any:
        """Call an endpoint so that the author's code gets arrays of its own."""
        if isinstance(self._component, LocalComponent):
            copies = not self._takes_arrays
            return self._component.call(name, arguments, copy_inputs=copies, copy_results=False)
        # A peer's component in this process may hand its arguments to its author as they are.
        if not self.is_remote:
            arguments = own_copy(arguments)
        return getattr(self._component, name)(**arguments)

    def tagged(
        self,
        inputs: Any,
        tag: str,
        *,
        tangent_vector: Mapping[str, np.ndarray] | None = None,
        cotangent_vector: Mapping[str, np.ndarray] | None = None,
    ) -> Mapping[str, Mapping[str, Any]]:
        """Ask for tagged values, and their tangents or cotangents."""
        if tangent_vector is not None:
            tangent_vector = {self._inputs.spell(p): v for p, v in tangent_vector.items()}
        if cotangent_vector is not None:
            cotangent_vector = {self._outputs.spell(p): v for p, v in cotangent_vector.items()}
        answer = self._ask_endpoint(
            "tagged_intermediates",
            inputs=inputs,
            tag=tag,
            tangent_vector=tangent_vector,
            cotangent_vector=cotangent_vector,
        )
        return dict(sorted(answer.items()))

    def tagged_types(self, inputs: Any, tag: str) -> dict[str, Any]:
        """Name → tree of types of every tagged value, for inputs with an `ArrayType` at every array."""
        answer = self._component.tagged_intermediates(to_abstract(inputs), tag, abstract=True)
        return {name: read_types(entry["primal"]) for name, entry in sorted(answer.items())}

    def taking_arrays(self) -> Target:
        """Let the author have the arrays of the caller."""
        self.timings  # noqa: B018 - made before the copy, so that both have the same
        twin = copy.copy(self)
        twin._takes_arrays = True
        return twin

    def with_tracers(self) -> Target:
        """The same component behind the functions of its author themselves."""
        # Imported here because it imports JAX, which torch does without.
        from chainrule.bridge._inline import TraceableEndpoints

        twin = copy.copy(self)
        twin._component = endpoints = TraceableEndpoints(self._component)
        twin.endpoints = endpoints.names if self.derives else endpoints.names & self.endpoints
        return twin

    def is_differentiable_input(self, path: str) -> bool:
        """Whether the schema says so."""
        return path in self._inputs

    def is_differentiable_output(self, path: str) -> bool:
        """Whether the schema says so."""
        return path in self._outputs

    def is_array_input(self, path: str) -> bool:
        """Whether the schema declares an array there."""
        return path in self._arrays

    def is_array_output(self, path: str) -> bool:
        """Whether the schema declares an array there; only asked of components in this process."""
        return path in self._output_arrays

    def has_arrays_in(self, path: str, names: Collection[str | int]) -> bool:
        """Whether the schema declares arrays in parts of these names; yes where it does not list its
        arrays."""
        return not self._tells_arrays or self._arrays.has_below(path, names)

    def is_plain_input(self, path: str) -> bool:
        """Whether the schema lists its arrays, and declares something else there."""
        return self._tells_arrays and path not in self._arrays

    @cached_property
    def input_names(self) -> Collection[str] | None:
        """The fields of the inputs' model, if it is one that has no others."""
        if not isinstance(self._component, LocalComponent):
            return _fields_of_document(self._component.openapi_schema, "Apply_InputSchema")
        schema = self._component.input_schema
        if schema.model_config.get("extra") == "allow" or "root" in schema.model_fields:
            return None
        return schema.model_fields.keys()

    def input_dtype(self, path: str) -> np.dtype[Any] | None:
        """The dtype of the schema."""
        found = self._arrays.find(path)
        dtype = None if found is None else found[1]
        return None if dtype is None else dtype_from_name(dtype)


# A target keeps its component alive, so the component must not keep it alive. An entry is found by the
# component's id, which no other object can have as long as the target exists. Compiled programs hold the
# targets they need; the last few are kept for calls outside of `jit`.
_targets: weakref.WeakValueDictionary[int, ComponentTarget] = weakref.WeakValueDictionary()
_recent: LRUCache[int, ComponentTarget] = LRUCache(32)


def as_target(component: Any) -> Target:
    """The target of a component; the same one every time."""
    if isinstance(component, Target):
        return component
    # A handle of a component in this process stands for the component itself.
    component = getattr(component, "local", None) or component
    target = _targets.get(id(component))
    if target is None:
        target = _targets[id(component)] = _make_target(component)
    _recent.put(id(component), target)
    return target


def _make_target(component: Any) -> ComponentTarget:
    try:
        return ComponentTarget(component)
    except (AttributeError, TypeError) as error:
        raise DefinitionError(
            f"Expected a component; found {describe_value(component)}. {_advice(component)}",
            code="not_a_component",
        ) from error


def _advice(component: Any) -> str:
    """How to make a component of something that is none."""
    if isinstance(component, (str, Path)):
        return (
            "Load a file by `chainrule.runtime.load_component`, or connect to a server by "
            "`Component.from_url`."
        )
    if callable(component):
        return (
            "Decorate the function with `@chainrule.component`, or wrap it without a schema by "
            "`chainrule.from_callable`."
        )
    return "A component has `apply`, `available_endpoints` and `openapi_schema`."


def _is_local(component: Any) -> bool:
    """Whether calls run in this process; a peer's handle says so by having no server to describe."""
    return (
        isinstance(component, LocalComponent)
        or getattr(component, "server_capabilities", 0) is None
    )


def _device_library(component: Any) -> Any:
    """What holds the arrays of a component on a GPU: in this process, or in another one of this host."""
    place = getattr(component, "place", None)
    if place is not None:
        return place.library
    transport = getattr(component, "transport", None)  # the handle of a peer has none
    return None if transport is None else transport.device_library()


def _concurrency(component: Any, is_remote: bool) -> int:
    declared = getattr(component, "max_concurrency", None)
    return declared or (_REMOTE_CONCURRENCY if is_remote else 1)


def _endpoints_that(component: Any, what: str) -> frozenset[str]:
    """The endpoints with a capability; only our own components tell."""
    capabilities = getattr(component, "capabilities", {})
    return frozenset(
        name for name, capability in capabilities.items() if getattr(capability, what, False)
    )


def _derived_endpoints(component: Any) -> frozenset[str]:
    """The derivatives that the author did not write; a peer's components report none."""
    capabilities = getattr(component, "capabilities", {})
    names = {kind.endpoint for kind in DERIVATIVES} & capabilities.keys()
    return frozenset(name for name in names if capabilities[name].status == "derived")


def _differentiable(component: Any, side: Side) -> Mapping[str, ArraySpec | Mapping[str, Any]]:
    declared = getattr(component, f"differentiable_{side}", None)
    return Document(component.openapi_schema).differentiable(side) if declared is None else declared


def _dtype_of(spec: ArraySpec | Mapping[str, Any]) -> str | None:
    """Of an array of ours, or of one that another component describes as its document does."""
    return spec.get("dtype") if isinstance(spec, Mapping) else spec.dtype


def _array_inputs(component: Any) -> dict[str, str | None]:
    """Pattern → dtype name of every array among the inputs, `None` where the schema does not say."""
    if isinstance(component, LocalComponent):
        return {path: spec.dtype for path, spec in array_leaves(component.input_schema).items()}
    fields = Document(component.openapi_schema).fields("inputs")
    arrays = [field.path for field in fields if field.is_array]
    dtypes = {path: _dtype_of(spec) for path, spec in _differentiable(component, "inputs").items()}
    # The peer calls all places of a tuple `[]`; its document knows which of them hold arrays.
    peers = {path: _INDEX.sub("[]", path) for path in arrays}
    tuples = {path for place, path in peers.items() if place != path}
    told = {path: dtype for path, dtype in dtypes.items() if path not in tuples}
    return {path: dtypes.get(spelled) for path, spelled in peers.items()} | told


def _rename(answer: Any, levels: Sequence[Mapping[str, str]]) -> Any:
    """Back from the schema's spelling to the tree's, level by level."""
    if not levels:
        return answer
    names, *inner = levels
    return {path: _rename(answer[name], inner) for path, name in names.items()}


class _Patterns:
    """A set of path patterns with a value for each."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._declared = [(pattern.split("."), value) for pattern, value in declared.items()]
        self._known: dict[str, tuple[str, Any] | None] = {}

    def find(self, path: str) -> tuple[str, Any] | None:
        """The schema's spelling of a path and the value of its pattern; `None` if no pattern fits."""
        if path not in self._known:
            self._known[path] = self._search(path)
        return self._known[path]

    def __contains__(self, path: str) -> bool:
        return self.find(path) is not None

    def has_below(self, path: str, names: Collection[str | int]) -> bool:
        """Whether a pattern is one of these names below a path, or goes on from there."""
        segments = split_path(path)
        depth = len(segments)
        return any(
            len(parts) > depth
            and all(map(_fits, segments, parts))
            and any(_fits(name, parts[depth]) for name in names)
            for parts, _ in self._declared
        )

    def spell(self, path: str) -> str:
        """A path as the schema spells it."""
        found = self.find(path)
        return path if found is None else found[0]

    def _search(self, path: str) -> tuple[str, Any] | None:
        segments = split_path(path)
        for parts, value in self._declared:
            if len(parts) == len(segments) and all(map(_fits, segments, parts)):
                spelled = (
                    Key(s) if part == "{}" else s for s, part in zip(segments, parts, strict=True)
                )
                return join_path(*spelled), value
        return None


def _fits(segment: str | int, part: str) -> bool:
    if isinstance(segment, int):
        return part in ("[]", f"[{segment}]")
    return part in ("{}", segment)


def _fields_of_document(document: Mapping[str, Any], model: str) -> Collection[str] | None:
    """The fields of one model of an OpenAPI document; `None` if it takes others, or does not say."""
    schema = document["components"]["schemas"].get(model, {})
    if schema.get("additionalProperties") is not False:
        return None
    return schema.get("properties", {}).keys()
