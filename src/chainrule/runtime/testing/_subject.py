"""A component under test: what it offers, and which of its arrays can be differentiated.

Anything with the endpoint methods will do: a component in this process, a client of a served one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np

from chainrule._codec import decode_tree
from chainrule._describe import describe_value, did_you_mean
from chainrule._endpoints import Side
from chainrule._errors import InputError
from chainrule._trees import expand_pattern, get_at_path, set_at_path
from chainrule.runtime._component._document import Document, complete_inputs
from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._derivatives._sampler import Narrowed


class Differentiable(Protocol):
    """What `check_gradients` needs of a component; derivative endpoints are called when they exist."""

    @property
    def available_endpoints(self) -> Collection[str]:
        """Names of the endpoints."""

    def apply(self, inputs: Any) -> Any:
        """The outputs for some inputs."""


class Subject:
    """One component at one point.

    Args:
        component: the component.
        payload: the inputs, or the body of an `apply` request, `{"inputs": ...}`; arrays encoded or not.
        input_paths: restrict the inputs looked at; all differentiable ones otherwise.
        output_paths: the same for the outputs.

    Attributes:
        inputs: the inputs with NumPy arrays at `input_paths`.
        outputs: what the component answers.
        evaluations: how often `apply` has run.

    Raises:
        InputError: the payload is not a dictionary, or nothing differentiable is left.
    """

    def __init__(
        self,
        component: Any,
        payload: Mapping[str, Any],
        input_paths: Collection[str] | None = None,
        output_paths: Collection[str] | None = None,
    ) -> None:
        self.component = component
        self.evaluations = 0
        tree = _completed(component, decode_tree(_inputs_in(payload)))
        patterns = _patterns(component, "inputs")
        found = {path: patterns[p] for p in patterns for path in expand_pattern(p, tree)}
        self.input_paths = _restrict(found, input_paths, "input")
        try:
            arrays = {
                path: np.asarray(get_at_path(tree, path), dtype=dtype)
                for path, dtype in found.items()
            }
        except (TypeError, ValueError):
            self.apply(tree)  # a component whose schema is not here says what is wrong
            raise
        self.inputs = set_at_path(tree, arrays)
        self.outputs = self.apply(self.inputs)
        produced = [
            path
            for p in _patterns(component, "outputs")
            for path in expand_pattern(p, self.outputs)
        ]
        self.output_paths = _restrict(produced, output_paths, "output")

    @property
    def has_schema(self) -> bool:
        """Whether the component can validate inputs without running."""
        return hasattr(self.component, "read_inputs")

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of input and output elements looked at."""
        inputs = read_arrays(self.inputs, self.input_paths)
        outputs = read_arrays(self.outputs, self.output_paths)
        return Layout.of(inputs).size, Layout.of(outputs).size

    def apply(self, inputs: Any) -> Any:
        """The outputs for some inputs."""
        outputs = self.component.apply(inputs)
        self.evaluations += 1
        return outputs

    def program(self) -> Narrowed:
        """The component as a function of the arrays looked at."""
        return Narrowed(
            self.apply,
            self.inputs,
            self.input_paths,
            self.output_paths,
            keep_precision=True,
            validate=self.validate,
        )

    def validate(self, inputs: Any) -> None:
        """Refuse inputs that the component would refuse.

        Raises:
            InputError: they do not fit the schema; of a component whose schema is not here, `apply` says
                so.
        """
        if self.has_schema:
            self.component.read_inputs({"inputs": inputs})
        else:
            self.apply(inputs)

    def differentiate(self, endpoint: str, *vector: Mapping[str, Any], at: Any = None) -> Any:
        """Call a derivative endpoint over all paths looked at, at the inputs or at others."""
        function = getattr(self.component, endpoint)
        inputs = self.inputs if at is None else at
        return function(inputs, set(self.input_paths), set(self.output_paths), *vector)

    def dtypes(self, side: Side) -> dict[str, np.dtype]:
        """The dtype of every path looked at, on one side."""
        tree, paths = {
            "inputs": (self.inputs, self.input_paths),
            "outputs": (self.outputs, self.output_paths),
        }[side]
        return {path: np.asarray(get_at_path(tree, path)).dtype for path in paths}


def _inputs_in(payload: Any) -> Any:
    """The inputs of a request body, or the inputs themselves."""
    if not isinstance(payload, Mapping):
        raise InputError(
            f"Expected the inputs as a dictionary; found {describe_value(payload)}.",
            code="bad_payload",
        )
    return payload["inputs"] if set(payload) == {"inputs"} else payload


def _completed(component: Any, tree: Any) -> Any:
    """The inputs with the defaults of the component's schema.

    A schema that is here also validates them, and knows that a list is an array. Of a component behind a
    handle its document says the defaults. A component without either is taken at its word.
    """
    has_schema = hasattr(component, "read_inputs") or hasattr(component, "openapi_schema")
    return complete_inputs(component, tree) if has_schema else tree


def _patterns(component: Any, side: Side) -> dict[str, str | None]:
    """Path pattern → dtype of the differentiable arrays of one side."""
    declared = getattr(component, f"differentiable_{side}", None)
    if declared is None:
        declared = Document(component.openapi_schema).differentiable(side)
    return {pattern: spec.dtype for pattern, spec in declared.items()}


def _restrict(found: Collection[str], asked: Collection[str] | None, side: str) -> tuple[str, ...]:
    chosen = tuple(sorted(found if asked is None else set(asked)))
    unknown = sorted(set(chosen) - set(found))
    if unknown or not chosen:
        raise InputError(
            f"Not differentiable {side} paths of this component at this payload: {unknown}; "
            f"differentiable are {sorted(found)}.{did_you_mean(unknown[0], found)}"
            if unknown
            else f"The component has no differentiable {side} in this payload.",
            code="path_not_differentiable",
            path=unknown[0] if unknown else None,
        )
    return chosen
