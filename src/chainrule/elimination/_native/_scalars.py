"""A program over small arrays as a graph of scalar operations.

`ScalarProgram` is the graph. Its nodes are interned: writing the same operation on the same operands twice
gives the same node, which is common-subexpression elimination for free; constants are folded, and
multiplications by one and additions of zero disappear.

`scalarise` makes it. An array is a NumPy array of numbers of scalar nodes, so that reshapes, slices,
transposes and concatenations are NumPy's own and leave no trace in the result. `RULES` is a table of what
every primitive does to such arrays: one line or one small function per primitive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import CapabilityError
from chainrule._jaxpr import (
    CALLBACKS,
    MOVES,
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    bind_equation,
    inline_calls,
    locate,
    move,
    pad,
)

MAX_NODES = 6_000
"""Compiling takes time as the square of this: three seconds here, minutes at ten times as many."""


class NativeUnavailableError(CapabilityError):
    """The program cannot become a native kernel; the XLA program does the work instead."""

    default_code = "native_unavailable"


@dataclass(frozen=True)
class Node:
    """One scalar operation.

    Attributes:
        operation: `"input"`, `"constant"`, or an operation of `_lower`, such as `"add"`.
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

    Only what holds for every float, NaN and infinities included: constants, x·1, x/1, x+0, x−0. x·0 is not 0
    for an infinite x (structural zeros were pruned long before). One thing is given up, as by the simplifier
    of XLA: the sign of zero in −0 + 0 = +0.
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


# --- From a program to its scalars.

# By the time a kernel is built the derivative has been taken, so custom rules have done their work.
_INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
     "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)  # fmt: skip


def scalarise(program: ClosedJaxpr) -> ScalarProgram:
    """The scalar graph of a program.

    Raises:
        NativeUnavailableError: an equation has no scalar form here, or there are too many scalars.
    """
    flat = inline_calls(program, _INLINED)
    scalars = ScalarProgram()
    # A value is either known now (of any kind: a random key is not an array of numbers), or made of nodes.
    known: dict[Any, Any] = {}
    values: dict[Any, np.ndarray] = {}
    for argument, var in enumerate(flat.jaxpr.invars):
        values[var] = _input_nodes(scalars, argument, var.aval)
    for var, const in zip(flat.jaxpr.constvars, flat.consts, strict=True):
        known[var] = const

    def read_known(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.val, aval_of(atom).dtype)
        return known.get(atom)

    def read(atom: Any) -> np.ndarray:
        constant = read_known(atom)
        return values[atom] if constant is None else _constant_nodes(scalars, constant)

    for eqn in flat.jaxpr.eqns:
        constants = [read_known(atom) for atom in eqn.invars]
        if all(constant is not None for constant in constants) and _is_computed_now(eqn):
            results = constants if eqn.primitive.name in TYPE_ONLY else _evaluated(eqn, constants)
            known.update(zip(eqn.outvars, results, strict=True))
        else:
            nodes = _rule_of(eqn)(scalars, eqn, *map(read, eqn.invars))
            results = nodes if eqn.primitive.multiple_results else [nodes]
            values.update(zip(eqn.outvars, results, strict=True))
    for atom in flat.jaxpr.outvars:
        dtype_name(aval_of(atom).dtype)  # results that are constants may have any dtype
    scalars.outputs = [read(atom) for atom in flat.jaxpr.outvars]
    return scalars


def _is_computed_now(eqn: JaxprEqn) -> bool:
    """Whether an equation on constants may be evaluated already: a callback runs when the program does."""
    return eqn.primitive.name not in CALLBACKS


def _evaluated(eqn: JaxprEqn, constants: list[Any]) -> list[Any]:
    with jax.ensure_compile_time_eval():
        return bind_equation(eqn, constants)


def has_scalar_form(program: ClosedJaxpr) -> bool:
    """Whether all equations of a program have a scalar form and dtype, or follow from constants."""
    flat = inline_calls(program, _INLINED)
    known = set(flat.jaxpr.constvars)
    made = list(flat.jaxpr.invars)
    for eqn in flat.jaxpr.eqns:
        is_known = all(isinstance(atom, Literal) or atom in known for atom in eqn.invars)
        if is_known and _is_computed_now(eqn):
            known.update(eqn.outvars)
        elif eqn.primitive.name not in RULES:
            return False
        else:
            made += eqn.outvars
    return all(aval_of(var).dtype.name in DTYPES for var in made)


def _rule_of(eqn: JaxprEqn) -> Rule:
    rule = RULES.get(eqn.primitive.name)
    if rule is None:
        raise NativeUnavailableError(
            f"No native form of the primitive {eqn.primitive.name!r} at {locate(eqn) or 'an unknown line'}; "
            "use backend='xla'."
        )
    return rule


def _input_nodes(scalars: ScalarProgram, argument: int, aval: Any) -> np.ndarray:
    dtype = dtype_name(aval.dtype)
    size = int(np.prod(aval.shape, dtype=np.int64))
    numbers = [scalars.add(Node("input", (), dtype, (argument, i))) for i in range(size)]
    return np.array(numbers, np.int64).reshape(aval.shape)


