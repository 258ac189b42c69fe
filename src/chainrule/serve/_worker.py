"""A worker process: author code on the main thread, one call at a time.

Started as `python -m chainrule.serve._worker <descriptor>` with one end of a socket pair. The first message
brings the component, pickled by the server or client that started the process. Then calls come and replies
go, in the messages of `chainrule._same_host`. The process ends when the other side closes its end or dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import orjson

from chainrule._errors import ChainruleError, ComponentError, StorageError
from chainrule._progress import listening
from chainrule._same_host import (
    INLINE_BYTES,
    MappedSegments,
    Message,
    Segment,
    has_message,
    receive_message,
    send_message,
    stored,
)
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import log_handler
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, Cancelled, Reply
from chainrule.serve._devices import EXPORTS_HEADER, DeviceMemory
from chainrule.serve._problems import problem_reply

_PR_SET_PDEATHSIG = 1


class Worker:
    """The loop of one worker process.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapped = MappedSegments()
        self._devices: DeviceMemory | None = None
        self._is_running = False
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        signal.signal(signal.SIGUSR1, self._on_cancel)

    def _on_cancel(self, *_: Any) -> None:
        """Break off the call under way, if the server has asked for that.

        Others send this signal, too: a batch system, or the author. The server sends a message before it. The
        handler raises at most once per call: the author's cleanup must not be broken off by a second signal.
        """
        if self._is_running and has_message(self._connection):
            self._is_running = False
            raise Cancelled

    def load(self) -> Answerer | None:
        """Load the component and say what it is, or why it cannot be loaded."""
        message = receive_message(self._connection)
        if message is None:
            return None
        answerer, reply = _load(message.body)
        self._send(reply, None)
        if answerer is not None:
            self._devices = answerer.devices
        return answerer

    def run(self, answerer: Answerer) -> None:
        """Answer calls until the server closes the connection."""
        while True:
            try:
                message = self._next_message()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                self._send(problem_reply(_no_room("this body")), None)
                continue
            if message is None:
                return
            if "call" in message.header:  # otherwise it asks to break off a call that is over
                self._answer(answerer, message)
            del message

    def _answer(self, answerer: Answerer, message: Message) -> None:
        descriptors = iter(message.descriptors)
        body = self._mapped.get(next(descriptors)) if "body" in message.header else None
        room = self._mapped.get(next(descriptors)) if "room" in message.header else None
        is_watched = "watch" in message.header
        # `_reply` catches `Cancelled` inside of this block: the signal cannot break off the steps that give
        # the process its own output back.
        with following(self._connection, message) if is_watched else contextlib.nullcontext():
            reply = self._reply(answerer, message, body)
        self._send(reply, room)

    def _next_message(self) -> Message | None:
        # Memory of callers that do not come again is let go, also while there are no other calls.
        # (`poll` takes milliseconds.) It blocks without a limit in `receive_message` once nothing is mapped.
        while self._has_callers_memory and not self._poll.poll(1000 * self._mapped.max_idle_s):
            self._let_go_of_unused()
        message = receive_message(self._connection)
        self._let_go_of_unused()
        return message

    @property
    def _has_callers_memory(self) -> bool:
        return bool(self._mapped) or (self._devices is not None and self._devices.is_open)

    def _let_go_of_unused(self) -> None:
        self._mapped.let_go_of_unused()
        if self._devices is not None:
            self._devices.close_unused()

    def _reply(self, answerer: Answerer, message: Message, body: Segment | None) -> Reply:
        try:
            # True only while the author's code may be broken off. It is cleared before a reply is sent, so
            # `Cancelled` never interrupts the sending, and exactly one reply follows each call.
            self._is_running = True
            content = message.body if body is None else body.copy(message.header["body"])
            reply = answerer.answer(Call(body=content, **message.header["call"]))
            self._is_running = False
        except Cancelled:
            return Reply(499, "text/plain", [])
        except ChainruleError as error:  # the body's segment is not what it should be
            self._is_running = False
            return problem_reply(error)
        except (MemoryError, OSError):
            self._is_running = False
            return problem_reply(_no_room("this body"))
        return reply

    def _send(self, reply: Reply, room: Segment | None) -> None:
        """Send a reply: a large one in the memory that the caller offers for it, or in new memory."""
        header: dict[str, Any] = {"status": reply.status, "content_type": reply.content_type}
        if reply.reuse:
            header["reuse"] = reply.reuse
        if reply.forward_pass is not None:
            header["forward_pass"] = reply.forward_pass
        if reply.device_bytes is not None:
            header["device_bytes"] = reply.device_bytes
        if reply.headers:  # the one that a worker may give
            header["exports"] = dict(reply.headers)[EXPORTS_HEADER].decode()
        nbytes = reply.nbytes
        if nbytes <= INLINE_BYTES:
            send_message(self._connection, header, reply.pieces)
            return
        if room is not None and _fits(reply, room):
            send_message(self._connection, {**header, "room": nbytes})
            return
        try:
            segment = stored(reply.pieces)
        except OSError:
            self._send(problem_reply(_no_room("this answer")), None)
            return
        send_message(self._connection, {**header, "segment": nbytes}, (), [segment.descriptor])


