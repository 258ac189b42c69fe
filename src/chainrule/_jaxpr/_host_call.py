"""Calls of the host out of compiled programs: an XLA FFI handler in Python, JAX's own callback elsewhere.

The handler is a `ctypes` callback: it reads the call frame (`call_frame`), makes NumPy views of the operand
and result buffers and calls the host function that the call's one attribute, a number, stands for. `_problem`
compares sizes and version before the first field is trusted. `jax.pure_callback` does the same through
several layers of copies and conversions, at about eight times the cost of a small call. `lower_host_call`
chooses between the two when a program is lowered.

Memory: the views are of XLA's own buffers. XLA keeps operands and results alive until the handler returns and
may reuse them right after. So no view may be used later: a function that keeps an operand copies it. The
views hold no reference to anything of XLA's.

Invariant: no exception leaves the handler. `ctypes` would swallow it, and XLA would take what happens to be
in the result buffers for an answer.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from inspect import signature
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np
from jax._src import callback as _callback
from jax._src import checkify as _checkify
from jax._src import dispatch as _dispatch
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax.extend.core import Primitive
from jax.interpreters import mlir

from chainrule._errors import CapabilityError
from chainrule._jaxpr.call_frame import (
    API_HEADER,
    BUFFER_DATA,
    CALL_FRAME,
    ERROR_CREATE,
    EXTENSION,
    METADATA_EXTENSION,
    METADATA_VERSION,
    SCALAR_VALUE,
    ffi_version,
)

TARGET = "chainrule_host_call"

_UNKNOWN = 2  # absl's status code for an error from outside

# What NumPy can view. XLA's four-bit types, for one, it cannot.
_SUPPORTED = frozenset(
    np.dtype(scalar)
    for scalar in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
        np.float16, np.float32, np.float64, np.complex64, np.complex128, ml_dtypes.bfloat16,
    )
)  # fmt: skip


class HostFunction(Protocol):
    """What a call's number stands for; its `repr` says which function it is.

    Attributes:
        targets: empty at first; how compiled programs call it, by the types of operands and results.
    """

    targets: dict[Any, HostTarget]

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Fill `results`; return `None`, or the text of the error. Never raises."""
        ...


class Buffers:
    """How NumPy sees the buffers of one side of a call; the compiled program knows shapes and dtypes."""

    def __init__(self, avals: Sequence[Any]) -> None:
        self._views = [_view_of(n, aval) for n, aval in enumerate(avals)]

    def at(self, address: int) -> list[np.ndarray]:
        """The arrays in the buffers whose descriptions are listed at an address."""
        return [
            np.ndarray(
                shape, dtype, memory(_word(_word(address + entry).value + BUFFER_DATA).value)
            )
            for entry, shape, dtype, memory in self._views
        ]


_word = ctypes.c_uint64.from_address
"""The word at an address; its `value` can be read and written."""


def _view_of(number: int, aval: Any) -> tuple[int, tuple[int, ...], np.dtype[Any], Any]:
    """Where the address of a buffer's description is in the list, its shape and dtype, and what takes the
    address of its data."""
    shape, dtype = tuple(aval.shape), np.dtype(aval.dtype)
    memory = ctypes.c_char * (dtype.itemsize * math.prod(shape))
    return number * ctypes.sizeof(ctypes.c_uint64), shape, dtype, memory.from_address