def _constant_nodes(scalars: ScalarProgram, constant: Any) -> np.ndarray:
    # Integers occur as exponents and masks; their value is exact in float64.
    is_integer = jnp.issubdtype(constant.dtype, jnp.integer)
    dtype = "float64" if is_integer else dtype_name(constant.dtype)
    numbers = [scalars.constant(value, dtype) for value in np.asarray(constant).ravel()]
    return np.array(numbers, np.int64).reshape(constant.shape)


Rule = Callable[..., Any]
"""From the scalar program, an equation and its operands' nodes to the nodes of its result(s)."""


DTYPES = frozenset({"float32", "float64", "bool"})
"""What a kernel computes in."""


TYPE_ONLY = frozenset(
    {
        "device_put",
        "layout_constraint",
        "name",
        "optimization_barrier",
        "reshard",
        "sharding_constraint",
    }
)
"""Primitives that say something about values, and leave them as they are."""


def aval_of(atom: Any) -> Any:
    """The shape and dtype of a variable or literal (JAX's own annotation says less)."""
    return atom.aval


def dtype_name(dtype: Any) -> str:
    """The name of a dtype that a kernel can compute in."""
    name = dtype.name
    if name not in DTYPES:
        raise NativeUnavailableError(
            f"A native kernel computes in float32 and float64, found {name}; use backend='xla'."
        )
    return name


def _elementwise(operation: str) -> Rule:
    def rule(scalars: ScalarProgram, eqn: JaxprEqn, *operands: np.ndarray) -> np.ndarray:
        dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)
        operand_dtype = dtype_name(aval_of(eqn.invars[0]).dtype)
        operands = tuple(_coerce_constants(scalars, operand_dtype, xs) for xs in operands)
        used = _for_dtype(operation, operand_dtype)
        return _map(lambda *xs: scalars.apply(used, dtype, *xs), *operands)

    return rule


_OF_BOOLEANS = {
    "and": "and", "or": "or", "not": "not", "xor": "xor", "ne": "xor", "max": "or", "min": "and",
}  # fmt: skip


def _for_dtype(operation: str, dtype: str) -> str:
    """The operation that does to operands of a dtype what a primitive does."""
    if dtype != "bool":
        return operation
    if operation not in _OF_BOOLEANS:
        raise NativeUnavailableError(
            f"A native kernel has no {operation!r} of booleans; use backend='xla'."
        )
    return _OF_BOOLEANS[operation]


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
    dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)

    def power(base: int) -> int:
        # x¹³ = x⁸ · x⁴ · x¹: squares for the binary digits of the exponent. The factor 1 disappears
        # (`_simplify`). x⁻ⁿ is 1 / xⁿ.
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
        dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)
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
    return _in_dtype(scalars, dtype_name(eqn.params["new_dtype"]), x)


def _in_dtype(scalars: ScalarProgram, dtype: str, x: np.ndarray) -> np.ndarray:
    def convert(number: int) -> int:
        node = scalars.nodes[number]
        if node.dtype == dtype:
            return number
        if node.operation == "constant":
            return scalars.constant(_known(scalars, number), dtype)
        if dtype == "bool":
            return scalars.apply("ne", dtype, number, scalars.constant(0.0, node.dtype))
        return scalars.apply("convert", dtype, number)

    return _map(convert, x)


def _known(scalars: ScalarProgram, number: int) -> Any:
    """The value of a constant; `None` for other nodes."""
    node = scalars.nodes[number]
    if node.operation != "constant":
        return None
    return node.value if node.dtype == "bool" else node.value[0]


def _select_n(scalars: ScalarProgram, eqn: JaxprEqn, which: np.ndarray, *cases: np.ndarray) -> Any:
    dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)

    def select(chosen: int, *values: int) -> int:
        case = _known(scalars, chosen)
        if case is not None:
            return values[int(case)]
        if len(values) != 2:
            raise NativeUnavailableError("A native kernel selects between two cases only.")
        return scalars.apply("select", dtype, chosen, values[1], values[0])

    return _map(select, which, *cases)


def _as_they_are(scalars: ScalarProgram, eqn: JaxprEqn, *xs: np.ndarray) -> Any:
    return list(xs) if eqn.primitive.multiple_results else xs[0]


def _moved(scalars: ScalarProgram, eqn: JaxprEqn, *xs: np.ndarray) -> Any:
    results = move(eqn, *xs)
    return results if eqn.primitive.multiple_results else results[0]