def _fits(reply: Reply, room: Segment) -> bool:
    """Write an answer into a segment; `False` when it is too small, or cannot be written to."""
    if reply.nbytes > room.size:
        return False
    try:
        room.write(reply.pieces)
    except (OSError, ChainruleError):
        return False
    return True


def _no_room(what: str) -> StorageError:
    return StorageError(f"The worker has no memory or no file descriptors left for {what}.")


def _load(setup: bytes) -> tuple[Answerer | None, Reply]:
    """The component that a server or client has pickled, and what to tell them about it."""
    try:
        source, config = pickle.loads(setup)
        show_log(config)
        # Results are copied by `_send`, into the memory of the caller.
        answerer = Answerer.load(source, config, copy_results=False)
        return answerer, Reply(200, "application/json", [orjson.dumps(asdict(answerer.facts))])
    except ChainruleError as error:
        return None, problem_reply(error, debug=True)
    except Exception as error:
        failure = ComponentError(
            f"Loading the component raised {type(error).__name__}: {error}", code="load_failed"
        )
        failure.__cause__ = error
        return None, problem_reply(failure, debug=True)


def show_log(config: ComponentConfig) -> None:
    """Write Chainrule's own log records; the author's loggers stay as the author sets them.

    In the format for machines the root logger speaks too, so that every line is an object.
    """
    handler = log_handler(config.log_format)
    log = logging.getLogger("chainrule")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    if config.log_format == "json":
        logging.getLogger().addHandler(handler)


@contextlib.contextmanager
def following(connection: socket.socket, message: Message) -> Iterator[None]:
    """While the call of a job is answered, send its progress and output to the server.

    Args:
        connection: to the server.
        message: the call; the last of its descriptors is where output goes.
    """

    def emit(fraction: float, text: str) -> None:
        send_message(connection, {"progress": [fraction, text[:1000]]})

    with _output_to(message.descriptors[-1]), listening(emit, whole_process=True):
        yield


@contextlib.contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    """Let everything that is printed go to a descriptor, also by C; the descriptor is closed at the end."""
    with contextlib.suppress(AttributeError):  # the author may have put something else in its place
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _flush()
    # One copy is enough for both: `main` has made 1 a copy of 2. The descriptors are exchanged, not
    # `sys.stdout`, because C and Fortran libraries and child processes write to the numbers 1 and 2.
    saved = os.dup(2)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    try:
        yield
    finally:
        _flush()
        for stream in (1, 2):
            os.dup2(saved, stream)
        os.close(saved)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Python's buffers are flushed above; those of the C library are its own. What lies in them when the
    # descriptors change would go to the log of another job.
    ctypes.CDLL(None).fflush(None)


def _die_with_parent() -> None:
    """Be killed when the server is; without this a busy worker would outlive a killed server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Run a worker on one end of a socket pair."""
    _die_with_parent()
    os.set_inheritable(descriptor, False)
    # Ctrl-C in a terminal is sent to the whole group of processes. The server decides when its workers end:
    # it drains first, and a worker that had died of the same key could not answer what it was computing.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what the author prints is a log, not output of the server
    worker = Worker(socket.socket(fileno=descriptor))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server has gone
        answerer = worker.load()
        if answerer is not None:
            gc.freeze()  # what is loaded now stays; collections need not look at it again and again
            worker.run(answerer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
