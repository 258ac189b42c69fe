"""A kernel for this machine's processor, as a function that XLA calls.

`emit_handler` writes the handler in LLVM: from XLA's call frame, whose layout is in
`chainrule._jaxpr.call_frame`, to the kernel and back. The elements past the last full block of lanes are
computed in scratch memory. A long loop is shared by threads that are started for it and end with it.
`compile_module` makes machine code, with what the processor and the C library offer. Importing this module
needs llvmlite.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from chainrule._jaxpr import call_frame
from chainrule._processors import processors
from chainrule.elimination._native._lower import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Counts,
    Kernel,
    VectorMath,
    byte_size,
    literal,
    loop,
)
from chainrule.elimination._native._scalars import NativeUnavailableError, ScalarProgram

_PART_NS = 200_000
"""The least that is worth a thread, which takes about 20 µs to start and to end: then that is a tenth."""
_CONTEXT = ir.LiteralStructType([I64, I64, POINTER, POINTER])
"""What a part has to know: its first block, the first one after it, tables of arguments and of results."""


def emit_handler(module: ir.Module, kernel: Kernel, *, threads: int) -> None:
    """Add the function `handler`, which XLA calls, to a module.

    Args:
        module: where to.
        kernel: of the same module.
        threads: the most that share a long loop.
    """
    # XLA calls a handler with a frame, first to ask for its version (an extension of the frame), then once
    # per stage of a program's life; the work is done in the last stage. It returns a null pointer for
    # success.
    handler = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), "handler")
    frame = handler.args[0]
    builder = ir.IRBuilder(handler.append_basic_block())
    null = ir.Constant(POINTER, None)

    extension = _field(builder, frame, call_frame.FRAME_EXTENSION, POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", extension, null)):
        kind = _field(builder, extension, call_frame.EXTENSION_KIND, I32)
        is_query = builder.icmp_signed("==", kind, ir.Constant(I32, call_frame.METADATA_EXTENSION))
        with builder.if_then(is_query):
            metadata = _field(builder, extension, call_frame.EXTENSION_METADATA, POINTER)
            address = builder.gep(
                metadata, [ir.Constant(I64, call_frame.METADATA_VERSION)], source_etype=I8
            )
            builder.store(ir.Constant(I64, call_frame.ffi_version()), address)
            builder.ret(null)

    stage = _field(builder, frame, call_frame.FRAME_STAGE, I32)
    executes = builder.icmp_signed("==", stage, ir.Constant(I32, call_frame.STAGE_EXECUTE))
    with builder.if_then(builder.not_(executes)):
        builder.ret(null)

    arguments = _data_pointers(
        builder, _field(builder, frame, call_frame.FRAME_OPERANDS, POINTER), kernel.counts[0]
    )
    result_buffers = _field(builder, frame, call_frame.FRAME_RESULTS, POINTER)
    results = _data_pointers(builder, result_buffers, kernel.counts[1])
    size = _element_count(builder, builder.load(result_buffers, typ=POINTER))
    batch = builder.sdiv(size, ir.Constant(I64, kernel.counts[1][0]))
    blocks = builder.sdiv(batch, ir.Constant(I64, kernel.lanes))
    function = kernel.emit()
    tables = _table(builder, arguments), _table(builder, results)
    _emit_blocks(builder, kernel, function, (blocks, *tables), threads)
    done = builder.mul(blocks, ir.Constant(I64, kernel.lanes))
    with builder.if_then(builder.icmp_signed("<", done, batch)):
        _fill_constants(builder, kernel, results, done, batch)
        rest = _Rest(builder, done, builder.sub(batch, done), kernel)
        inputs = [
            rest.copy_in(*item)
            for item in zip(arguments, kernel.counts[0], kernel.in_types, strict=True)
        ]
        outputs = [
            rest.room(*item) for item in zip(kernel.counts[1], kernel.out_types, strict=True)
        ]
        block = [ir.Constant(I64, 0), ir.Constant(I64, 1)]
        builder.call(function, [*block, _table(builder, inputs), _table(builder, outputs)])
        for output, room in enumerate(outputs):
            if output not in kernel.constants:
                count, element = kernel.counts[1][output], kernel.out_types[output]
                rest.copy_out(room, results[output], count, element)
    builder.ret(null)


def _emit_blocks(
    builder: ir.IRBuilder, kernel: Kernel, function: ir.Function, what: Any, threads: int
) -> None:
    """Compute all full blocks, in parts of equal size: one on this thread, others on threads made for them.

    There are as many parts as are long enough to be worth a thread. A part whose thread cannot be started is
    computed here.
    """
    blocks, *tables = what
    part = _emit_part(kernel, function)
    # Counted in units of 1/1024 ns, in which the time of a row is a whole number.
    rows = builder.mul(blocks, ir.Constant(I64, kernel.lanes))
    expected = builder.mul(rows, ir.Constant(I64, math.ceil(kernel.row_ns * 1024)))
    wanted = builder.sdiv(expected, ir.Constant(I64, 1024 * _PART_NS))
    count = _between(builder, wanted, 1, threads)
    step = builder.sdiv(
        builder.add(blocks, builder.sub(count, ir.Constant(I64, 1))), count, name="step"
    )
    # On this function's stack. That is safe because every thread that was started is joined before it
    # returns; one that could not be started has no handle, and its part is computed here.
    contexts = [_reserve(builder, _CONTEXT) for _ in range(threads)]
    handles = [_reserve(builder, I64) for _ in range(threads)]
    failed = [_reserve(builder, I32) for _ in range(threads)]

    def is_used(number: int) -> Any:
        return builder.icmp_signed("<", ir.Constant(I64, number), count)

    for number, context in enumerate(contexts):
        first = builder.mul(ir.Constant(I64, number), step)
        end = builder.add(first, step)
        end = builder.select(builder.icmp_signed("<", end, blocks), end, blocks)
        for position, value in enumerate((first, end, *tables)):
            builder.store(value, _slot(builder, context, position))
    for number in range(1, threads):
        with builder.if_then(is_used(number)):
            arguments = [handles[number], ir.Constant(POINTER, None), part, contexts[number]]
            status = kernel.call(builder, "pthread_create", I32, arguments)
            builder.store(status, failed[number])
    builder.call(part, [contexts[0]])
    for number in range(1, threads):
        with builder.if_then(is_used(number)):
            status = builder.load(failed[number], typ=I32)
            is_failed = builder.icmp_signed("!=", status, ir.Constant(I32, 0))
            with builder.if_else(is_failed) as (here, there):
                with here:
                    builder.call(part, [contexts[number]])
                with there:
                    handle = builder.load(handles[number], typ=I64)
                    arguments = [handle, ir.Constant(POINTER, None)]
                    kernel.call(builder, "pthread_join", I32, arguments)


def _between(builder: ir.IRBuilder, value: Any, least: int, most: int) -> Any:
    for bound, sign in ((least, ">"), (most, "<")):
        limit = ir.Constant(I64, bound)
        value = builder.select(builder.icmp_signed(sign, value, limit), value, limit)
    return value


def _reserve(builder: ir.IRBuilder, type_: ir.Type) -> Any:
    """Room on the stack."""
    # By way of an integer, which forgets what it points at: functions are declared once for all pointers.
    return builder.inttoptr(builder.ptrtoint(builder.alloca(type_), I64), POINTER)


def _slot(builder: ir.IRBuilder, context: Any, position: int) -> Any:
    indices = [ir.Constant(I32, 0), ir.Constant(I32, position)]
    return builder.gep(context, indices, source_etype=_CONTEXT)


def _emit_part(kernel: Kernel, function: ir.Function) -> ir.Function:
    """`part(context)`: some of the blocks, in the form of a thread's function."""
    part = ir.Function(kernel.module, ir.FunctionType(POINTER, [POINTER]), "part")
    part.linkage = "internal"
    (context,) = part.args
    builder = ir.IRBuilder(part.append_basic_block())
    first, end, arguments, results = (
        builder.load(_slot(builder, context, position), typ=type_)
        for position, type_ in enumerate(_CONTEXT.elements)
    )
    outputs = kernel.read_table(builder, results, len(kernel.counts[1]))
    rows = (builder.mul(block, ir.Constant(I64, kernel.lanes)) for block in (first, end))
    _fill_constants(builder, kernel, outputs, *rows)
    builder.call(function, [first, end, arguments, results])
    builder.ret(ir.Constant(POINTER, None))
    return part


