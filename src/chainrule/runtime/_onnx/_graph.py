"""A graph of ONNX as a function in JAX, node by node, and the table of its operators, one entry each.

An entry is a function `f(node, *inputs)`. `node.np` is NumPy where all inputs are constants of the graph, so
that shapes which are computed in the graph stay static, and `jax.numpy` otherwise. `node.get(name, default)`
is an attribute. Inputs that are left out are `None`. Results are one array, or a list of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper
from onnx.helper import get_attribute_value

from chainrule.runtime._onnx._learners import LEARNERS


class Node:
    """One node, as its operator sees it.

    Attributes:
        np: NumPy for constants, else `jax.numpy`.
        opset: the version of the operators.
        outputs: how many results are used.
        body: the graph inside of the node, as a function of its inputs; only operators such as Scan have one.
    """

    def __init__(self, proto: NodeProto, versions: Mapping[str, int]) -> None:
        self.operator = _operator(proto)
        self.inputs = list(proto.input)
        self.results = list(proto.output)
        self.outputs = len(self.results)
        self.opset = _opset(versions)
        self.np: Any = jnp
        self.body: Callable[..., list[Any]] | None = None
        self._attributes = {a.name: _attribute(a, versions) for a in proto.attribute}

    def at(self, values: Mapping[str, Any]) -> Node:
        """The node for one evaluation, among the values that are known by then."""
        node = copy.copy(self)  # other threads may evaluate as well
        given = [values[name] for name in self.inputs]
        is_constant = all(isinstance(v, (np.ndarray, np.generic)) for v in given if v is not None)
        node.np = np if is_constant else jnp
        body = self._attributes.get("body")
        if body is not None:
            # Its nodes see the values outside of it.
            node.body = lambda *inputs: body.outputs(
                dict(zip(body.inputs, inputs, strict=True)), values
            )
        return node

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


def _attribute(attribute: AttributeProto, versions: Mapping[str, int]) -> Any:
    value = get_attribute_value(attribute)
    if attribute.type == AttributeProto.GRAPH:
        return Graph(value, versions)
    return numpy_helper.to_array(value) if attribute.type == AttributeProto.TENSOR else value


def _operator(proto: NodeProto) -> str:
    """The name of an operator, behind that of its set where that is not the standard one."""
    return proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}:{proto.op_type}"


def _opset(versions: Mapping[str, int]) -> int:
    return versions.get("", versions.get("ai.onnx", 0))


class Graph:
    """The graph of a model, or of a node such as Scan.

    Args:
        proto: the graph.
        versions: of the sets of operators.

    Attributes:
        inputs: their names, constants included.
        unknown: operators that have no entry in the table, with the version of their set.
    """

    def __init__(self, proto: GraphProto, versions: Mapping[str, int]) -> None:
        self.inputs = [each.name for each in proto.input]
        self._constants = {t.name: numpy_helper.to_array(t) for t in proto.initializer}
        self._outputs = [output.name for output in proto.output]
        self.unknown = sorted(_unknown(proto, versions))
        self._nodes = [] if self.unknown else [Node(each, versions) for each in proto.node]

    @classmethod
    def of_model(cls, model: ModelProto) -> Graph:
        """The graph of a model."""
        return cls(model.graph, {each.domain: each.version for each in model.opset_import})

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name.

        Raises:
            NotImplementedError: an operator is used in a way that is not supported.
        """
        found = self.outputs({name: jnp.asarray(value) for name, value in inputs.items()}, {})
        return dict(zip(self._outputs, map(jnp.asarray, found), strict=True))

    def outputs(self, inputs: Mapping[str, Any], outside: Mapping[str, Any]) -> list[Any]:
        """Outputs in their order, in a graph that has other values around it."""
        values: dict[str, Any] = {"": None, **outside, **self._constants, **inputs}
        for each in self._nodes:
            _check_known(each.inputs, values)
            node = each.at(values)
            try:
                found = OPERATORS[node.operator](node, *(values[name] for name in node.inputs))
            except (NotImplementedError, TypeError) as error:
                raise NotImplementedError(f"{node.operator}: {error}") from error
            results = found if isinstance(found, (list, tuple)) else [found]
            values |= dict(zip(node.results, results, strict=False))
        _check_known(self._outputs, values)
        return [values[name] for name in self._outputs]


