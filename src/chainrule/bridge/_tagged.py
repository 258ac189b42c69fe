"""Values that a component sows, from under a host call.

A component that is part of the caller's program needs nothing of this: its sows are the caller's. One that is
called on the host is *opened* while a capture asks for its tag: it becomes a function

    (inputs, probes) -> (outputs, tagged values)

where a probe is added to each tagged value. Probes are zero. The tagged values come out with their tangents,
and are sown; the cotangent of a probe is that of its value, and is sown where the probe goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._endpoints import JVP, VJP, DerivativeKind
from chainrule._errors import CapabilityError
from chainrule.bridge._component_target import ComponentTarget
from chainrule.bridge._target import Target
from chainrule.bridge._types import ArrayType, is_inexact, take_apart
from chainrule.harvest.internal import sow_part

_INPUTS, _PROBES, _OUTPUTS, _VALUES = "inputs", "probes", "outputs", "tagged"
Types = dict[str, Any]
"""Name → tree of array types."""


def open_target(target: Target, tag: str) -> OpenedTarget:
    """The target with its tagged values as further outputs; the same one every time.

    Raises:
        CapabilityError: it has no endpoint that gives them.
    """
    if not isinstance(target, ComponentTarget) or "tagged_intermediates" not in target.endpoints:
        raise CapabilityError(
            f"{target.name} has no endpoint 'tagged_intermediates', so its tagged values cannot be asked "
            "for. Components made from JAX functions have it when served by Chainrule; any other author can "
            "write it. Leave `intermediates` out to capture what is around the component.",
            code="endpoint_missing",
        )
    return target.remembered("opened", tag, lambda: OpenedTarget(target, tag))


def sow_cotangents(target: OpenedTarget, inputs: Any, types: Types) -> dict[str, Any]:
    """The inputs of an opened target: those of the component, and probes that sow their cotangents."""
    anchor = _zero_that_depends_on(inputs)
    probes = []
    for name, tree in types.items():
        leaves, structure = _flatten(tree)
        zeros = [_zero(anchor, leaf) for leaf in leaves]
        sown = sow_part(jax.tree.unflatten(structure, zeros), name, target.tag, "backward")
        probes += jax.tree.leaves(sown)
    return {_INPUTS: inputs, _PROBES: probes}


def sow_values(target: OpenedTarget, answer: Mapping[str, Any], types: Types) -> Any:
    """Sow the values that an opened target gave, and return the component's outputs."""
    values = iter(answer[_VALUES])
    for name, tree in types.items():
        leaves, structure = _flatten(tree)
        value = jax.tree.unflatten(structure, [next(values) for _ in leaves])
        sow_part(value, name, target.tag, "forward")
    return answer[_OUTPUTS]


