"""A native kernel as a JAX function."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    ClosedJaxpr,
    divided_over_batch,
    evaluate,
    varies,
)
from chainrule.elimination._native._gpu import batched_kernel
from chainrule.elimination._native._scalars import (
    NativeUnavailableError,
    ScalarProgram,
    has_scalar_form,
    scalarise,
)

if TYPE_CHECKING:
    from chainrule.elimination._native._cpu import CompiledModule

# Held while a module is compiled: two threads that want the same kernel compile it once, and XLA refuses a
# second registration under the same name.
_registration = threading.Lock()
_registered: dict[str, CompiledModule] = {}
"""Modules by call target, never dropped: XLA holds their addresses for the rest of the process."""


def may_be_native(program: ClosedJaxpr, *, batched: bool) -> bool:
    """Whether it is worth trying to make a kernel of a program, without making it."""
    if any(map(varies, program.in_avals)):
        return False
    if jax.default_backend() != "cpu":
        scalars = (*program.in_avals, *program.out_avals)
        return jax.default_backend() == "gpu" and batched and not any(a.shape for a in scalars)
    return importlib.util.find_spec("llvmlite") is not None and has_scalar_form(program)


def native_function(program: ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """The program as one native kernel, on the CPU and on a GPU, and as it is on other devices.

    The result takes and gives what the program does. Under `vmap` the batch becomes the kernel's loop on
    the CPU and its grid on a GPU. Its derivative is the program's, through XLA.

    Raises:
        NativeUnavailableError: no device of this process can have a kernel for this program.
    """
    if not program.out_avals or not program.in_avals:
        raise NativeUnavailableError("A native kernel needs at least one input and one output.")
    if any(map(varies, program.in_avals)):
        # Where meshes are part of types, constants cannot be computed while a program is made.
        raise NativeUnavailableError("There are no native kernels inside of `shard_map`.")
    scalars = scalarise(program)

    def through_xla(*operands: Any) -> list[jax.Array]:
        return evaluate(program, operands)

    kernels = _kernels(program, scalars, through_xla)

    @jax.custom_jvp
    def function(*operands: Any) -> list[jax.Array]:
        return jax.lax.platform_dependent(*operands, **kernels, default=through_xla)

    @function.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        return jax.jvp(through_xla, primals, tangents)

    return function


Computation = Callable[..., list[jax.Array]]


def _kernels(
    program: ClosedJaxpr, scalars: ScalarProgram, through_xla: Computation
) -> dict[str, Computation]:
    """Platform → kernel, for the platforms of this process."""
    makers: dict[str, Callable[[], Computation]] = {"cpu": lambda: _cpu_kernel(program, scalars)}
    if any(device.platform == "gpu" for device in jax.devices()):
        makers["cuda"] = lambda: on_batches(batched_kernel(scalars), through_xla)
    kernels, reasons = {}, []
    for platform, make in makers.items():
        try:
            kernels[platform] = make()
        except NativeUnavailableError as error:
            reasons.append(error)
    if not kernels:
        raise reasons[0]
    return kernels


def _cpu_kernel(program: ClosedJaxpr, scalars: ScalarProgram) -> Computation:
    """One kernel for any batch: it finds the number of elements in the shape of its first result.

    Each `vmap` adds an axis in front of all operands; with it the same kernel loops over more elements.
    """
    target = _register(program, scalars)

    def through_kernel(batch: tuple[int, ...], *operands: Any) -> list[jax.Array]:
        out_types = [
            jax.ShapeDtypeStruct((*batch, *aval.shape), aval.dtype) for aval in program.out_avals
        ]
        return list(jax.ffi.ffi_call(target, out_types)(*operands))

    @cache
    def with_batch_axes(rank: int) -> Computation:
        def single(*operands: Any) -> list[jax.Array]:
            return through_kernel(operands[0].shape[:rank], *operands)

        kernel = divided_over_batch(single, rank) if rank else single
        return on_batches(lambda *operands: with_batch_axes(rank + 1)(*operands), kernel)

    return with_batch_axes(0)


def on_batches(kernel: Computation, single: Computation) -> Computation:
    """`single` for one batch element, `kernel` for a batch of them."""
    function = jax.custom_batching.custom_vmap(lambda *operands: list(single(*operands)))

    @function.def_vmap
    def batched(size: int, is_batched: Any, *operands: Any) -> tuple[list[Any], list[bool]]:
        vectors = [
            operand if mapped else jnp.broadcast_to(operand, (size, *operand.shape))
            for operand, mapped in zip(operands, is_batched, strict=True)
        ]
        results = list(kernel(*vectors))
        return results, [True] * len(results)

    return function


def _register(program: ClosedJaxpr, scalars: ScalarProgram) -> str:
    """Make a program's kernel known to XLA; the name of the call target."""
    assembly = _assemble(program, scalars)
    from chainrule.elimination._native._cpu import compile_module, fingerprint_of

    target = f"chainrule_native_{fingerprint_of(assembly)}"
    with _registration:
        if target not in _registered:
            module = compile_module(assembly)
            capsule = jax.ffi.pycapsule(module.handler)
            jax.ffi.register_ffi_target(target, capsule, platform="cpu")
            _registered[target] = module
    return target


def _assemble(program: ClosedJaxpr, scalars: ScalarProgram) -> str:
    """The LLVM assembly of a program's kernel."""
    counts = (_sizes(program.in_avals), _sizes(program.out_avals))
    if 0 in counts[1]:
        raise NativeUnavailableError("A native kernel writes non-empty arrays only.")
    try:
        from chainrule.elimination._native._cpu import lower
    except (ImportError, OSError) as error:  # not installed, or without its library
        raise NativeUnavailableError(
            "Native kernels need llvmlite: pip install 'chainrule[native]'."
        ) from error
    return lower(scalars, counts)


def _sizes(avals: Any) -> tuple[int, ...]:
    return tuple(int(np.prod(aval.shape, dtype=np.int64)) for aval in avals)
