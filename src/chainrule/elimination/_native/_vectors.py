"""Vectors of lanes in LLVM: what a scalar operation becomes when it is done for many batch elements."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from chainrule.elimination._native._scalars import Node

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
SCALARS = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "bool": I1}


def stored_type(node: Node) -> ir.Type:
    """The type of a node's value in memory."""
    return I8 if node.dtype == "bool" else SCALARS[node.dtype]


def byte_size(element: ir.Type) -> int:
    """The size of a value in memory."""
    return {ir.FloatType(): 4, ir.DoubleType(): 8}.get(element, 1)


def splat(node: Node, lanes: int) -> Any:
    """A constant in every lane."""
    element = SCALARS[node.dtype]
    if node.dtype == "bool":
        return ir.Constant(ir.VectorType(element, lanes), [int(node.value)] * lanes)
    return ir.Constant(ir.VectorType(element, lanes), [_Literal(element, node.value[0])] * lanes)


def literal(element: ir.Type, value: float) -> ir.Constant:
    """A floating-point constant, exactly."""
    return _Literal(element, value)


class _Literal(ir.Constant):
    """A float written by its bits, so that NaN, infinities and the last digit survive the text form."""

    def get_reference(self) -> str:
        return "0x" + struct.pack(">d", self.constant).hex()


def pack(builder: ir.IRBuilder, lanes: Sequence[Any]) -> Any:
    """A vector from one value per lane."""
    vector = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
    for lane, value in enumerate(lanes):
        vector = builder.insert_element(vector, value, ir.Constant(I32, lane))
    return vector


def transpose(builder: ir.IRBuilder, vectors: Sequence[Any]) -> list[Any]:
    """As many vectors as lanes, transposed: lane j of result i is lane i of vector j.

    A butterfly: at distance d = 1, 2, 4, …, vectors i and i + d exchange the d × d blocks off the diagonal.
    """
    rows, lanes = list(vectors), len(vectors)
    distance = 1
    while distance < lanes:
        upper = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        lower = [j + distance if not j & distance else lanes + j for j in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(a, b, _indices(upper))
                rows[i + distance] = builder.shuffle_vector(a, b, _indices(lower))
        distance *= 2
    return rows


def _indices(numbers: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(numbers)), list(numbers))


def to_mask(builder: ir.IRBuilder, vector: Any, lanes: int) -> Any:
    """Stored booleans as a vector of bits."""
    zeros = ir.Constant(ir.VectorType(I8, lanes), [0] * lanes)
    return builder.icmp_unsigned("!=", vector, zeros)


def _constant_like(vector: Any, value: float) -> Any:
    lanes = vector.type.count
    return ir.Constant(vector.type, [_Literal(vector.type.element, value)] * lanes)


def convert(builder: ir.IRBuilder, x: Any, target: Any) -> Any:
    """A vector in another floating-point type."""
    if x.type.element == I1:
        return builder.uitofp(x, target)
    if target.element == ir.DoubleType():
        return builder.fpext(x, target)
    return builder.fptrunc(x, target)


def _sign(builder: ir.IRBuilder, x: Any) -> Any:
    # ±1 by comparison; zeros and NaN are their own sign.
    zero = _constant_like(x, 0.0)
    negative = builder.select(builder.fcmp_ordered("<", x, zero), _constant_like(x, -1.0), x)
    return builder.select(builder.fcmp_ordered(">", x, zero), _constant_like(x, 1.0), negative)


def _fused(method: str) -> Callable[..., Any]:
    # "contract" lets a·b + c become one instruction, as XLA does too.
    return lambda builder, *operands: getattr(builder, method)(*operands, flags=("contract",))


def _compare(sign: str) -> Callable[..., Any]:
    return lambda builder, a, b: builder.fcmp_ordered(sign, a, b)


INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "add": _fused("fadd"),
    "sub": _fused("fsub"),
    "mul": _fused("fmul"),
    "div": _fused("fdiv"),
    "neg": lambda builder, x: builder.fneg(x),
    "sign": _sign,
    "select": lambda builder, which, yes, no: builder.select(which, yes, no),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "eq": _compare("=="),
    "ne": lambda builder, a, b: builder.fcmp_unordered("!=", a, b),
    "and": lambda builder, a, b: builder.and_(a, b),
    "or": lambda builder, a, b: builder.or_(a, b),
    "xor": lambda builder, a, b: builder.xor(a, b),
    "not": lambda builder, x: builder.not_(x),
}

INTRINSICS = {
    "sqrt": "llvm.sqrt",
    "abs": "llvm.fabs",
    "max": "llvm.maximum",
    "min": "llvm.minimum",
}
