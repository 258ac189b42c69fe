"""Arrays on a GPU in requests and answers of a worker; `chainrule._device_exchange` has the rules.

Callers of Chainrule offer room for the arrays of an answer. Those of the peer offer none: the worker
*exports* its answer in buffers of its own, names them in the header `Tesseract-Exports`, and keeps them
until the caller names them in the header `Tesseract-Exports-Done` of a later request, or for as long as the
peer does. A server with several workers hands the names to the worker of the next call, so that a component
on a GPU whose callers are the peer's is best served by one worker.
"""

from __future__ import annotations

import base64
import itertools
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from chainrule._codec import DeviceArray, Negotiated
from chainrule._device import to_host
from chainrule._device_exchange import (
    Buffer,
    Exchange,
    Place,
    Room,
    exchange_device,
    nbytes_of,
    restored,
    with_device_arrays,
)
from chainrule._errors import ChainruleError, DecodeError
from chainrule.runtime import LocalComponent

CHECK_ENDPOINT = "check_gpu_transport"
TRANSPORTS = ("none", "cuda_ipc")
EXPORTS_HEADER = b"tesseract-exports"
EXPORTS_DONE_HEADER = b"tesseract-exports-done"
_KEPT_S = 300.0


class DeviceMemory:
    """The GPU memory that a worker exchanges with its callers. One thread at a time.

    Args:
        exchange: of this process.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._exports = _Exports(exchange)

    @classmethod
    def of(cls, component: LocalComponent) -> DeviceMemory | None:
        """The memory of a component that computes on a GPU."""
        device = None if component.place is None else exchange_device()
        if component.place is None or device is None:
            return None
        share = component.config.device_exchange_share
        return cls(Exchange(device, component.place.library, share))

    @property
    def held_bytes(self) -> int:
        """GPU memory of this process, as far as it is known."""
        return self._exchange.held_bytes

    @property
    def is_open(self) -> bool:
        """Whether buffers of callers are open that may come to be closed."""
        return len(self._exchange.opened) > 0

    def close_unused(self) -> None:
        """Close buffers of callers that do not come again."""
        self._exchange.opened.close_unused()
        self._exchange.pool.free_old()

    def read(self, payload: Any, *, is_native: bool) -> Any:
        """A request with arrays for what came in exchange buffers.

        Args:
            payload: as decoded.
            is_native: whether the caller uses its buffers again.
        """
        return restored(payload, lambda array: self._exchange.read(array, once=not is_native))

    def write(self, result: Any, form: Negotiated) -> tuple[Any, str]:
        """A result as it is sent, and the name of what is exported with it, if anything is."""
        if form.gpu_transport == "none":
            return with_device_arrays(result, lambda array: None), ""
        if form.room:
            room = Room(self._exchange, Place.parse_room(form.room))
            return with_device_arrays(result, room.write), ""
        if not form.format.startswith("json"):
            return with_device_arrays(result, lambda array: None), ""
        written = with_device_arrays(result, self._exports.write)
        return written, self._exports.name()

    def finish(self) -> None:
        """Wait for all copies: after the reply the caller uses its buffers again."""
        self._exchange.wait()

    def release(self, names: str) -> None:
        """Use exports again that callers have read."""
        self._exports.release(names)

    def check(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Answer a caller that checks whether memory can be exchanged: the bytes that it sent, reversed."""
        try:
            array = request.get("array")
            if not isinstance(array, DeviceArray) or array.dtype != "uint8":
                raise DecodeError(
                    "Expected an array of bytes on a GPU; found something else.",
                    code="bad_device_handle",
                )
            content = bytes(to_host(self._exchange.read(array, once=True)))
            if base64.b64decode(str(request.get("expected", ""))) != content:
                raise DecodeError(
                    "The memory holds other bytes than were sent.", code="device_failed"
                )
            turned = np.frombuffer(content[::-1], np.uint8)
            exported = self._exports.write(self._exchange.library.from_host(turned))
            if exported is None:
                raise DecodeError("There is no memory for exchange buffers.", code="device_failed")
        except (ChainruleError, ValueError) as error:
            return {"ok": False, "reason": str(error)}, ""
        return {"ok": True, "array": exported}, self._exports.name()


class _Exports:
    """Answers in buffers of this process, until their callers have read them."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._written: list[Buffer] = []
        self._kept: dict[str, tuple[float, list[Buffer]]] = {}
        self._numbers = itertools.count()

    def write(self, array: Any) -> DeviceArray | None:
        """Write one array of the next answer; `None` where there is no memory for it."""
        # The peer may never say that it has read (`Tesseract-Exports-Done`). Old exports are looked for when
        # memory is needed, which needs no timer on the worker's only thread.
        self._release_old()
        buffer = self._exchange.pool.take(nbytes_of(array))
        if buffer is None:
            return None
        self._written.append(buffer)
        return self._exchange.write(array, buffer)

    def name(self) -> str:
        """The name of what was written, which is kept from now on; empty if that is nothing."""
        written, self._written = self._written, []
        if not written:
            return ""
        # The process is in the name: with several workers a caller's header reaches another worker, too,
        # which has to ignore the name (`release`) and not free a buffer of its own that happens to have the
        # same number.
        name = f"{os.getpid()}-{next(self._numbers)}"
        self._kept[name] = time.monotonic(), written
        return name

    def release(self, names: str) -> None:
        for name in names.split(","):
            _, buffers = self._kept.pop(name, (0.0, []))
            for buffer in buffers:
                self._exchange.pool.give_back(buffer)

    def _release_old(self) -> None:
        now = time.monotonic()
        old = [name for name, (since, _) in self._kept.items() if now - since > _KEPT_S]
        self.release(",".join(old))
