"""Arrays on a GPU that stay there when they go to a worker or a server of the same host, and come back.

A `DeviceLink` is made once per transport, after a check in which both sides send each other some bytes
through memory of the GPU. For each call a `Message` puts the arrays of the request into exchange buffers,
offers room for those of the answer, and takes the buffers back. Where there is no link arrays go through the
host. `chainrule._device_exchange` has the rules for the buffers; the check is the peer's.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from chainrule._codec import (
    TRUSTING_LIMITS,
    DeviceArray,
    Limits,
    decode_body,
    encode_body,
)
from chainrule._device import DeviceLibrary, is_on_device, loaded_library, to_host
from chainrule._device_exchange import (
    DEFAULT_SHARE,
    Buffer,
    Exchange,
    Place,
    aligned,
    exchange_device,
    nbytes_of,
    restored,
    with_device_arrays,
)
from chainrule._errors import ChainruleError, DecodeError
from chainrule._trees import iterate_leaves
from chainrule.client._bodies import Answer, read_answer

_log = logging.getLogger(__name__)

CHECK_ENDPOINT = "check_gpu_transport"
_CHECK_BYTES = 256
TRANSPORT = "cuda_ipc"


def offers_device_memory(document: Mapping[str, Any]) -> bool:
    """Whether the document of a component says that arrays on a GPU can be exchanged with it."""
    return TRANSPORT in document.get("x-supported-gpu-transports", ())


class DeviceLink:
    """GPU memory that is exchanged with one worker, or with a server. Safe between threads.

    Attributes:
        exchange: of this process.
        is_native: whether the other side is one of Chainrule, which writes into the room of a caller.
        is_own: whether it is a process of this one, which has ended when a call of it fails.
    """

    def __init__(self, exchange: Exchange, *, is_native: bool, is_own: bool) -> None:
        self.exchange = exchange
        self.is_native = is_native
        self.is_own = is_own
        self._done: deque[str] = deque()
        self._answer_bytes = 0

    def message(self, payload: Mapping[str, Any]) -> Message:
        """The arrays of one call."""
        return Message(self, payload)

    def room_for_answer(self, sent: int) -> Buffer | None:
        """Room for an answer: as large as the last one, or as what was sent."""
        return self.exchange.pool.take(max(self._answer_bytes, sent)) if self.is_native else None

    def note_answer(self, nbytes: int) -> None:
        """Remember how large the arrays of an answer are."""
        self._answer_bytes = nbytes

    def note_exports(self, name: str | None) -> None:
        """Remember that what the other side has exported in an answer was read."""
        if name is not None:
            self._done.append(name)

    def take_done(self) -> str:
        """The exports that were read since this was asked, as a server takes their names."""
        names = []
        while self._done:
            names.append(self._done.popleft())
        return ",".join(names)


class Message:
    """The arrays of one call on a GPU; a context around it.

    Args:
        link: to the other side.
        payload: the request.

    Attributes:
        payload: the request as it is sent.
    """

    def __init__(self, link: DeviceLink, payload: Mapping[str, Any]) -> None:
        self._link, self._exchange = link, link.exchange
        self._sent: list[Buffer] = []
        self._nbytes = 0
        self._was_answered = link.is_own
        self._room: Buffer | None = None
        try:
            self.payload = with_device_arrays(payload, self._write)
            self._room = link.room_for_answer(self._nbytes)
            self._exchange.wait()
        except BaseException:
            # Nothing was sent, so no other process knows these buffers.
            self._was_answered = True
            self.__exit__(None)
            raise

    def _write(self, array: Any) -> DeviceArray | None:
        nbytes = nbytes_of(array)
        buffer = self._exchange.pool.take(nbytes)
        if buffer is None:
            return None
        self._sent.append(buffer)
        self._nbytes += aligned(nbytes)
        return self._exchange.write(array, buffer)

    @property
    def done(self) -> str:
        """What the other side has exported in earlier answers, and need not keep."""
        return self._link.take_done()

    def accept(self, accept: str | None) -> str | None:
        """How the answer is asked for, for what is asked for without a GPU."""
        if accept is None:
            return None
        asked = f"{accept.partition(';')[0]}; gpu_transport={TRANSPORT}"
        if self._room is None:
            return asked
        place = Place(self._exchange.device.uuid, self._room.handle, 0, self._room.size)
        return f"{asked}; room={place.as_room()}"

    def read(self, answer: Answer, limits: Limits = TRUSTING_LIMITS) -> Any:
        """The result that an answer carries, with arrays on the GPU; raises what it stands for."""
        # Errors may come from a server in the place of its worker, which may still be at work.
        if not self._link.is_native or TRANSPORT in answer.content_type:
            self._was_answered = True
        tree, nbytes = read_answer(answer, limits, on_device=True), 0

        def read(array: DeviceArray) -> Any:
            nonlocal nbytes
            found = self._exchange.read(array, once=True, own=self._room)
            nbytes += aligned(nbytes_of(found))
            return found

        result = restored(tree, read)
        if not nbytes:  # it came through the host, perhaps for want of room
            nbytes = sum(
                leaf.nbytes for _, leaf in iterate_leaves(result) if isinstance(leaf, np.ndarray)
            )
        self._exchange.wait()
        self._link.note_answer(nbytes)
        self._link.note_exports(answer.exports)
        return result

    def __enter__(self) -> Message:
        return self

    def __exit__(self, _: Any, error: BaseException | None = None, *__: Any) -> None:
        has_ended = isinstance(error, ChainruleError) and error.code == "worker_crashed"
        pool = self._exchange.pool
        # Rule 3 of `_device_exchange`: a worker that has replied, or is gone, writes to no buffer any more.
        # After a timeout or a lost connection it may, so the buffers are not used again.
        put = pool.give_back if self._was_answered or has_ended else pool.retire
        for buffer in (*self._sent, self._room):
            if buffer is not None:
                put(buffer)


class DeviceLinks:
    """The link of a transport, made when the first array on a GPU is sent. Safe between threads.

    Args:
        place: the other side, for people.
        is_native: as of `DeviceLink`.
        is_own: as of `DeviceLink`.
        check: sends the request of a check, as JSON, and returns the answer; `None` for a component that
            exchanges no memory of a GPU.
        share: of the GPU's memory, for exchange buffers.
    """

    def __init__(
        self,
        place: str,
        check: Callable[[list[Any]], Answer] | None,
        *,
        is_native: bool = True,
        is_own: bool = False,
        share: float = DEFAULT_SHARE,
    ) -> None:
        self._place, self._check, self._share = place, check, share
        self._kind = {"is_native": is_native, "is_own": is_own}
        self._lock = threading.Lock()
        self._link: DeviceLink | None = None
        self._was_asked = False

    def library(self) -> DeviceLibrary | None:
        """What holds arrays on a GPU that can be exchanged."""
        link = self.link()
        return None if link is None else link.exchange.library

    def link(self) -> DeviceLink | None:
        """The link; `None` where memory cannot be exchanged, which is said once."""
        if self._check is None:
            return None
        with self._lock:
            if not self._was_asked and loaded_library() is not None:
                self._was_asked = True
                self._link = self._agree(self._check)
            return self._link

    def close(self) -> None:
        """Free the buffers that no call uses."""
        with self._lock:
            if self._link is not None:
                self._link.exchange.pool.close()

    @contextmanager
    def exchanging(self, payload: Mapping[str, Any]) -> Iterator[Message | None]:
        """The message of a call; `None` where nothing of it is on a GPU, or nothing can be exchanged."""
        link = self.link() if has_device_arrays(payload) else None
        if link is None:
            yield None
            return
        with link.message(payload) as message:
            yield message

    def _agree(self, check: Callable[[list[Any]], Answer]) -> DeviceLink | None:
        device, library = exchange_device(), loaded_library()
        if device is None or library is None:
            return None
        link = DeviceLink(Exchange(device, library, self._share), **self._kind)
        try:
            _run_check(link, check)
        except (ChainruleError, OSError) as error:
            _log.warning(
                "Arrays on the GPU go to %s through the host: memory of the GPU cannot be exchanged with it "
                "(%s).",
                self._place,
                error,
            )
            link.exchange.pool.close()
            return None
        return link


def _run_check(link: DeviceLink, check: Callable[[list[Any]], Answer]) -> None:
    """Send some bytes there through memory of the GPU, and read them in reverse order from there.

    Raises:
        ChainruleError: that was not possible.
    """
    exchange, data = link.exchange, os.urandom(_CHECK_BYTES)
    buffer = exchange.pool.take(_CHECK_BYTES)
    if buffer is None:
        raise DecodeError("there is no memory for exchange buffers", code="device_failed")
    array = exchange.library.from_host(np.frombuffer(data, np.uint8))
    request = {
        "gpu_transport": TRANSPORT,
        "array": exchange.write(array, buffer),
        "expected": base64.b64encode(data).decode(),
    }
    exchange.wait()
    answer = check(encode_body(request))
    if answer.status != 200:
        raise DecodeError(f"it answered {answer.status} to the check", code="device_failed")
    reply = decode_body(answer.body, media_type=answer.content_type, on_device=True)
    if not reply.get("ok"):
        raise DecodeError(str(reply.get("reason", "no reason given")), code="device_failed")
    found = to_host(exchange.read(reply["array"], once=True))
    link.note_exports(answer.exports)
    exchange.pool.give_back(buffer)
    if bytes(found) != data[::-1]:
        raise DecodeError("other bytes came back than were sent", code="device_failed")


def has_device_arrays(payload: Mapping[str, Any]) -> bool:
    """Whether something of a request is in the memory of a GPU."""
    return loaded_library() is not None and any(
        is_on_device(leaf) for _, leaf in iterate_leaves(payload)
    )


def on_host(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request with arrays of the host."""
    if not has_device_arrays(payload):
        return payload
    return with_device_arrays(payload, lambda array: None)