class HostTarget:
    """A host function as compiled programs call it: with a number, and views of its buffers."""

    def __init__(
        self, function: HostFunction, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        # Counted, so that a program has the same text in every process and is found in the compilation
        # cache; with a digest, so that a program from elsewhere does not find another function's buffers.
        digest = zlib.crc32(repr((function, operands, results)).encode())
        # 32 bits of the digest and 24 of the count: the attribute of the call is a signed integer of 64.
        self.number = digest << 24 | next(_numbers)
        self.function = function
        self.operands, self.results = Buffers(operands), Buffers(results)

    def __reduce__(self) -> Any:
        """Refuse to be pickled: the number means nothing, or something else, in another process."""
        raise CapabilityError(
            f"This compiled program calls this host ({self.function!r}) and cannot be serialised. Compile it "
            "again where it is to run; with `jax_compilation_cache_dir` JAX keeps what XLA made of it. Only "
            "programs whose components are written in JAX and run in this process can be serialised or "
            "exported.",
            code="not_serializable",
        )


_numbers = itertools.count(1)
_by_number: weakref.WeakValueDictionary[int, HostTarget] = weakref.WeakValueDictionary()


def register_function(
    function: HostFunction, operands: Sequence[Any], results: Sequence[Any]
) -> HostTarget:
    """What compiled programs find by its number, for as long as it or its function is alive.

    The same function has the same number, so that XLA sees equal calls as equal and merges them.

    Lifetime: the handler finds it by a weak reference. The compiled program holds it (`add_keepalive`), and
    so does its function, in `targets`, which lives as long as its component is in use. The program alone is
    not enough: its Python object may be dropped while XLA still runs it.
    """
    key = (tuple(operands), tuple(results))
    target = function.targets.get(key)
    if target is None:
        target = function.targets.setdefault(key, HostTarget(function, operands, results))
        _by_number[target.number] = target
    return target


def _supports(dtypes: Sequence[Any]) -> bool:
    """Whether NumPy can view buffers of all these dtypes."""
    return all(dtype in _SUPPORTED for dtype in dtypes)


_Frame = ctypes.c_char * CALL_FRAME.size


def _handle(address: int) -> int | None:
    size, extension, api, operands, results, attributes = CALL_FRAME.unpack_from(
        _Frame.from_address(address)
    )
    try:
        if extension and _answer_metadata(extension):
            return None
        text = _problem(size, api) or _execute(operands, results, attributes)
    except BaseException as error:
        text = f"chainrule's host call failed: {type(error).__name__}: {error}"
    return None if text is None else _new_error(api, text)


def _answer_metadata(extension: int) -> bool:
    """Before compiling XLA asks which version the handler speaks."""
    kind, metadata = EXTENSION.unpack(ctypes.string_at(extension, EXTENSION.size))
    if kind != METADATA_EXTENSION:
        return False
    _word(metadata + METADATA_VERSION).value = ffi_version()
    return True


@cache
def _problem(size: int, api: int) -> str | None:
    """What is wrong with this XLA's interface, by the size of a frame and the address of the API."""
    api_size, major = API_HEADER.unpack(ctypes.string_at(api, API_HEADER.size))
    if major == 0 and size >= CALL_FRAME.size and api_size >= API_HEADER.size + 8:
        return None
    return (
        f"This jaxlib speaks XLA FFI {major} with call frames of {size} bytes; chainrule knows major "
        f"version 0 with frames of {CALL_FRAME.size} bytes. Set CHAINRULE_HOST_CALL=callback."
    )


def _execute(operands: int, results: int, attributes: int) -> str | None:
    number = _word(_word(_word(attributes).value + SCALAR_VALUE).value).value
    target = _by_number.get(number)
    if target is None:
        return (
            f"The compiled program calls host function {number}, which is not alive in this process: it "
            "was compiled elsewhere, or outlived everything that knew its component."
        )
    return target.function.run(target.operands.at(operands), target.results.at(results))


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def _new_error(api: int, text: str) -> int:
    """An error object of XLA, made by the first function of the API's table."""
    message = ctypes.create_string_buffer(text.encode())
    return _CREATE_ERROR(_word(api + API_HEADER.size).value)(
        ERROR_CREATE.pack(28, 0, ctypes.addressof(message), _UNKNOWN)
    )


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_handle)
# XLA refuses a second registration under the same name, so only one thread may register.
_registration = threading.Lock()
_registered: list[bool] = []


def _target_is_registered() -> bool:
    """Register the handler with XLA's CPU backend at the first call; whether XLA accepted it."""
    with _registration:
        if not _registered:
            _registered.append(_register())
    return _registered[0]


def _register() -> bool:
    pointer = ctypes.cast(_HANDLER, ctypes.c_void_p).value
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(pointer), platform="cpu")
    except Exception:  # another XLA, another interface: the caller has a slower way
        return False
    return True


ORDERED_EFFECT = _callback._OrderedIOEffect
"""Calls with this effect happen in program order, among themselves and with `io_callback(ordered=True)`."""


_SAYS_RETURNS_TOKEN = "returns_token" in signature(mlir.emit_python_callback).parameters


def is_exporting(ctx: Any) -> bool:
    """Whether a lowering is made for `jax.export`."""
    return bool(getattr(ctx.module_context.lowering_parameters, "for_export", False))


def see_nans(primitive: Primitive) -> None:
    """Let `checkify` report NaNs in the results of a primitive."""
    _checkify.error_checks[primitive] = partial(_checkify.nan_error_check, primitive)