def _check_known(names: Iterable[str], values: Mapping[str, Any]) -> None:
    """Refuse the use of what entries leave out: further results of an operator, such as the mask of Dropout.

    Raises:
        NotImplementedError: there is no such value.
    """
    for name in names:
        if name not in values:
            raise NotImplementedError(f"the further result {name!r} of an operator")


def _unknown(proto: GraphProto, versions: Mapping[str, int]) -> set[str]:
    """The operators without an entry, those of graphs inside of known ones included."""
    found = set()
    for node in proto.node:
        if _operator(node) not in OPERATORS:
            found.add(f"{_operator(node)}-{versions.get(node.domain, 0)}")
            continue
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _unknown(attribute.g, versions)
    return found


Operator = Callable[..., Any]


def _axes(node: Any, given: Any) -> tuple[int, ...] | None:
    """Axes are an attribute in older operators, and an input in newer ones."""
    found = node.get("axes", None) if given is None else np.asarray(given)
    return None if found is None else tuple(int(axis) for axis in np.ravel(found))


def _elementwise(name: str) -> Operator:
    return lambda node, *inputs: getattr(node.np, name)(*inputs)


def _variadic(name: str) -> Operator:
    return lambda node, *inputs: reduce(getattr(node.np, name), inputs)


def _activation(function: Callable[..., Any], **defaults: float) -> Operator:
    return lambda node, x: function(x, *(node.get(k, v) for k, v in defaults.items()))


def _reduction(function: Callable[..., Any]) -> Operator:
    def reduce_axes(node: Any, x: Any, axes: Any = None) -> Any:
        chosen = _axes(node, axes)
        if not chosen:
            if node.get("noop_with_empty_axes", 0):
                return x
            chosen = tuple(range(x.ndim))
        return function(node.np, x, axis=chosen, keepdims=bool(node.get("keepdims", 1)))

    return reduce_axes


def _div(node: Any, x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.integer):
        # Towards zero, as in C. Not by a quotient of floats, which rounds integers from 2^24 or 2^53 on.
        floor = x // y
        return floor + ((floor < 0) & (floor * y != x)).astype(x.dtype)
    return x / y


def _clip(node: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = node.get("min", low), node.get("max", high)
    x = x if low is None else node.np.maximum(x, low)
    return x if high is None else node.np.minimum(x, high)


def _gelu(node: Any, x: Any) -> Any:
    return jax.nn.gelu(x, approximate=node.get("approximate", b"none") == b"tanh")


def _cast(node: Any, x: Any) -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype

    return _as_type(node, x, tensor_dtype_to_np_dtype(node.get("to")))


def _as_type(node: Any, x: Any, dtype: Any) -> Any:
    return x.astype(dtype if node.np is np else jax.dtypes.canonicalize_dtype(dtype))


def _constant(node: Any) -> Any:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        found = node.get(name, None)
        if found is not None:
            kind = np.float32 if "float" in name else np.int64
            return found if name == "value" else np.asarray(found, kind)
    raise NotImplementedError("a constant of text")


def _constant_of_shape(node: Any, shape: Any) -> Any:
    value = node.get("value", np.zeros(1, np.float32))
    return np.full(tuple(node.static(shape)), value[0], value.dtype)


def _reshape(node: Any, x: Any, shape: Any) -> Any:
    sizes = [int(size) for size in node.static(shape)]
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: Any, x: Any) -> Any:
    axis = node.get("axis", 1)
    return x.reshape(math.prod(x.shape[: axis if axis >= 0 else x.ndim + axis]), -1)


def _squeeze(node: Any, x: Any, axes: Any = None) -> Any:
    return node.np.squeeze(x, _axes(node, axes))


