"""A graph of ONNX as a function in JAX, node by node."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, numpy_helper
from onnx.helper import get_attribute_value

from chainrule.runtime._onnx._operators import OPERATORS


class Node:
    """One node, as its operator sees it.

    Attributes:
        np: NumPy for constants, else `jax.numpy`.
        opset: the version of the operators.
        outputs: how many results are used.
    """

    def __init__(self, proto: NodeProto, opset: int) -> None:
        self.operator = proto.op_type
        self.inputs = list(proto.input)
        self.results = list(proto.output)
        self.outputs = len(self.results)
        self.opset = opset
        self.np: Any = jnp
        self._attributes = {a.name: _attribute(a) for a in proto.attribute}

    _REQUIRED = object()

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute."""
        if default is Node._REQUIRED:
            return self._attributes[name]
        return self._attributes.get(name, default)

    def static(self, value: Any) -> np.ndarray:
        """The numbers of an input that says a shape.

        Raises:
            NotImplementedError: they depend on inputs of the model.
        """
        if isinstance(value, jax.core.Tracer):
            raise NotImplementedError("a shape that depends on values")
        return np.asarray(value)


def _attribute(attribute: AttributeProto) -> Any:
    value = get_attribute_value(attribute)
    return numpy_helper.to_array(value) if attribute.type == AttributeProto.TENSOR else value


class Graph:
    """The graph of a model.

    Attributes:
        unknown: operators that have no entry in the table, with the version of their set.
    """

    def __init__(self, model: ModelProto) -> None:
        versions = {each.domain: each.version for each in model.opset_import}
        self._constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._outputs = [output.name for output in model.graph.output]
        protos = list(model.graph.node)
        self.unknown = sorted(
            {
                f"{n.domain + ':' if n.domain else ''}{n.op_type}-{versions.get(n.domain, 0)}"
                for n in protos
                if n.op_type not in OPERATORS or n.domain not in ("", "ai.onnx")
            }
        )
        opset = versions.get("", versions.get("ai.onnx", 0))
        self._nodes = [] if self.unknown else [Node(proto, opset) for proto in protos]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name.

        Raises:
            NotImplementedError: an operator is used in a way that is not supported.
        """
        values: dict[str, Any] = {"": None, **self._constants}
        values |= {name: jnp.asarray(value) for name, value in inputs.items()}
        for each in self._nodes:
            node = copy.copy(each)  # other threads may evaluate as well
            given = [values[name] for name in node.inputs]
            is_constant = all(
                isinstance(v, (np.ndarray, np.generic)) for v in given if v is not None
            )
            node.np = np if is_constant else jnp
            try:
                found = OPERATORS[node.operator](node, *given)
            except (NotImplementedError, TypeError) as error:
                raise NotImplementedError(f"{node.operator}: {error}") from error
            results = found if isinstance(found, (list, tuple)) else [found]
            values |= dict(zip(node.results, results, strict=False))
        return {name: jnp.asarray(values[name]) for name in self._outputs}