def uses_ffi(ctx: Any) -> bool:
    """Whether calls lowered here go through the FFI handler.

    Not under `jit` over several devices: there XLA runs a call of an unknown target once per device on
    the whole value, and only JAX's own callbacks once. `CHAINRULE_HOST_CALL=callback` in the environment
    also says no, for a jaxlib whose interface has moved.
    """
    axes, platforms = ctx.module_context.axis_context, ctx.module_context.platforms
    if isinstance(axes, mlir.ShardingContext) and axes.num_devices > 1:
        return False
    dtypes = [aval.dtype for aval in (*ctx.avals_in, *ctx.avals_out)]
    forced = os.environ.get("CHAINRULE_HOST_CALL") == "callback"
    return (
        tuple(platforms) == ("cpu",)
        and _supports(dtypes)
        and not forced
        and _target_is_registered()
    )


def register_call(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """Register a lowering that has to see every call, also equal ones, as `lower_overlapping` has.

    It knows the devices, as those of JAX's callbacks do: what it makes part of the program may need them.
    """
    _dispatch.prim_requires_devices_during_lowering.add(primitive)
    knows = signature(mlir.register_lowering).parameters
    # Where JAX cannot do without its cache, each call is lowered in a function of its own, and has no round.
    options: dict[str, Any] = {"cacheable": False} if "cacheable" in knows else {}
    mlir.register_lowering(primitive, rule, **options)


def lower_host_call(
    ctx: Any, *operands: Any, function: HostFunction, ordered: bool
) -> Sequence[Any]:
    """A call that fills all results."""
    if ordered or not uses_ffi(ctx):
        return _lower_callback(ctx, operands, function, ordered)
    return _ffi_call(ctx, operands, function)


def _ffi_call(ctx: Any, operands: Sequence[Any], function: HostFunction) -> Sequence[Any]:
    target = register_function(function, ctx.avals_in, ctx.avals_out)
    ctx.module_context.add_keepalive(target)
    return emit_call(ctx, operands, target)


def emit_call(
    ctx: Any, operands: Sequence[Any], target: HostTarget, **attributes: np.int64
) -> Sequence[Any]:
    """Add a call of the FFI handler to the program; XLA hands over attributes in the order of their names."""
    lower = jax.ffi.build_ffi_lowering_function(TARGET)
    return lower(ctx, *operands, number=np.int64(target.number), **attributes).results


def _lower_callback(
    ctx: Any, operands: Sequence[Any], function: HostFunction, ordered: bool
) -> Sequence[Any]:
    token = ctx.tokens_in.get(ORDERED_EFFECT) if ordered else None
    # JAX before 0.9 knows it by the token it is given.
    options = {"returns_token": ordered} if _SAYS_RETURNS_TOKEN else {}
    results, token, _ = mlir.emit_python_callback(
        ctx,
        _as_callback(function, ctx.avals_out),
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=ordered,
        sharding=_callback._callback_op_sharding(
            ctx.module_context.axis_context, None, ctx.avals_out
        ),
        **options,
    )
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED_EFFECT: token})))
    return _on_all_devices(ctx, results)


def _on_all_devices(ctx: Any, results: Sequence[Any]) -> Sequence[Any]:
    """Results of a call that one of several devices makes for all.

    Without this they would be said to be on that device, and no other program would take them.
    """
    axes = ctx.module_context.axis_context
    if not isinstance(axes, mlir.ShardingContext) or axes.num_devices == 1:
        return results
    everywhere = _sharding_impls.GSPMDSharding.get_replicated(jax.devices()[: axes.num_devices])
    pairs = zip(results, ctx.avals_out, strict=True)
    return [
        _mlir.wrap_with_sharding_op(ctx, result, aval, _written(everywhere, aval.ndim))
        for result, aval in pairs
    ]


def _written(sharding: Any, ndim: int) -> Any:
    """A sharding as the partitioner in use reads it."""
    if jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        return sharding._to_sdy_sharding(ndim)
    return sharding._to_xla_hlo_sharding(ndim).to_proto()


def _as_callback(
    function: HostFunction, avals: Sequence[Any]
) -> Callable[..., tuple[np.ndarray, ...]]:
    def callback(*operands: Any) -> tuple[np.ndarray, ...]:
        results = [np.empty(aval.shape, aval.dtype) for aval in avals]
        text = function.run([np.asarray(operand) for operand in operands], results)
        if text is not None:
            raise RuntimeError(text)
        return tuple(results)

    return callback
