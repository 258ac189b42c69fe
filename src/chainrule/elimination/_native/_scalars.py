"""From a program over small arrays to a graph of scalar operations.

Every array becomes a NumPy array of *node numbers*, so that reshapes, slices, transposes and
concatenations are NumPy's own and leave no trace in the result. Nodes are interned: writing the same
operation on the same operands twice gives the same node, which is common-subexpression elimination for
free; constants are folded, and multiplications by one and additions of zero disappear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from chainrule._errors import CapabilityError
from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, Literal, bind_equation, inline_calls, locate

__all__ = ["NativeUnavailableError", "Node", "ScalarProgram", "scalarise"]

Rule = Callable[..., Any]
"""From the scalar program, an equation and its operands' nodes to the nodes of its result(s)."""

MAX_NODES = 50_000
"""Beyond this a straight-line kernel takes longer to compile than it will ever save."""


class NativeUnavailableError(CapabilityError):
    """The program cannot become a native kernel; the XLA program does the work instead."""

    default_code = "native_unavailable"


@dataclass(frozen=True)
class Node:
    """One scalar operation.

    Attributes:
        operation: `"input"`, `"constant"`, or the name of an operation in `_lower.OPERATIONS`.
        operands: node numbers.
        dtype: `"float32"`, `"float64"` or `"bool"`.
        value: of a constant; for an input the pair (argument, flat position).
    """

    operation: str
    operands: tuple[int, ...]
    dtype: str
    value: Any = None


@dataclass
class ScalarProgram:
    """Scalar nodes in an order in which operands come first, and which of them are the outputs."""

    nodes: list[Node] = field(default_factory=list)
    outputs: list[np.ndarray] = field(default_factory=list)
    _numbers: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """The number of a node, new or interned."""
        number = self._numbers.get(node)
        if number is None:
            if len(self.nodes) >= MAX_NODES:
                raise NativeUnavailableError(
                    f"The program has more than {MAX_NODES} scalar operations; "
                    "use backend='xla' for programs over large arrays."
                )
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def constant(self, value: Any, dtype: str) -> int:
        """The node of a number."""
        number = bool(value) if dtype == "bool" else float(np.dtype(dtype).type(value))
        # -0.0 == 0.0 and nan != nan would both defeat interning by value.
        key = number if dtype == "bool" else (number, math.copysign(1.0, number))
        return self.add(Node("constant", (), dtype, key))

    def constant_value(self, number: int) -> float | None:
        """The value of a node when it is a floating-point constant."""
        node = self.nodes[number]
        return node.value[0] if node.operation == "constant" and node.dtype != "bool" else None

    def apply(self, operation: str, dtype: str, *operands: int) -> int:
        """The node of an operation on nodes, after the simplifications that are exact."""
        simplified = _simplify(self, operation, operands)
        return self.add(Node(operation, operands, dtype)) if simplified is None else simplified


def _simplify(program: ScalarProgram, operation: str, operands: tuple[int, ...]) -> int | None:
    """A simpler node with the same value, when there obviously is one.

    Only what holds for every float: constants, x·1, x/1, x+0, x−0. (x·0 is not 0 for infinite x;
    structural zeros were pruned long before.)
    """
    constants = [program.constant_value(number) for number in operands]
    if operation in _FOLDED and None not in constants:
        dtype = program.nodes[operands[0]].dtype
        with np.errstate(all="ignore"):
            value = _FOLDED[operation](*(np.dtype(dtype).type(c) for c in constants))
        return program.constant(value, dtype)
    if operation in {"mul", "add"}:
        for this, other in (operands, operands[::-1]):
            if program.constant_value(this) == {"mul": 1.0, "add": 0.0}[operation]:
                return other
    elif operation in {"div", "sub"}:
        neutral = {"div": 1.0, "sub": 0.0}[operation]
        if program.constant_value(operands[1]) == neutral:
            return operands[0]
    elif operation == "neg" and program.nodes[operands[0]].operation == "neg":
        return program.nodes[operands[0]].operands[0]
    return None


_FOLDED = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
}  # fmt: skip