def _fill_constants(
    builder: ir.IRBuilder, kernel: Kernel, results: Sequence[Any], first: Any, end: Any
) -> None:
    """Write the results that are one number everywhere, for some rows."""
    for output, value in kernel.constants.items():
        element, count = kernel.out_types[output], ir.Constant(I64, kernel.counts[1][output])
        start = builder.gep(results[output], [builder.mul(first, count)], source_etype=element)
        size = builder.mul(builder.sub(end, first), count)
        _fill(kernel.module, builder, start, element, value, size)


def _fill(
    module: ir.Module,
    builder: ir.IRBuilder,
    target: Any,
    element: ir.Type,
    value: float,
    count: Any,
) -> None:
    """Write one number to a whole result, by a function that is shared by all results of this number.

    A function per number, and not one for all of them: only where LLVM sees the zero does it call `memset`.
    """
    number = literal(element, value)
    name = f"fill_{element}_{number.get_reference()}"
    function = module.globals.get(name)
    if function is None:
        function = _emit_fill(module, name, number)
    builder.call(function, [target, count])


def _emit_fill(module: ir.Module, name: str, number: ir.Constant) -> ir.Function:
    signature = ir.FunctionType(ir.VoidType(), [POINTER, I64])
    function = ir.Function(module, signature, name)
    function.linkage = "internal"
    target, count = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    with loop(builder, ir.Constant(I64, 0), count) as index:
        builder.store(number, builder.gep(target, [index], source_etype=number.type))
    builder.ret_void()
    return function