class OpenedTarget(Target):
    """A component with probes among its inputs and tagged values among its outputs."""

    def __init__(self, component: ComponentTarget, tag: str) -> None:
        self.component, self.tag = component, tag
        self.name = component.name
        products = {kind.endpoint for kind in (JVP, VJP)} & component.endpoints
        self.endpoints = frozenset({"apply", "abstract_eval", *products})
        self.max_concurrency = component.max_concurrency
        self.is_remote = component.is_remote
        self.runs_jax = component.runs_jax

    def types(self, inputs: Any) -> Types:
        """What is tagged, for inputs with something that has a shape and a dtype at every array."""
        skeleton, arrays = take_apart(inputs, lambda path, leaf: hasattr(leaf, "dtype"))
        types = tuple(ArrayType(tuple(a.shape), np.dtype(a.dtype)) for a in arrays)
        return self.remembered(
            "types",
            skeleton.signature(types),
            lambda: self.component.tagged_types(skeleton.build(types), self.tag),
        )

    def apply(self, inputs: Any) -> Any:
        """Outputs, and tagged values."""
        given = inputs[_INPUTS]
        found = self.component.tagged(given, self.tag)
        return {_OUTPUTS: self.component.apply(given), _VALUES: _leaves_of(found, "primal")}

    def abstract_eval(self, inputs: Any) -> Any:
        """Types of both."""
        given = inputs[_INPUTS]
        types = self.types(given)
        leaves = [leaf for tree in types.values() for leaf in _flatten(tree)[0]]
        return {_OUTPUTS: self.component.abstract_eval(given), _VALUES: leaves}

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
        """The component's derivative, and that of the tagged values.

        Tangents of probes and cotangents of tagged values are ignored: they are zero, because only `sow`
        sees either.
        """
        (vector,) = vectors
        given = inputs[_INPUTS]
        sides = (_INPUTS, _OUTPUTS) if kind is JVP else (_OUTPUTS, _INPUTS)
        inner = {_inner(path): v for path, v in vector.items() if path.startswith(sides[0])}
        asked = input_paths if kind is VJP else output_paths
        wanted = [path for path in asked if path.startswith(sides[1])]
        answer = dict.fromkeys(asked)
        if inner and wanted:
            sources, results = list(inner), [_inner(path) for path in wanted]
            paths = (sources, results) if kind is JVP else (results, sources)
            found = self.component.derivative(kind, given, *paths, [inner])
            answer |= {path: found[_inner(path)] for path in wanted}
        answer |= self._tagged_derivative(kind, given, inner)
        return {path: answer[path] for path in asked}

    def _tagged_derivative(
        self, kind: DerivativeKind, given: Any, vector: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        mode, place = ("tangent", _VALUES) if kind is JVP else ("cotangent", _PROBES)
        found = self.component.tagged(given, self.tag, **{f"{mode}_vector": vector})
        leaves = _leaves_of(found, mode)
        if kind is VJP:
            leaves = [leaf for leaf in leaves if is_inexact(leaf.dtype)]
        return {f"{place}.[{i}]": leaf for i, leaf in enumerate(leaves)}

    def is_differentiable_input(self, path: str) -> bool:
        """Probes are, and what the component says."""
        return path.startswith(_PROBES) or self.component.is_differentiable_input(_inner(path))

    def is_differentiable_output(self, path: str) -> bool:
        """Tagged values are, and what the component says."""
        return path.startswith(_VALUES) or self.component.is_differentiable_output(_inner(path))

    def is_array_input(self, path: str) -> bool:
        """As the component says."""
        return path.startswith(_PROBES) or self.component.is_array_input(_inner(path))

    def is_plain_input(self, path: str) -> bool:
        """As the component says."""
        return not path.startswith(_PROBES) and self.component.is_plain_input(_inner(path))

    def input_dtype(self, path: str) -> np.dtype[Any] | None:
        """As the component says."""
        return None if path.startswith(_PROBES) else self.component.input_dtype(_inner(path))


def _inner(path: str) -> str:
    """A path of the component, from one of the opened target."""
    return path.partition(".")[2]


def _flatten(tree: Any) -> tuple[list[ArrayType], Any]:
    return jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, ArrayType))


def _leaves_of(found: Mapping[str, Mapping[str, Any]], mode: str) -> list[np.ndarray]:
    """All arrays of one mode; zeros where there is none, as for integers."""
    leaves: list[np.ndarray] = []
    structure: Any
    for entry in found.values():
        values, structure = jax.tree.flatten(entry["primal"])
        given = structure.flatten_up_to(entry[mode]) if mode in entry else [None] * len(values)
        pairs = zip(values, given, strict=True)
        leaves += [np.zeros_like(v) if g is None else np.asarray(g) for v, g in pairs]
    return leaves


def _zero_that_depends_on(inputs: Any) -> Any:
    """Zero, in a way that gives it a tangent whenever an input has one; XLA removes the sums."""
    leaves = [leaf for leaf in jax.tree.leaves(inputs) if hasattr(leaf, "dtype")]
    floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    total = sum((jnp.sum(jnp.real(leaf)).astype(float) for leaf in floats), jnp.zeros(()))
    # Selected, not multiplied by zero: 0 · inf and 0 · nan would be nan, in the value and in its tangent.
    return jax.lax.select(np.False_, total, jnp.zeros_like(total))


def _zero(anchor: Any, like: ArrayType) -> Any:
    if not is_inexact(like.dtype):
        return None
    return jnp.broadcast_to(anchor.astype(like.dtype), like.shape)