def _unsqueeze(node: Any, x: Any, axes: Any = None) -> Any:
    return node.np.expand_dims(x, _axes(node, axes))


def _slice(node: Any, x: Any, *given: Any) -> Any:
    if given:
        starts, ends, axes, steps = (*map(node.static, given), None, None)[:4]
    else:
        starts, ends, axes, steps = (
            node.get("starts"),
            node.get("ends"),
            node.get("axes", None),
            None,
        )
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        stop = None if step < 0 and end < -size else int(end)  # before the first element
        where[axis] = slice(int(start), stop, int(step))
    return x[tuple(where)]


def _split(node: Any, x: Any, sizes: Any = None) -> Any:
    axis = node.get("axis", 0)
    sizes = node.get("split", None) if sizes is None else node.static(sizes)
    if sizes is None:
        count = node.outputs
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - k * each) for k in range(count)]
    return node.np.split(x, np.cumsum(sizes)[:-1].tolist(), axis)


def _gather(node: Any, x: Any, indices: Any) -> Any:
    axis = node.get("axis", 0)
    return node.np.take(x, node.np.where(indices < 0, indices + x.shape[axis], indices), axis)


def _expand(node: Any, x: Any, shape: Any) -> Any:
    return node.np.broadcast_to(
        x, np.broadcast_shapes(x.shape, tuple(map(int, node.static(shape))))
    )