def _field(builder: ir.IRBuilder, base: Any, offset: int, type_: ir.Type) -> Any:
    address = builder.gep(base, [ir.Constant(I64, offset)], source_etype=I8)
    return builder.load(address, typ=type_)


def _data_pointers(builder: ir.IRBuilder, buffers: Any, counts: Sequence[int]) -> list[Any]:
    pointers = []
    for index in range(len(counts)):
        slot = builder.gep(buffers, [ir.Constant(I64, index)], source_etype=POINTER)
        pointers.append(
            _field(builder, builder.load(slot, typ=POINTER), call_frame.BUFFER_DATA, POINTER)
        )
    return pointers


def _table(builder: ir.IRBuilder, pointers: list[Any]) -> Any:
    table = builder.alloca(POINTER, len(pointers))
    for index, pointer in enumerate(pointers):
        slot = builder.gep(table, [ir.Constant(I64, index)], source_etype=POINTER)
        builder.store(pointer, slot)
    return table


@dataclass(frozen=True)
class _Rest:
    """The elements past the last full block: computed in scratch memory that holds a whole block."""

    builder: ir.IRBuilder
    done: Any
    rows: Any
    kernel: Kernel

    def room(self, count: int, element: ir.Type) -> Any:
        """Scratch memory for one block, zeroed so that unused lanes hold numbers."""
        size = self.kernel.lanes * count
        room = _reserve(self.builder, ir.ArrayType(element, size))
        # Not a store of that many zeros: LLVM would take minutes to cut a large one into pieces.
        length = ir.Constant(I64, size * byte_size(element))
        zeros = [room, ir.Constant(I8, 0), length, ir.Constant(I1, 0)]
        self.kernel.call(self.builder, "llvm.memset.p0.i64", ir.VoidType(), zeros)
        return room

    def copy_in(self, pointer: Any, count: int, element: ir.Type) -> Any:
        scratch = self.room(count, element)
        self._copy(scratch, self._at(pointer, count, element), count, element)
        return scratch

    def copy_out(self, scratch: Any, pointer: Any, count: int, element: ir.Type) -> None:
        self._copy(self._at(pointer, count, element), scratch, count, element)

    def _at(self, pointer: Any, count: int, element: ir.Type) -> Any:
        offset = self.builder.mul(self.done, ir.Constant(I64, count))
        return self.builder.gep(pointer, [offset], source_etype=element)

    def _copy(self, target: Any, source: Any, count: int, element: ir.Type) -> None:
        size = self.builder.mul(self.rows, ir.Constant(I64, count * byte_size(element)))
        self.kernel.call(
            self.builder, "llvm.memcpy.p0.p0.i64", ir.VoidType(),
            [target, source, size, ir.Constant(I1, 0)],
        )  # fmt: skip