def scalarise(program: ClosedJaxpr) -> ScalarProgram:
    """The scalar graph of a program.

    Raises:
        NativeUnavailableError: an equation has no scalar form here, or there are too many scalars.
    """
    flat = inline_calls(program, _INLINED)
    scalars = ScalarProgram()
    # A value is either known now, as a NumPy array, or made of nodes.
    known: dict[Any, np.ndarray] = {}
    values: dict[Any, np.ndarray] = {}
    for argument, var in enumerate(flat.jaxpr.invars):
        values[var] = _input_nodes(scalars, argument, var.aval)
    for var, const in zip(flat.jaxpr.constvars, flat.consts, strict=True):
        known[var] = np.asarray(const)

    def read_known(atom: Any) -> np.ndarray | None:
        if isinstance(atom, Literal):
            return np.asarray(atom.val, _aval(atom).dtype)
        return known.get(atom)

    def read(atom: Any) -> np.ndarray:
        constant = read_known(atom)
        return values[atom] if constant is None else _constant_nodes(scalars, constant)

    for eqn in flat.jaxpr.eqns:
        constants = [read_known(atom) for atom in eqn.invars]
        if all(constant is not None for constant in constants):
            with jax.ensure_compile_time_eval():
                results = bind_equation(eqn, constants)
            known.update(zip(eqn.outvars, map(np.asarray, results), strict=True))
        else:
            nodes = _rule_of(eqn)(scalars, eqn, *map(read, eqn.invars))
            results = nodes if eqn.primitive.multiple_results else [nodes]
            values.update(zip(eqn.outvars, results, strict=True))
    scalars.outputs = [read(atom) for atom in flat.jaxpr.outvars]
    return scalars


def _rule_of(eqn: JaxprEqn) -> Rule:
    rule = _RULES.get(eqn.primitive.name)
    if rule is None:
        raise NativeUnavailableError(
            f"No native form of the primitive {eqn.primitive.name!r} ({locate(eqn)}); "
            "use backend='xla'."
        )
    return rule


# By the time a kernel is built the derivative has been taken, so custom rules have done their work.
_INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
     "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)  # fmt: skip


def _aval(atom: Any) -> Any:
    """The shape and dtype of a variable or literal (JAX's own annotation says less)."""
    return atom.aval


def _dtype_name(dtype: Any) -> str:
    name = np.dtype(dtype).name
    if name not in {"float32", "float64", "bool"}:
        raise NativeUnavailableError(
            f"A native kernel computes in float32 and float64, found {name}; use backend='xla'."
        )
    return name


def _input_nodes(scalars: ScalarProgram, argument: int, aval: Any) -> np.ndarray:
    dtype = _dtype_name(aval.dtype)
    size = int(np.prod(aval.shape, dtype=np.int64))
    numbers = [scalars.add(Node("input", (), dtype, (argument, i))) for i in range(size)]
    return np.array(numbers, np.int64).reshape(aval.shape)


def _constant_nodes(scalars: ScalarProgram, array: np.ndarray) -> np.ndarray:
    # Integers occur as exponents and masks; their value is exact in float64.
    dtype = array.dtype.name if array.dtype.name in {"float32", "bool"} else "float64"
    numbers = [scalars.constant(value, dtype) for value in array.ravel()]
    return np.array(numbers, np.int64).reshape(array.shape)


def _elementwise(operation: str) -> Rule:
    def rule(scalars: ScalarProgram, eqn: JaxprEqn, *operands: np.ndarray) -> np.ndarray:
        dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)
        operand_dtype = _dtype_name(_aval(eqn.invars[0]).dtype)
        operands = tuple(_coerce_constants(scalars, operand_dtype, xs) for xs in operands)
        return _map(lambda *xs: scalars.apply(operation, dtype, *xs), *operands)

    return rule


def _coerce_constants(scalars: ScalarProgram, dtype: str, numbers: np.ndarray) -> np.ndarray:
    """Integer constants (the exponent of a power) take the dtype of the value they act on."""

    def coerce(number: int) -> int:
        value = scalars.constant_value(number)
        return number if value is None or dtype == "bool" else scalars.constant(value, dtype)

    return _map(coerce, numbers)


def _map(function: Callable[..., int], *operands: np.ndarray) -> np.ndarray:
    broadcast = np.broadcast_arrays(*operands)
    results = [function(*map(int, xs)) for xs in zip(*(a.ravel() for a in broadcast), strict=True)]
    return np.array(results, np.int64).reshape(broadcast[0].shape)


def _integer_pow(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    exponent = eqn.params["y"]
    dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)

    def power(base: int) -> int:
        result, square, rest = scalars.constant(1.0, dtype), base, abs(exponent)
        while rest:
            if rest & 1:
                result = scalars.apply("mul", dtype, result, square)
            rest >>= 1
            if rest:
                square = scalars.apply("mul", dtype, square, square)
        if exponent < 0:
            result = scalars.apply("div", dtype, scalars.constant(1.0, dtype), result)
        return result

    return _map(power, x)


def _composed(build: Callable[[ScalarProgram, str, int], int]) -> Rule:
    """A rule for a unary function that is written in terms of others."""

    def rule(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
        dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)
        return _map(lambda node: build(scalars, dtype, node), x)

    return rule


def _logistic(scalars: ScalarProgram, dtype: str, x: int) -> int:
    one = scalars.constant(1.0, dtype)
    decay = scalars.apply("exp", dtype, scalars.apply("neg", dtype, x))
    return scalars.apply("div", dtype, one, scalars.apply("add", dtype, one, decay))


def _rsqrt(scalars: ScalarProgram, dtype: str, x: int) -> int:
    return scalars.apply(
        "div", dtype, scalars.constant(1.0, dtype), scalars.apply("sqrt", dtype, x)
    )


