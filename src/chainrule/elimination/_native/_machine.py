"""What this machine offers a kernel: its processor and a vector mathematics library."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys

import llvmlite.binding as llvm
from llvmlite import ir

from chainrule._processors import processors
from chainrule.elimination._native._handler import emit_handler
from chainrule.elimination._native._lower import Counts, Kernel, VectorMath
from chainrule.elimination._native._scalars import NativeUnavailableError, ScalarProgram

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
