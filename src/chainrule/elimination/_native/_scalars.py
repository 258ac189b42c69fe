"""A graph of scalar operations.

Nodes are interned: writing the same operation on the same operands twice gives the same node, which is
common-subexpression elimination for free; constants are folded, and multiplications by one and additions
of zero disappear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chainrule._errors import CapabilityError

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
