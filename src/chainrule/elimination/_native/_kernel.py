"""A native kernel as a JAX function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from chainrule._jaxpr import ClosedJaxpr, evaluate
from chainrule.elimination._native._scalars import NativeUnavailableError, scalarise

if TYPE_CHECKING:
    from chainrule.elimination._native._machine import CompiledModule

__all__ = ["NativeUnavailableError", "native_function"]

_registration = threading.Lock()
_registered: dict[str, CompiledModule] = {}
"""Modules by call target, never dropped: XLA holds their addresses for the rest of the process."""


def native_function(program: ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """The program as one native kernel on the CPU, and as it is on other devices.

    The result takes and gives what the program does. Under `vmap` the batch becomes the kernel's loop.
    Its derivative is the program's, through XLA.

    Raises:
        NativeUnavailableError: llvmlite is not installed, or the program has no scalar form.
    """
    target = _register(program)
    out_types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in program.out_avals]

    def through_xla(*operands: Any) -> list[jax.Array]:
        return evaluate(program, operands)

    def through_kernel(*operands: Any) -> list[jax.Array]:
        call = jax.ffi.ffi_call(target, out_types, vmap_method="broadcast_all")
        return list(call(*operands))

    @jax.custom_jvp
    def function(*operands: Any) -> list[jax.Array]:
        return jax.lax.platform_dependent(*operands, cpu=through_kernel, default=through_xla)

    @function.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        return jax.jvp(through_xla, primals, tangents)

    return function


def _register(program: ClosedJaxpr) -> str:
    """Make a program's kernel known to XLA; the name of the call target."""
    assembly = _assemble(program)
    from chainrule.elimination._native._machine import compile_module, fingerprint_of

    target = f"chainrule_native_{fingerprint_of(assembly)}"
    with _registration:
        if target not in _registered:
            module = compile_module(assembly)
            capsule = jax.ffi.pycapsule(module.handler)
            jax.ffi.register_ffi_target(target, capsule, platform="cpu")
            _registered[target] = module
    return target


def _assemble(program: ClosedJaxpr) -> str:
    """The LLVM assembly of a program's kernel."""
    if not program.out_avals or not program.in_avals:
        raise NativeUnavailableError("A native kernel needs at least one input and one output.")
    counts = (_sizes(program.in_avals), _sizes(program.out_avals))
    if 0 in counts[1]:
        raise NativeUnavailableError("A native kernel writes non-empty arrays only.")
    scalars = scalarise(program)
    try:
        from chainrule.elimination._native._machine import lower
    except ImportError as error:
        raise NativeUnavailableError(
            "Native kernels need llvmlite: pip install 'chainrule[native]'."
        ) from error
    return lower(scalars, counts)


def _sizes(avals: Any) -> tuple[int, ...]:
    return tuple(int(np.prod(aval.shape, dtype=np.int64)) for aval in avals)
