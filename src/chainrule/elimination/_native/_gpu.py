"""One GPU kernel from a scalar graph: every thread carries all temporaries of a batch element in registers.

XLA splits a Jacobian of many entries into several fusions, each of which reads the inputs again. Here
Pallas (on Triton) writes all entries from one kernel. Only programs whose inputs and outputs are scalars
qualify: they are read and written as whole rows of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.elimination._native._scalars import NativeUnavailableError, Node, ScalarProgram

_BLOCK = 256
"""Batch elements per thread block; 128 with two warps was as fast on an H200, within one per cent."""
_WARPS = 4


def batched_kernel(
    program: ScalarProgram, *, interpret: bool = False
) -> Callable[..., list[jax.Array]]:
    """A function of one vector per input that gives one vector per output.

    Args:
        program: scalars, with scalar outputs.
        interpret: run the kernel in plain JAX, for tests on machines without a GPU.

    Raises:
        NativeUnavailableError: an input or output is not a scalar, or an operation has no GPU form.
    """
    outputs = _scalar_outputs(program)
    n_inputs = 1 + max(node.value[0] for node in program.nodes if node.operation == "input")
    out_dtypes = [program.nodes[number].dtype for number in outputs]

    def function(*vectors: jax.Array) -> list[jax.Array]:
        from jax.experimental import pallas
        from jax.experimental.pallas import triton

        (size,) = vectors[0].shape

        def kernel(*references: Any) -> None:
            inputs, results = references[:n_inputs], references[n_inputs:]
            # A mask cost up to a tenth of the time where it was measured; full blocks need none.
            full = size % _BLOCK == 0
            inside = None if full else pallas.program_id(0) * _BLOCK + jnp.arange(_BLOCK) < size
            other = None if full else 0
            loaded = [triton.load(ref.at[...], mask=inside, other=other) for ref in inputs]
            for position, value in _evaluate(program, loaded, outputs):
                triton.store(results[position].at[...], value, mask=inside)

        row = pallas.BlockSpec((_BLOCK,), lambda block: (block,))
        return pallas.pallas_call(
            kernel,
            grid=(pallas.cdiv(size, _BLOCK),),
            in_specs=[row] * n_inputs,
            out_specs=[row] * len(outputs),
            out_shape=[jax.ShapeDtypeStruct((size,), dtype) for dtype in out_dtypes],
            interpret=interpret,
            compiler_params=None if interpret else triton.CompilerParams(num_warps=_WARPS),
        )(*vectors)

    return function


def _scalar_outputs(program: ScalarProgram) -> list[int]:
    unknown = (
        {node.operation for node in program.nodes} - _OPERATIONS.keys() - {"input", "constant"}
    )
    arrays = any(numbers.ndim for numbers in program.outputs)
    arrays = arrays or any(n.value[1] for n in program.nodes if n.operation == "input")
    if unknown or arrays:
        what = "arrays" if arrays else ", ".join(sorted(unknown))
        raise NativeUnavailableError(f"A GPU kernel is made of scalars, found {what}.")
    return [int(numbers) for numbers in program.outputs]


def _evaluate(
    program: ScalarProgram, inputs: list[Any], outputs: list[int]
) -> Iterator[tuple[int, Any]]:
    """Every output with its position as soon as it is known: stored at once, it needs no register."""
    places: dict[int, list[int]] = {}
    for position, number in enumerate(outputs):
        places.setdefault(number, []).append(position)
    values: list[Any] = []
    for number, node in enumerate(program.nodes):
        values.append(_value(node, values, inputs))
        for position in places.get(number, ()):
            yield position, values[-1]


def _value(node: Node, values: list[Any], inputs: list[Any]) -> Any:
    if node.operation == "input":
        return inputs[node.value[0]]
    if node.operation == "constant":
        number = node.value if node.dtype == "bool" else node.value[0]
        return jnp.full((_BLOCK,), number, node.dtype)
    if node.operation == "convert":
        return values[node.operands[0]].astype(node.dtype)
    return _OPERATIONS[node.operation](*(values[operand] for operand in node.operands))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "neg": jnp.negative,
    "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "exp": jnp.exp, "log": jnp.log, "sqrt": jnp.sqrt,
    "tanh": jnp.tanh, "sinh": jnp.sinh, "cosh": jnp.cosh, "asin": jnp.arcsin, "acos": jnp.arccos,
    "atan": jnp.arctan, "atan2": jnp.arctan2, "asinh": jnp.arcsinh, "acosh": jnp.arccosh,
    "atanh": jnp.arctanh, "pow": jnp.power, "abs": jnp.abs, "sign": jnp.sign, "max": jnp.maximum,
    "min": jnp.minimum, "log1p": jnp.log1p, "expm1": jnp.expm1, "exp2": jnp.exp2, "erf": jax.lax.erf,
    "erfc": jax.lax.erfc, "cbrt": jnp.cbrt, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal, "eq": jnp.equal, "ne": jnp.not_equal, "and": jnp.logical_and,
    "or": jnp.logical_or, "xor": jnp.logical_xor, "not": jnp.logical_not, "select": jnp.where,
    "convert": jnp.asarray,
}  # fmt: skip
