"""A worker process: author code on the main thread, one call at a time.

Started as `python -m chainrule.serve._worker <descriptor>` with one end of a socket pair. The first message
brings the component (pickled by the server that started us), then calls come and replies go, in the messages
of `chainrule.runtime._samehost`. The process ends when the server closes its end or dies.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import pickle
import signal
import socket
import sys
import weakref
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from chainrule._errors import ChainruleError, ComponentError
from chainrule.runtime._component import load_component
from chainrule.runtime._samehost import (
    INLINE_BYTES,
    Message,
    SegmentCache,
    SegmentPool,
    receive_message,
    send_message,
)
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, Reply
from chainrule.serve._problems import problem_reply
from chainrule.serve._residual_reuse import reuse_residuals

_PR_SET_PDEATHSIG = 1


class _Cancelled(BaseException):
    """Raised on the main thread when the server no longer wants the answer."""


@dataclass(frozen=True)
class _Stored:
    header: dict[str, Any]
    inline: bytes
    descriptors: list[int]


class Worker:
    """The loop of one worker process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = SegmentCache()
        self._own = SegmentPool("w")
        self._running = False
        signal.signal(signal.SIGUSR1, self._on_cancel)

    def _on_cancel(self, *_: Any) -> None:
        if self._running:
            self._running = False
            raise _Cancelled

    def load(self) -> Answerer | None:
        """Load the component and say what it is, or why it cannot be loaded."""
        message = receive_message(self._connection)
        if message is None:
            return None
        try:
            source, config = pickle.loads(message.body)
            component = load_component(source, config=config)
            reuse_residuals(component)
            answerer = Answerer(component)
            self._send(
                self._store(Reply(200, "application/json", [orjson.dumps(asdict(answerer.facts))]))
            )
            return answerer
        except ChainruleError as error:
            self._send(self._store(problem_reply(error, debug=True)))
        except Exception as error:
            failure = ComponentError(
                f"Loading the component raised {type(error).__name__}: {error}", code="load_failed"
            )
            failure.__cause__ = error
            self._send(self._store(problem_reply(failure, debug=True)))
        return None

    def run(self, answerer: Answerer) -> None:
        """Answer calls until the server closes the connection."""
        while (message := receive_message(self._connection)) is not None:
            for key in message.header.get("release", ()):
                self._own.give_back(key)
            for key in message.header.get("forget", ()):
                self._received.forget(key)
            if "call" in message.header:
                self._answer(answerer, message)

    def _answer(self, answerer: Answerer, message: Message) -> None:
        in_use: Any = None
        try:
            self._running = True
            body = self._body(message)
            in_use = weakref.ref(body) if "segment" in message.header else None
            reply = answerer.answer(Call(body=body, **message.header["call"]))
            self._running = False
            stored = self._store(reply)
            del body, reply
        except _Cancelled:
            stored = self._store(Reply(499, "text/plain", []))
        except ChainruleError as error:  # the body's segment is not what it should be
            stored = self._store(problem_reply(error))
        # The author may have kept an input. Its memory must then never be written to again.
        held = in_use is not None and in_use() is not None
        if held:
            self._received.forget(message.header["segment"][0])
        self._send(stored, held=held)

    def _body(self, message: Message) -> Any:
        if "segment" not in message.header:
            return message.body
        key, nbytes = message.header["segment"]
        segment = self._received.get(key, message.descriptors[0])
        assert segment is not None, "a descriptor was sent"
        return segment.array(nbytes)

    def _store(self, reply: Reply) -> _Stored:
        """Bring a reply's body to where the server can read it; nothing of the reply is needed after."""
        header: dict[str, Any] = {"status": reply.status, "content_type": reply.content_type}
        nbytes = sum(map(len, reply.pieces))
        if nbytes <= INLINE_BYTES:
            return _Stored(header, b"".join(reply.pieces), [])
        segment = self._own.take(nbytes)
        target, position = segment.array(nbytes).data, 0
        for piece in reply.pieces:
            target[position : position + len(piece)] = piece
            position += len(piece)
        header["segment"] = [segment.key, nbytes]
        return _Stored(header, b"", [segment.descriptor])

    def _send(self, stored: _Stored, *, held: bool = False) -> None:
        header = {**stored.header, "held": held}
        send_message(self._connection, header, [stored.inline], stored.descriptors)


def _die_with_parent() -> None:
    """Be killed when the server is; without this a busy worker would outlive a killed server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _show_own_log() -> None:
    """Let what Chainrule has to say out; the author's loggers stay as the author sets them."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log = logging.getLogger("chainrule")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def main(descriptor: int) -> None:
    """Run a worker on one end of a socket pair."""
    _die_with_parent()
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what the author prints is a log, not output of the server
    _show_own_log()
    worker = Worker(socket.socket(fileno=descriptor))
    answerer = worker.load()
    if answerer is not None:
        gc.freeze()  # what is loaded now stays; collections need not look at it again and again
        worker.run(answerer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