def _pad(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    return pad(x, int(fill), eqn.params["padding_config"])


def _reduce(operation: str) -> Rule:
    def rule(scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
        dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)
        axes = tuple(eqn.params["axes"])
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = x.transpose((*kept, *axes)).reshape((*(x.shape[a] for a in kept), -1))
        if rows.shape[-1] == 0:
            raise NativeUnavailableError("A native kernel reduces non-empty axes only.")
        return _fold(scalars, _for_dtype(operation, dtype), dtype, rows)

    return rule


def _fold(scalars: ScalarProgram, operation: str, dtype: str, rows: np.ndarray) -> np.ndarray:
    total = rows[..., 0]
    for column in range(1, rows.shape[-1]):
        step = rows[..., column]
        total = _map(lambda a, b: scalars.apply(operation, dtype, a, b), total, step)
    return total


def _dot_general(scalars: ScalarProgram, eqn: JaxprEqn, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    free_a = [i for i in range(a.ndim) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(b.ndim) if i not in contract_b and i not in batch_b]
    n_batch, n_free = len(batch_a), (len(free_a), len(free_b))
    left = a.transpose((*batch_a, *free_a, *contract_a))
    right = b.transpose((*batch_b, *free_b, *contract_b))
    batch, length = left.shape[:n_batch], int(np.prod(left.shape[n_batch + n_free[0] :]))
    if length == 0:
        return np.full(aval_of(eqn.outvars[0]).shape, scalars.constant(0.0, dtype))
    rows, columns = left.shape[n_batch:][: n_free[0]], right.shape[n_batch:][: n_free[1]]
    left = _in_dtype(scalars, dtype, left).reshape(*batch, *rows, *(1,) * n_free[1], length)
    right = _in_dtype(scalars, dtype, right).reshape(*batch, *(1,) * n_free[0], *columns, length)
    products = _map(lambda x, y: scalars.apply("mul", dtype, x, y), left, right)
    return _fold(scalars, "add", dtype, products)


def _gather(
    scalars: ScalarProgram, eqn: JaxprEqn, x: np.ndarray, indices: np.ndarray
) -> np.ndarray:
    # JAX's own rule says what is read: it gathers the numbers of the entries, which are counted from 1; 0
    # is the filling.
    numbered = np.arange(1, x.size + 1, dtype=np.int32).reshape(x.shape)
    params = {**eqn.params, "fill_value": 0}
    with jax.ensure_compile_time_eval():
        (moved,) = bind_equation(eqn, [numbered, _places(scalars, indices)], params)
    source = np.asarray(moved) - 1
    if (source < 0).any():
        raise NativeUnavailableError("A native kernel reads only what is there.")
    return x.ravel()[source]


def _scatter(operation: str | None) -> Rule:
    """Put updates at known places of an array, each at one of its own: instead of what is there, or added."""

    def rule(
        scalars: ScalarProgram,
        eqn: JaxprEqn,
        x: np.ndarray,
        indices: np.ndarray,
        updates: np.ndarray,
    ) -> np.ndarray:
        dtype = dtype_name(aval_of(eqn.outvars[0]).dtype)
        # As in `_gather`: the update that lands at a place, counted from 1; 0 where none does.
        numbered = np.arange(1, updates.size + 1, dtype=np.int32).reshape(updates.shape)
        with jax.ensure_compile_time_eval():
            moved = jax.lax.scatter(
                np.zeros(x.shape, np.int32), _places(scalars, indices), numbered,
                eqn.params["dimension_numbers"], mode=eqn.params["mode"],
            )  # fmt: skip
        source = np.asarray(moved) - 1
        if np.count_nonzero(source >= 0) != updates.size:
            raise NativeUnavailableError(
                "A native kernel writes every update to a place of its own."
            )
        new = updates.ravel()[source]
        if operation is not None:
            new = _map(lambda old, more: scalars.apply(operation, dtype, old, more), x, new)
        return np.where(source >= 0, new, x)

    return rule


def _places(scalars: ScalarProgram, indices: np.ndarray) -> np.ndarray:
    known = [_known(scalars, number) for number in indices.ravel().tolist()]
    if None in known:
        raise NativeUnavailableError("A native kernel moves entries to places that are known.")
    return np.array(known, np.int32).reshape(indices.shape)


_ELEMENTWISE = (
    "add sub mul div neg sin cos tan exp log sqrt tanh sinh cosh asin acos atan atan2 asinh acosh atanh "
    "pow abs sign max min log1p expm1 exp2 erf erfc cbrt lt le gt ge eq ne and or xor not"
).split()

RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in _ELEMENTWISE},
    "add_any": _elementwise("add"),
    "integer_pow": _integer_pow,
    "square": _composed(_square),
    "logistic": _composed(_logistic),
    "rsqrt": _composed(_rsqrt),
    "convert_element_type": _convert,
    "select_n": _select_n,
    **dict.fromkeys(TYPE_ONLY, _as_they_are),
    "stop_gradient": _as_they_are,
    **dict.fromkeys(MOVES, _moved),
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter(None),
    **dict.fromkeys(("scatter-add", "scatter_add"), _scatter("add")),
    "reduce_sum": _reduce("add"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_prod": _reduce("mul"),
    "reduce_and": _reduce("and"),
    "reduce_or": _reduce("or"),
    "dot_general": _dot_general,
}
