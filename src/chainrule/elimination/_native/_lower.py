"""From a scalar graph to LLVM: one function, lanes are batch elements.

The kernel runs over the batch in blocks of `lanes` elements; every scalar operation is one vector
instruction, and the transcendental functions are those of glibc's vector library (libmvec, at most 4 ulp),
or lane by lane those of libm where that is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from chainrule.elimination._native._scalars import Node, ScalarProgram

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


@contextmanager
def loop(builder: ir.IRBuilder, first: Any, end: Any) -> Iterator[Any]:
    """Emit the body of a loop over the numbers from `first` to `end` - 1; gives the number."""
    entry = builder.block
    head, body, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(first, entry)
    builder.cbranch(builder.icmp_signed("<", index, end), body, done)
    builder.position_at_end(body)
    yield index
    # The body may have ended in a block of its own.
    index.add_incoming(builder.add(index, ir.Constant(I64, 1)), builder.block)
    builder.branch(head)
    builder.position_at_end(done)


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


# One vector instruction, one call of a vector function, one byte written, to the nearest half order. They
# only decide how many threads a loop is worth.
_SIMPLE_NS, _FUNCTION_NS, _BYTE_NS = 0.3, 10.0, 0.03

Counts = tuple[tuple[int, ...], tuple[int, ...]]
"""Elements per batch element of every argument and of every result."""


@dataclass(frozen=True)
class VectorMath:
    """Which vector functions the machine offers.

    Attributes:
        prefix: the letter of the vector ABI (`"d"` for AVX2, `"e"` for AVX-512), or `None` when
            there is no vector library.
        bits: register width.
        names: functions present, without the float suffix.
    """

    prefix: str | None
    bits: int
    names: frozenset[str]


@dataclass(frozen=True)
class _Run:
    """Neighbouring entries of one result: as many as lanes, or a single one."""

    output: int
    position: int
    numbers: tuple[int, ...]


class Kernel:
    """`kernel(first, end, argument pointers, result pointers)`: the loop over some full blocks of lanes."""

    def __init__(
        self, module: ir.Module, program: ScalarProgram, counts: Counts, math: VectorMath
    ) -> None:
        self.module, self.program, self.counts, self.math = module, program, counts, math
        uses_double = any(node.dtype == "float64" for node in program.nodes)
        self.lanes = math.bits // (64 if uses_double else 32)
        self.in_types = [ir.FloatType()] * len(counts[0])
        for node in program.nodes:
            if node.operation == "input":
                self.in_types[node.value[0]] = stored_type(node)
        self.out_types = [
            stored_type(program.nodes[numbers.flat[0]]) for numbers in program.outputs
        ]
        self.constants = dict(self._constant_outputs())
        self._runs: dict[int, list[_Run]] = {}
        for run in self._plan_runs():
            self._runs.setdefault(max(run.numbers), []).append(run)

    def _constant_outputs(self) -> Iterator[tuple[int, float]]:
        """Results that are one and the same number everywhere, such as structural zeros.

        They are filled one after the other: a loop that writes to a hundred arrays at once, as the
        kernel's would, thrashes the cache.
        """
        for output, numbers in enumerate(self.program.outputs):
            first = int(numbers.flat[0])
            value = self.program.constant_value(first)
            if value is not None and (numbers == first).all():
                yield output, value

    def _plan_runs(self) -> Iterator[_Run]:
        """The other results, cut into runs that can be stored together."""
        for output, numbers in enumerate(self.program.outputs):
            if output in self.constants:
                continue
            flat, count = numbers.ravel().tolist(), numbers.size
            whole = count - count % self.lanes if self.lanes > 1 and count > 1 else 0
            for start in range(0, whole, self.lanes):
                yield _Run(output, start, tuple(flat[start : start + self.lanes]))
            for position in range(whole, count):
                yield _Run(output, position, (flat[position],))

    def emit(self) -> ir.Function:
        """The function, once."""
        signature = ir.FunctionType(ir.VoidType(), [I64, I64, POINTER, POINTER])
        function = ir.Function(self.module, signature, "kernel")
        function.linkage = "internal"
        first, end, in_table, out_table = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        inputs = self.read_table(builder, in_table, len(self.counts[0]))
        outputs = self.read_table(builder, out_table, len(self.counts[1]))
        with loop(builder, first, end) as block:
            self._block(builder, builder.mul(block, ir.Constant(I64, self.lanes)), inputs, outputs)
        builder.ret_void()
        return function

    @property
    def row_ns(self) -> float:
        """Roughly the time that one element of the batch takes."""
        return self._computing_ns + self._writing_ns

    @property
    def _computing_ns(self) -> float:
        kinds = [node.operation for node in self.program.nodes]
        simple = sum(kind in INSTRUCTIONS for kind in kinds)
        other = sum(
            kind not in INSTRUCTIONS and kind not in ("input", "constant") for kind in kinds
        )
        return (simple * _SIMPLE_NS + other * _FUNCTION_NS) / self.lanes

    @property
    def _writing_ns(self) -> float:
        sizes = zip(self.counts[1], self.out_types, strict=True)
        return sum(count * byte_size(type_) for count, type_ in sizes) * _BYTE_NS

    def read_table(self, builder: ir.IRBuilder, table: Any, count: int) -> list[Any]:
        """The pointers of a table."""
        slots = [
            builder.gep(table, [ir.Constant(I64, index)], source_etype=POINTER)
            for index in range(count)
        ]
        return [builder.load(slot, typ=POINTER) for slot in slots]

    def _block(self, builder: ir.IRBuilder, row: Any, inputs: Any, outputs: Any) -> None:
        values: list[Any] = []
        for number, node in enumerate(self.program.nodes):
            if node.operation == "input":
                value = self._load(builder, node, row, inputs)
            elif node.operation == "constant":
                value = splat(node, self.lanes)
            else:
                operands = [values[operand] for operand in node.operands]
                value = self._operation(builder, node, operands)
            values.append(value)
            # Stored as soon as it is complete, a run need not stay in registers until the end.
            for run in self._runs.get(number, ()):
                self._store(builder, [values[n] for n in run.numbers], run, row, outputs)

    def _addresses(
        self, builder: ir.IRBuilder, where: Any, row: Any, element: ir.Type
    ) -> list[Any]:
        """The address of every lane; one address when the lanes are neighbours in memory."""
        base, count, position = where
        start = builder.add(builder.mul(row, ir.Constant(I64, count)), ir.Constant(I64, position))
        lanes = range(1) if count == 1 else range(self.lanes)
        return [
            builder.gep(
                base, [builder.add(start, ir.Constant(I64, lane * count))], source_etype=element
            )
            for lane in lanes
        ]

    def _load(self, builder: ir.IRBuilder, node: Node, row: Any, inputs: Any) -> Any:
        argument, position = node.value
        element = stored_type(node)
        where = (inputs[argument], self.counts[0][argument], position)
        addresses = self._addresses(builder, where, row, element)
        if len(addresses) == 1:
            type_ = ir.VectorType(element, self.lanes)
            vector = builder.load(addresses[0], align=byte_size(element), typ=type_)
        else:
            vector = pack(builder, [builder.load(address, typ=element) for address in addresses])
        return to_mask(builder, vector, self.lanes) if node.dtype == "bool" else vector

    def _store(
        self, builder: ir.IRBuilder, vectors: list[Any], run: _Run, row: Any, outputs: Any
    ) -> None:
        if vectors[0].type.element == I1:
            vectors = [builder.zext(v, ir.VectorType(I8, self.lanes)) for v in vectors]
        element = vectors[0].type.element
        where = (outputs[run.output], self.counts[1][run.output], run.position)
        addresses = self._addresses(builder, where, row, element)
        if len(vectors) > 1:
            # Neighbouring entries of the same batch element: one row of memory per lane.
            values = transpose(builder, vectors)
        elif len(addresses) == 1:
            values = vectors
        else:
            lanes = range(self.lanes)
            values = [builder.extract_element(vectors[0], ir.Constant(I32, j)) for j in lanes]
        for value, address in zip(values, addresses, strict=True):
            builder.store(value, address, align=byte_size(element))

    def _operation(self, builder: ir.IRBuilder, node: Node, operands: list[Any]) -> Any:
        simple = INSTRUCTIONS.get(node.operation)
        if simple is not None:
            return simple(builder, *operands)
        if node.operation == "convert":
            return convert(builder, operands[0], ir.VectorType(SCALARS[node.dtype], self.lanes))
        if node.operation in INTRINSICS:
            return self._intrinsic(builder, INTRINSICS[node.operation], operands)
        return self._vector_function(builder, node.operation, operands)

    def _intrinsic(self, builder: ir.IRBuilder, name: str, operands: list[Any]) -> Any:
        type_ = operands[0].type
        suffix = f"v{self.lanes}{'f32' if type_.element == ir.FloatType() else 'f64'}"
        return self.call(builder, f"{name}.{suffix}", type_, operands)

    def call(self, builder: ir.IRBuilder, name: str, result: Any, operands: list[Any]) -> Any:
        """Call an external function by name, declared at its first use."""
        function = self.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(result, [operand.type for operand in operands])
            function = ir.Function(self.module, signature, name)
            if not name.startswith("llvm."):
                function.attributes.add("nounwind")
        return builder.call(function, operands)

    def _vector_function(self, builder: ir.IRBuilder, name: str, operands: list[Any]) -> Any:
        is_float = operands[0].type.element == ir.FloatType()
        symbol = name + ("f" if is_float else "")
        element = SCALARS["float32" if is_float else "float64"]
        native = self.math.bits // (32 if is_float else 64)
        if name not in self.math.names or self.lanes != native:
            return self._lane_by_lane(builder, symbol, element, operands)
        mangled = f"_ZGV{self.math.prefix}N{native}{'v' * len(operands)}_{symbol}"
        return self.call(builder, mangled, operands[0].type, operands)

    def _lane_by_lane(
        self, builder: ir.IRBuilder, symbol: str, element: ir.Type, operands: list[Any]
    ) -> Any:
        results = []
        for lane in range(self.lanes):
            index = ir.Constant(I32, lane)
            values = [builder.extract_element(operand, index) for operand in operands]
            results.append(self.call(builder, symbol, element, values))
        return pack(builder, results)
