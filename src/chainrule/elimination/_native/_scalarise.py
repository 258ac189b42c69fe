"""From a program over small arrays to its scalars.

An array is a NumPy array of numbers of scalar nodes, so that reshapes, slices, transposes and concatenations
are NumPy's own and leave no trace in the result. `RULES` is a table of what every primitive does to such
arrays: one line or one small function per primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    CALLBACKS,
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    bind_equation,
    inline_calls,
    locate,
)
from chainrule._jaxpr._moves import MOVES, move, pad
from chainrule.elimination._native._scalars import NativeUnavailableError, Node, ScalarProgram

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
