"""From a scalar graph to LLVM: one function, lanes are batch elements.

The function is an XLA foreign-function handler. It reads the buffers from the call frame and runs over
the batch in blocks of `LANES` elements; every scalar operation is one vector instruction, and the
transcendental functions are those of glibc's vector library (libmvec, at most 4 ulp), or lane by lane
those of libm where that is missing. The elements past the last full block are computed in scratch memory.

The layout of the call frame is XLA's C interface (`xla/ffi/api/c_api.h`); `tests/elimination` runs a
kernel on every JAX at hand, so a change there cannot pass unseen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from chainrule.elimination._native._scalars import Node, ScalarProgram

__all__ = ["VectorMath", "lower"]

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = ir.PointerType()
_SCALARS = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "bool": _I1}

# Byte offsets in the structures of XLA's foreign-function interface.
_FRAME_EXTENSION, _FRAME_API, _FRAME_STAGE, _FRAME_ARGS, _FRAME_RETS = 8, 16, 32, 40 + 32, 80 + 32
_EXTENSION_TYPE, _EXTENSION_METADATA = 8, 24
_API_VERSION, _METADATA_VERSION = 32, 24  # major and minor, two 32-bit integers
_BUFFER_DATA, _BUFFER_RANK, _BUFFER_DIMS = 24, 32, 40
_STAGE_EXECUTE, _METADATA_EXTENSION = 3, 1


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


def lower(
    program: ScalarProgram, counts: tuple[tuple[int, ...], tuple[int, ...]], math: VectorMath
) -> str:
    """The LLVM assembly of a module with one exported function, `handler`.

    Args:
        program: the scalars.
        counts: elements per batch element of every argument and of every result.
        math: the vector functions at hand.
    """
    module = ir.Module(name="chainrule_native")
    uses_double = any(node.dtype == "float64" for node in program.nodes)
    lanes = math.bits // (64 if uses_double else 32)
    kernel = _Kernel(module, program, counts, math, lanes)
    _emit_handler(module, kernel, counts)
    return str(module)


def _field(builder: ir.IRBuilder, base: Any, offset: int, type_: ir.Type) -> Any:
    address = builder.gep(base, [ir.Constant(_I64, offset)], source_etype=_I8)
    return builder.load(address, typ=type_)


def _emit_handler(module: ir.Module, kernel: _Kernel, counts: Any) -> None:
    handler = ir.Function(module, ir.FunctionType(_POINTER, [_POINTER]), "handler")
    frame = handler.args[0]
    builder = ir.IRBuilder(handler.append_basic_block())
    null = ir.Constant(_POINTER, None)

    extension = _field(builder, frame, _FRAME_EXTENSION, _POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", extension, null)):
        kind = _field(builder, extension, _EXTENSION_TYPE, _I32)
        is_query = builder.icmp_signed("==", kind, ir.Constant(_I32, _METADATA_EXTENSION))
        with builder.if_then(is_query):
            metadata = _field(builder, extension, _EXTENSION_METADATA, _POINTER)
            # XLA asks which version the handler speaks: its own, since layouts only grow.
            api = _field(builder, frame, _FRAME_API, _POINTER)
            version = _field(builder, api, _API_VERSION, _I64)
            address = builder.gep(
                metadata, [ir.Constant(_I64, _METADATA_VERSION)], source_etype=_I8
            )
            builder.store(version, address)
            builder.ret(null)

    stage = _field(builder, frame, _FRAME_STAGE, _I32)
    executes = builder.icmp_signed("==", stage, ir.Constant(_I32, _STAGE_EXECUTE))
    with builder.if_then(builder.not_(executes)):
        builder.ret(null)

    arguments = _data_pointers(builder, _field(builder, frame, _FRAME_ARGS, _POINTER), counts[0])
    result_buffers = _field(builder, frame, _FRAME_RETS, _POINTER)
    results = _data_pointers(builder, result_buffers, counts[1])
    size = _element_count(builder, handler, builder.load(result_buffers, typ=_POINTER))
    batch = builder.sdiv(size, ir.Constant(_I64, counts[1][0]))
    blocks = builder.sdiv(batch, ir.Constant(_I64, kernel.lanes))
    function = kernel.emit()
    builder.call(function, [blocks, _table(builder, arguments), _table(builder, results)])
    done = builder.mul(blocks, ir.Constant(_I64, kernel.lanes))
    with builder.if_then(builder.icmp_signed("<", done, batch)):
        rest = _Rest(builder, done, builder.sub(batch, done), kernel)
        inputs = [
            rest.copy_in(*item) for item in zip(arguments, counts[0], kernel.in_types, strict=True)
        ]
        outputs = [rest.room(*item) for item in zip(counts[1], kernel.out_types, strict=True)]
        one = ir.Constant(_I64, 1)
        builder.call(function, [one, _table(builder, inputs), _table(builder, outputs)])
        for item in zip(outputs, results, counts[1], kernel.out_types, strict=True):
            rest.copy_out(*item)
    builder.ret(null)


def _data_pointers(builder: ir.IRBuilder, buffers: Any, counts: Sequence[int]) -> list[Any]:
    pointers = []
    for index in range(len(counts)):
        slot = builder.gep(buffers, [ir.Constant(_I64, index)], source_etype=_POINTER)
        pointers.append(_field(builder, builder.load(slot, typ=_POINTER), _BUFFER_DATA, _POINTER))
    return pointers


def _table(builder: ir.IRBuilder, pointers: list[Any]) -> Any:
    table = builder.alloca(_POINTER, len(pointers))
    for index, pointer in enumerate(pointers):
        slot = builder.gep(table, [ir.Constant(_I64, index)], source_etype=_POINTER)
        builder.store(pointer, slot)
    return table


@dataclass(frozen=True)
class _Rest:
    """The elements past the last full block: computed in scratch memory that holds a whole block."""

    builder: ir.IRBuilder
    done: Any
    rows: Any
    kernel: _Kernel

    def room(self, count: int, element: ir.Type) -> Any:
        """Scratch memory for one block, zeroed so that unused lanes hold numbers."""
        size = self.kernel.lanes * count
        scratch = self.builder.alloca(ir.ArrayType(element, size))
        self.builder.store(ir.Constant(ir.ArrayType(element, size), None), scratch)
        return scratch

    def copy_in(self, pointer: Any, count: int, element: ir.Type) -> Any:
        scratch = self.room(count, element)
        self._copy(scratch, self._at(pointer, count, element), count, element)
        return scratch

    def copy_out(self, scratch: Any, pointer: Any, count: int, element: ir.Type) -> None:
        self._copy(self._at(pointer, count, element), scratch, count, element)

    def _at(self, pointer: Any, count: int, element: ir.Type) -> Any:
        offset = self.builder.mul(self.done, ir.Constant(_I64, count))
        return self.builder.gep(pointer, [offset], source_etype=element)

    def _copy(self, target: Any, source: Any, count: int, element: ir.Type) -> None:
        size = self.builder.mul(self.rows, ir.Constant(_I64, count * _bytes(element)))
        self.kernel.call(
            self.builder, "llvm.memcpy.p0.p0.i64", ir.VoidType(),
            [target, source, size, ir.Constant(_I1, 0)],
        )  # fmt: skip


def _element_count(builder: ir.IRBuilder, function: ir.Function, buffer: Any) -> Any:
    """The product of a buffer's dimensions."""
    rank = _field(builder, buffer, _BUFFER_RANK, _I64)
    dims = _field(builder, buffer, _BUFFER_DIMS, _POINTER)
    entry = builder.block
    head, body, done = (function.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    axis, product = builder.phi(_I64), builder.phi(_I64)
    axis.add_incoming(ir.Constant(_I64, 0), entry)
    product.add_incoming(ir.Constant(_I64, 1), entry)
    builder.cbranch(builder.icmp_signed("<", axis, rank), body, done)
    builder.position_at_end(body)
    size = builder.load(builder.gep(dims, [axis], source_etype=_I64), typ=_I64)
    axis.add_incoming(builder.add(axis, ir.Constant(_I64, 1)), body)
    product.add_incoming(builder.mul(product, size), body)
    builder.branch(head)
    builder.position_at_end(done)
    return product


class _Kernel:
    """`kernel(blocks, argument pointers, result pointers)`: the loop over full blocks of lanes."""

    def __init__(
        self, module: ir.Module, program: ScalarProgram, counts: Any, math: VectorMath, lanes: int
    ) -> None:
        self.module, self.program, self.counts = module, program, counts
        self.math, self.lanes = math, lanes
        self.in_types = [ir.FloatType()] * len(counts[0])
        for node in program.nodes:
            if node.operation == "input":
                self.in_types[node.value[0]] = _stored(node)
        self.out_types = [_stored(program.nodes[numbers.flat[0]]) for numbers in program.outputs]
        self._places: dict[int, list[tuple[int, int]]] = {}
        for output, numbers in enumerate(program.outputs):
            for position, number in enumerate(numbers.ravel()):
                self._places.setdefault(int(number), []).append((output, position))

    def emit(self) -> ir.Function:
        """The function, once."""
        signature = ir.FunctionType(ir.VoidType(), [_I64, _POINTER, _POINTER])
        function = ir.Function(self.module, signature, "kernel")
        function.linkage = "internal"
        blocks, in_table, out_table = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        inputs = self._read_table(builder, in_table, len(self.counts[0]))
        outputs = self._read_table(builder, out_table, len(self.counts[1]))
        entry = builder.block
        head, body, done = (function.append_basic_block(n) for n in ("blocks", "block", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        block = builder.phi(_I64)
        block.add_incoming(ir.Constant(_I64, 0), entry)
        builder.cbranch(builder.icmp_signed("<", block, blocks), body, done)
        builder.position_at_end(body)
        self._block(builder, builder.mul(block, ir.Constant(_I64, self.lanes)), inputs, outputs)
        block.add_incoming(builder.add(block, ir.Constant(_I64, 1)), builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        builder.ret_void()
        return function

    def _read_table(self, builder: ir.IRBuilder, table: Any, count: int) -> list[Any]:
        slots = [
            builder.gep(table, [ir.Constant(_I64, index)], source_etype=_POINTER)
            for index in range(count)
        ]
        return [builder.load(slot, typ=_POINTER) for slot in slots]

    def _block(self, builder: ir.IRBuilder, row: Any, inputs: Any, outputs: Any) -> None:
        values: list[Any] = []
        for number, node in enumerate(self.program.nodes):
            if node.operation == "input":
                value = self._load(builder, node, row, inputs)
            elif node.operation == "constant":
                value = _splat(node, self.lanes)
            else:
                operands = [values[operand] for operand in node.operands]
                value = self._operation(builder, node, operands)
            values.append(value)
            # Stored at once, a result need not stay in a register until the end of the block.
            for output, position in self._places.get(number, ()):
                where = (outputs[output], self.counts[1][output], position)
                self._store(builder, value, where, row)

    def _addresses(
        self, builder: ir.IRBuilder, where: Any, row: Any, element: ir.Type
    ) -> list[Any]:
        """The address of every lane; one address when the lanes are neighbours in memory."""
        base, count, position = where
        start = builder.add(builder.mul(row, ir.Constant(_I64, count)), ir.Constant(_I64, position))
        lanes = range(1) if count == 1 else range(self.lanes)
        return [
            builder.gep(
                base, [builder.add(start, ir.Constant(_I64, lane * count))], source_etype=element
            )
            for lane in lanes
        ]

    def _load(self, builder: ir.IRBuilder, node: Node, row: Any, inputs: Any) -> Any:
        argument, position = node.value
        element = _stored(node)
        where = (inputs[argument], self.counts[0][argument], position)
        addresses = self._addresses(builder, where, row, element)
        if len(addresses) == 1:
            type_ = ir.VectorType(element, self.lanes)
            vector = builder.load(addresses[0], align=_bytes(element), typ=type_)
        else:
            vector = _pack(builder, [builder.load(address, typ=element) for address in addresses])
        return _to_mask(builder, vector, self.lanes) if node.dtype == "bool" else vector

    def _store(self, builder: ir.IRBuilder, vector: Any, where: Any, row: Any) -> None:
        if vector.type.element == _I1:
            vector = builder.zext(vector, ir.VectorType(_I8, self.lanes))
        element = vector.type.element
        addresses = self._addresses(builder, where, row, element)
        if len(addresses) == 1:
            builder.store(vector, addresses[0], align=_bytes(element))
            return
        for lane, address in enumerate(addresses):
            builder.store(builder.extract_element(vector, ir.Constant(_I32, lane)), address)

    def _operation(self, builder: ir.IRBuilder, node: Node, operands: list[Any]) -> Any:
        simple = _INSTRUCTIONS.get(node.operation)
        if simple is not None:
            return simple(builder, *operands)
        if node.operation == "convert":
            return _convert(builder, operands[0], ir.VectorType(_SCALARS[node.dtype], self.lanes))
        if node.operation in _INTRINSICS:
            return self._intrinsic(builder, _INTRINSICS[node.operation], operands)
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
        element = _SCALARS["float32" if is_float else "float64"]
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
            index = ir.Constant(_I32, lane)
            values = [builder.extract_element(operand, index) for operand in operands]
            results.append(self.call(builder, symbol, element, values))
        return _pack(builder, results)


def _stored(node: Node) -> ir.Type:
    """The type of a node's value in memory."""
    return _I8 if node.dtype == "bool" else _SCALARS[node.dtype]


def _bytes(element: ir.Type) -> int:
    return {ir.FloatType(): 4, ir.DoubleType(): 8}.get(element, 1)


def _splat(node: Node, lanes: int) -> Any:
    element = _SCALARS[node.dtype]
    if node.dtype == "bool":
        return ir.Constant(ir.VectorType(element, lanes), [int(node.value)] * lanes)
    return ir.Constant(ir.VectorType(element, lanes), [_literal(element, node.value[0])] * lanes)


class _HexFloat(ir.Constant):
    """A float written by its bits, so that NaN, infinities and the last digit survive the text form."""

    def get_reference(self) -> str:
        return "0x" + struct.pack(">d", self.constant).hex()


def _literal(element: ir.Type, value: float) -> Any:
    return _HexFloat(element, value)


def _pack(builder: ir.IRBuilder, lanes: list[Any]) -> Any:
    vector = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
    for lane, value in enumerate(lanes):
        vector = builder.insert_element(vector, value, ir.Constant(_I32, lane))
    return vector


def _to_mask(builder: ir.IRBuilder, vector: Any, lanes: int) -> Any:
    zeros = ir.Constant(ir.VectorType(_I8, lanes), [0] * lanes)
    return builder.icmp_unsigned("!=", vector, zeros)


def _constant_like(vector: Any, value: float) -> Any:
    lanes = vector.type.count
    return ir.Constant(vector.type, [_literal(vector.type.element, value)] * lanes)


def _convert(builder: ir.IRBuilder, x: Any, target: Any) -> Any:
    if x.type.element == _I1:
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


_INSTRUCTIONS: dict[str, Callable[..., Any]] = {
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
    "not": lambda builder, x: builder.not_(x),
}

_INTRINSICS = {
    "sqrt": "llvm.sqrt",
    "abs": "llvm.fabs",
    "max": "llvm.maximum",
    "min": "llvm.minimum",
}