def _element_count(builder: ir.IRBuilder, buffer: Any) -> Any:
    """The product of a buffer's dimensions."""
    rank = _field(builder, buffer, call_frame.BUFFER_RANK, I64)
    dims = _field(builder, buffer, call_frame.BUFFER_DIMENSIONS, POINTER)
    product = builder.alloca(I64)
    builder.store(ir.Constant(I64, 1), product)
    with loop(builder, ir.Constant(I64, 0), rank) as axis:
        size = builder.load(builder.gep(dims, [axis], source_etype=I64), typ=I64)
        builder.store(builder.mul(builder.load(product), size), product)
    return builder.load(product)


# Kernels were measured on up to 16 processors.
_MOST_THREADS = 16

_FUNCTIONS = (
    "acos acosh asin asinh atan atanh cbrt cos cosh erf erfc exp exp2 expm1 log log1p sin sinh tan tanh"
).split()
_BINARY_FUNCTIONS = ("atan2", "pow")


@functools.cache
def _processor() -> tuple[str, str, str]:
    """Triple, name and features of this machine's processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


def _target_machine() -> llvm.TargetMachine:
    """A new machine each time: the engine that it is given to owns and frees it."""
    triple, name, features = _processor()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=name, features=features, opt=3, codemodel="jitdefault", jit=True
    )


def lower(program: ScalarProgram, counts: Counts) -> str:
    """The LLVM assembly of a program for this machine, with one exported function, `handler`."""
    module = ir.Module(name="chainrule_native")
    # POSIX threads are part of the C library there, which the process has loaded.
    threads = min(processors(), _MOST_THREADS) if sys.platform in ("linux", "darwin") else 1
    emit_handler(module, Kernel(module, program, counts, _vector_math()), threads=threads)
    return str(module)


@functools.cache
def _vector_math() -> VectorMath:
    """The vector functions of glibc's libmvec for the widest registers of this processor."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        prefix, bits = "e", 512
    elif features.get("avx2"):
        prefix, bits = "d", 256
    else:
        return VectorMath(None, 128, frozenset())
    try:
        library = ctypes.CDLL("libmvec.so.1")
        llvm.load_library_permanently("libmvec.so.1")
    except (OSError, RuntimeError):
        return VectorMath(None, bits, frozenset())
    arities = {**dict.fromkeys(_FUNCTIONS, 1), **dict.fromkeys(_BINARY_FUNCTIONS, 2)}
    present = {
        name
        for name, arity in arities.items()
        if hasattr(library, f"_ZGV{prefix}N{bits // 32}{'v' * arity}_{name}f")
        and hasattr(library, f"_ZGV{prefix}N{bits // 64}{'v' * arity}_{name}")
    }
    return VectorMath(prefix, bits, frozenset(present))


class CompiledModule:
    """Machine code, loaded as long as this object lives."""

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine
        self.handler: int = engine.get_function_address("handler")


def fingerprint_of(assembly: str) -> str:
    """Names the machine code of an assembly on this processor with this compiler."""
    identity = (assembly, _processor(), llvm.llvm_version_info)
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:32]


def compile_module(assembly: str) -> CompiledModule:
    """Machine code for LLVM assembly.

    Raises:
        NativeUnavailableError: LLVM refuses the assembly.
    """
    machine = _target_machine()
    try:
        module = llvm.parse_assembly(assembly)
    except RuntimeError as error:
        raise NativeUnavailableError(f"LLVM refuses the kernel: {error}") from error
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return CompiledModule(engine)