def _square(scalars: ScalarProgram, dtype: str, x: int) -> int:
    return scalars.apply("mul", dtype, x, x)


def _convert(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    dtype = _dtype_name(eqn.params["new_dtype"])

    def convert(number: int) -> int:
        node = scalars.nodes[number]
        if node.dtype == dtype:
            return number
        if node.operation == "constant":
            value = node.value if node.dtype == "bool" else node.value[0]
            return scalars.constant(value, dtype)
        return scalars.apply("convert", dtype, number)

    return _map(convert, x)


def _select_n(scalars: ScalarProgram, eqn: JaxprEqn, which: np.ndarray, *cases: np.ndarray) -> Any:
    if len(cases) != 2:
        raise NativeUnavailableError("A native kernel selects between two cases only.")
    dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)
    return _map(lambda w, no, yes: scalars.apply("select", dtype, w, yes, no), which, *cases)


def _identity(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    return x


def _reshape(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    return x.reshape(_aval(eqn.outvars[0]).shape)


def _broadcast(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    shape = eqn.params["shape"]
    expanded = [1] * len(shape)
    for axis, target in enumerate(eqn.params["broadcast_dimensions"]):
        expanded[target] = x.shape[axis]
    return np.broadcast_to(x.reshape(expanded), shape)


def _transpose(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    return x.transpose(eqn.params["permutation"])


def _slice(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * x.ndim
    return x[tuple(slice(*bounds) for bounds in zip(starts, limits, strides, strict=True))]


def _concatenate(scalars: ScalarProgram, eqn: JaxprEqn, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(xs, axis=eqn.params["dimension"])


def _stack(scalars: ScalarProgram, eqn: JaxprEqn, *xs: np.ndarray) -> np.ndarray:
    return np.stack(xs, axis=eqn.params["axis"])


def _split(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(eqn.params["sizes"])[:-1], axis=eqn.params["axis"])


def _rev(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    return np.flip(x, eqn.params["dimensions"])


def _pad(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    config = eqn.params["padding_config"]
    if any(low < 0 or high < 0 or interior for low, high, interior in config):
        raise NativeUnavailableError("A native kernel pads with plain margins only.")
    return np.pad(x, [(low, high) for low, high, _ in config], constant_values=int(fill))


def _reduce(operation: str) -> Rule:
    def rule(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
        dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)
        axes = tuple(eqn.params["axes"])
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = x.transpose((*kept, *axes)).reshape((*(x.shape[a] for a in kept), -1))
        if rows.shape[-1] == 0:
            raise NativeUnavailableError("A native kernel reduces non-empty axes only.")
        return _fold(scalars, operation, dtype, rows)

    return rule


def _fold(scalars: ScalarProgram, operation: str, dtype: str, rows: np.ndarray) -> np.ndarray:
    total = rows[..., 0]
    for column in range(1, rows.shape[-1]):
        step = rows[..., column]
        total = _map(lambda a, b: scalars.apply(operation, dtype, a, b), total, step)
    return total


def _dot_general(scalars: ScalarProgram, eqn: JaxprEqn, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = _dtype_name(_aval(eqn.outvars[0]).dtype)
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    free_a = [i for i in range(a.ndim) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(b.ndim) if i not in contract_b and i not in batch_b]
    n_batch, n_free = len(batch_a), (len(free_a), len(free_b))
    left = a.transpose((*batch_a, *free_a, *contract_a))
    right = b.transpose((*batch_b, *free_b, *contract_b))
    batch = left.shape[:n_batch]
    left = left.reshape(*batch, *left.shape[n_batch : n_batch + n_free[0]], *(1,) * n_free[1], -1)
    right = right.reshape(
        *batch, *(1,) * n_free[0], *right.shape[n_batch : n_batch + n_free[1]], -1
    )
    products = _map(lambda x, y: scalars.apply("mul", dtype, x, y), left, right)
    return _fold(scalars, "add", dtype, products)


_ELEMENTWISE = (
    "add sub mul div neg sin cos tan exp log sqrt tanh sinh cosh asin acos atan atan2 asinh acosh atanh "
    "pow abs sign max min log1p expm1 exp2 erf erfc cbrt lt le gt ge eq ne and or not"
).split()

_RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in _ELEMENTWISE},
    "add_any": _elementwise("add"),
    "integer_pow": _integer_pow,
    "square": _composed(_square),
    "logistic": _composed(_logistic),
    "rsqrt": _composed(_rsqrt),
    "convert_element_type": _convert,
    "select_n": _select_n,
    "copy": _identity,
    "copy_p": _identity,
    "stop_gradient": _identity,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "rev": _rev,
    "pad": _pad,
    "reduce_sum": _reduce("add"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_prod": _reduce("mul"),
    "dot_general": _dot_general,
}