def _pad(node: Any, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    if node.get("mode", b"constant") != b"constant":
        raise NotImplementedError("a mode other than constant")
    pads = node.get("pads", None) if pads is None else node.static(pads)
    axes = range(x.ndim) if axes is None else node.static(axes)
    widths, count = [(0, 0)] * x.ndim, len(pads) // 2
    for k, axis in enumerate(axes):
        widths[axis] = (int(pads[k]), int(pads[k + count]))
    fill = node.get("value", 0.0) if value is None else value.reshape(())
    return node.np.pad(x, widths, constant_values=fill)


def _gemm(node: Any, a: Any, b: Any, c: Any = None) -> Any:
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    product = node.get("alpha", 1.0) * (a @ b)
    return (product if c is None else product + node.get("beta", 1.0) * c).astype(a.dtype)


def _softmax(function: Callable[..., Any]) -> Operator:
    def normalise(node: Any, x: Any) -> Any:
        axis = node.get("axis", -1 if node.opset >= 13 else 1)
        if node.opset < 13 and axis not in (-1, x.ndim - 1):
            raise NotImplementedError("several axes at once, as before opset 13")
        return function(x, axis)

    return normalise


def _layer_normalization(node: Any, x: Any, scale: Any, bias: Any = None) -> Any:
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    centred = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(centred**2, axes, keepdims=True)
    found = centred * jax.lax.rsqrt(variance + node.get("epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


def _batch_normalization(node: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    if node.get("training_mode", 0):
        raise NotImplementedError("training mode")
    along = lambda v: v.reshape(-1, *[1] * (x.ndim - 2))  # noqa: E731
    factor = along(scale) / jnp.sqrt(along(variance) + node.get("epsilon", 1e-5))
    return ((x - along(mean)) * factor + along(bias)).astype(x.dtype)


def _window(node: Any, x: Any, kernel: Any) -> tuple[Any, Any, Any]:
    """Strides, dilations and padding of a convolution or a pooling."""
    count = len(kernel)
    strides = node.get("strides", [1] * count)
    dilations = node.get("dilations", [1] * count)
    kind = node.get("auto_pad", b"NOTSET")
    if kind == b"VALID":
        return strides, dilations, [(0, 0)] * count
    if kind == b"NOTSET":
        pads = node.get("pads", [0] * 2 * count)
        return strides, dilations, list(zip(pads[:count], pads[count:], strict=True))
    found = []
    for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        # SAME: ceil(size / stride) results. The last window begins at (results - 1) · stride and is (k - 1) ·
        # dilation + 1 long; what it has beyond the array is padding, of which the odd element goes to the end
        # or to the start.
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        small = total // 2
        found.append((small, total - small) if kind == b"SAME_UPPER" else (total - small, small))
    return strides, dilations, found


def _conv(node: Any, x: Any, weights: Any, bias: Any = None) -> Any:
    strides, dilations, padding = _window(node, x, weights.shape[2:])
    found = jax.lax.conv_general_dilated(
        x,
        weights,
        strides,
        padding,
        rhs_dilation=dilations,
        feature_group_count=node.get("group", 1),
    )
    return found if bias is None else found + bias.reshape(-1, *[1] * (x.ndim - 2))


def _pool(node: Any, x: Any, start: Any, combine: Any) -> Any:
    kernel = node.get("kernel_shape")
    if node.get("ceil_mode", 0):
        raise NotImplementedError("ceil_mode")
    strides, dilations, padding = _window(node, x, kernel)
    return jax.lax.reduce_window(
        x, start, combine, (1, 1, *kernel), (1, 1, *strides), [(0, 0), (0, 0), *padding],
        window_dilation=(1, 1, *dilations),
    )  # fmt: skip


def _max_pool(node: Any, x: Any) -> Any:
    return _pool(node, x, -jnp.inf, jax.lax.max)


def _average_pool(node: Any, x: Any) -> Any:
    total = _pool(node, x, 0.0, jax.lax.add)
    if node.get("count_include_pad", 0):
        return total / math.prod(node.get("kernel_shape"))
    # The sum over ones counts the elements of each window that are not padding.
    return total / _pool(node, jnp.ones_like(x), 0.0, jax.lax.add)


def _global(name: str) -> Operator:
    return lambda node, x: getattr(jnp, name)(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def _extreme_place(name: str) -> Operator:
    def place(node: Any, x: Any) -> Any:
        if node.get("select_last_index", 0):
            raise NotImplementedError("the last of several places")
        axis, keeps = node.get("axis", 0), bool(node.get("keepdims", 1))
        return _as_type(node, getattr(node.np, name)(x, axis, keepdims=keeps), np.int64)

    return place


def _cumulated(node: Any, x: Any, axis: Any) -> Any:
    axis = int(node.static(axis).reshape(()))
    found = jnp.flip(x, axis) if node.get("reverse", 0) else x
    if node.get("exclusive", 0):
        # Sums without the element itself are the sums of the elements before it. Their difference to the full
        # sums would be less exact, and NaN from the first infinity on.
        widths = [(0, 0, 0)] * x.ndim
        widths[axis] = (1, -1, 0)  # a zero in front, and without the last one
        found = jax.lax.pad(found, jnp.zeros((), x.dtype), widths)
    total = jnp.cumsum(found, axis, dtype=x.dtype)
    return jnp.flip(total, axis) if node.get("reverse", 0) else total


def _scan(node: Any, *inputs: Any) -> Any:
    """States that a body moves on, over the rows of arrays; what else it returns is stacked."""
    count = node.get("num_scan_inputs")
    states, rows = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    for name in ("input_axes", "output_axes", "input_directions", "output_directions"):
        if any(node.get(f"scan_{name}", ())):
            raise NotImplementedError(f"scan_{name}")
    if node.opset < 9:
        raise NotImplementedError("batches, as before opset 9")

    def step(states: Any, row: Any) -> Any:
        found = [jnp.asarray(each) for each in node.body(*states, *row)]
        return tuple(found[: len(states)]), tuple(found[len(states) :])

    last, stacked = jax.lax.scan(
        step, tuple(map(jnp.asarray, states)), tuple(map(jnp.asarray, rows))
    )
    return [*last, *stacked]


OPERATORS: dict[str, Operator] = {
    # elementwise
    **{op: _elementwise(name) for op, name in {
        "Abs": "abs", "Acos": "arccos", "Add": "add", "And": "logical_and", "Asin": "arcsin",
        "Atan": "arctan", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Equal": "equal", "Exp": "exp",
        "Floor": "floor", "Greater": "greater", "GreaterOrEqual": "greater_equal", "IsNaN": "isnan",
        "Less": "less", "LessOrEqual": "less_equal", "Log": "log", "Mul": "multiply", "Neg": "negative",
        "Not": "logical_not", "Or": "logical_or", "Reciprocal": "reciprocal", "Round": "round",
        "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Sub": "subtract", "Tan": "tan",
        "Tanh": "tanh", "Where": "where", "MatMul": "matmul",
    }.items()},
    "Div": _div,
    "Pow": lambda node, x, y: node.np.power(x, y).astype(x.dtype),
    "Max": _variadic("maximum"),
    "Min": _variadic("minimum"),
    "Sum": _variadic("add"),
    "Mean": lambda node, *inputs: reduce(node.np.add, inputs) / len(inputs),
    "Clip": _clip,
    # activations
    "Elu": _activation(jax.nn.elu, alpha=1.0),
    "Erf": _activation(jax.scipy.special.erf),
    "Gelu": _gelu,
    "HardSigmoid": _activation(lambda x, a, b: jnp.clip(a * x + b, 0, 1), alpha=0.2, beta=0.5),
    "HardSwish": _activation(lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1)),
    "LeakyRelu": _activation(lambda x, a: jnp.where(x < 0, a * x, x), alpha=0.01),
    "Mish": _activation(lambda x: x * jnp.tanh(jax.nn.softplus(x))),
    "PRelu": lambda node, x, slope: jnp.where(x < 0, slope * x, x),
    "Relu": _activation(jax.nn.relu),
    # `minimum` keeps exp from overflowing where x is positive: the branch that `where` does not take has a
    # gradient, too, and 0 · inf would make it NaN.
    "Selu": _activation(
        lambda x, a, g: g * jnp.where(x > 0, x, a * jnp.expm1(jnp.minimum(x, 0))),
        alpha=1.6732632423543772, gamma=1.0507009873554805,
    ),
    "Sigmoid": _activation(jax.nn.sigmoid),
    "Softplus": _activation(jax.nn.softplus),
    "Softsign": _activation(jax.nn.soft_sign),
    "Softmax": _softmax(jax.nn.softmax),
    "LogSoftmax": _softmax(jax.nn.log_softmax),
    # reductions
    "ReduceL1": _reduction(lambda np, x, **k: np.sum(np.abs(x), **k)),
    "ReduceL2": _reduction(lambda np, x, **k: np.sqrt(np.sum(x * x, **k))),
    "ReduceLogSumExp": _reduction(lambda np, x, **k: jax.scipy.special.logsumexp(x, **k)),
    "ReduceMax": _reduction(lambda np, x, **k: np.max(x, **k)),
    "ReduceMean": _reduction(lambda np, x, **k: np.mean(x, **k)),
    "ReduceMin": _reduction(lambda np, x, **k: np.min(x, **k)),
    "ReduceProd": _reduction(lambda np, x, **k: np.prod(x, **k)),
    "ReduceSum": _reduction(lambda np, x, **k: np.sum(x, **k)),
    "ReduceSumSquare": _reduction(lambda np, x, **k: np.sum(x * x, **k)),
    "ArgMax": _extreme_place("argmax"),
    "ArgMin": _extreme_place("argmin"),
    "CumSum": _cumulated,
    # shapes and indices
    "Cast": _cast,
    "Concat": lambda node, *inputs: node.np.concatenate(inputs, node.get("axis")),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": lambda node, x, *_: x,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": lambda node, x: x,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": lambda node, x: np.array(x.shape[node.get("start", 0) : node.get("end", None)], np.int64),
    "Size": lambda node, x: np.array(x.size, np.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda node, x, repeats: node.np.tile(x, tuple(map(int, node.static(repeats)))),
    "Transpose": lambda node, x: node.np.transpose(x, node.get("perm", None)),
    "Unsqueeze": _unsqueeze,
    # linear algebra and networks
    "Einsum": lambda node, *inputs: node.np.einsum(node.get("equation").decode(), *inputs),
    "Gemm": _gemm,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Conv": _conv,
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("max"),
    "Scan": _scan,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    **LEARNERS,
}  # fmt: skip
