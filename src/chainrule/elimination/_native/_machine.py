"""What this machine offers a kernel: its processor, a vector mathematics library, a place to keep code."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite import ir

from chainrule._folders import cache_folder
from chainrule._processors import processors
from chainrule.elimination._files import keep_newest, write_to_cache
from chainrule.elimination._native._handler import emit_handler
from chainrule.elimination._native._lower import Counts, Kernel, VectorMath
from chainrule.elimination._native._scalars import NativeUnavailableError, ScalarProgram

__all__ = ["CompiledModule", "compile_module", "fingerprint_of", "lower"]

_MOST_THREADS = 16
_MOST_KERNELS = 1000
"""Kernels kept on disk, of some ten or a hundred kilobytes each."""

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
    """Machine code for LLVM assembly, from the cache on disk when it was compiled before.

    Raises:
        NativeUnavailableError: LLVM refuses the assembly.
    """
    fingerprint = fingerprint_of(assembly)
    machine = _target_machine()
    try:
        module = llvm.parse_assembly(assembly)
    except RuntimeError as error:
        raise NativeUnavailableError(f"LLVM refuses the kernel: {error}") from error
    cached = _read_cache(fingerprint)
    if cached is None:
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.set_object_cache(
        notify_func=lambda _, code: _write_cache(fingerprint, code),
        getbuffer_func=lambda _: cached,
    )
    engine.finalize_object()
    return CompiledModule(engine)


def _cache_folder() -> Path | None:
    try:
        return cache_folder("kernels")
    except FileNotFoundError:  # a user without a home
        return None


def _read_cache(fingerprint: str) -> bytes | None:
    folder = _cache_folder()
    try:
        content = b"" if folder is None else (folder / fingerprint).read_bytes()
    except OSError:
        return None
    code, digest = content[:-32], content[-32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write_cache(fingerprint: str, code: bytes) -> None:
    """Keep machine code, whole or not at all; a cache that cannot be written is no error."""
    folder = _cache_folder()
    content = code + hashlib.sha256(code).digest()
    if folder is not None and write_to_cache(folder / fingerprint, content):
        keep_newest(folder, "?" * len(fingerprint), _MOST_KERNELS)
