"""A worker process: author code on the main thread, one call at a time.

Started as `python -m chainrule.serve._worker <descriptor>` with one end of a socket pair. The first message
brings the component (pickled by the server that started us), then calls come and replies go, in the messages
of `chainrule.runtime._samehost`. The process ends when the server closes its end or dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

import orjson

from chainrule._errors import ChainruleError, ComponentError
from chainrule.runtime._component import load_component
from chainrule.runtime._samehost import Message, receive_message, send_message
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, Reply
from chainrule.serve._desk import Desk, StoredReply
from chainrule.serve._following import following
from chainrule.serve._preparing import prepare, show_log
from chainrule.serve._problems import problem_reply

_PR_SET_PDEATHSIG = 1


class Worker:
    """The loop of one worker process.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        signal.signal(signal.SIGUSR1, self._on_cancel)

    def _on_cancel(self, *_: Any) -> None:
        self._desk.cancel()

    def load(self) -> Answerer | None:
        """Load the component and say what it is, or why it cannot be loaded."""
        message = receive_message(self._connection)
        if message is None:
            return None
        self._desk = Desk(f"w{message.header.get('worker', 0)}")
        answerer, reply = _load(message.body)
        self._send(self._desk.store(reply))
        return answerer

    def run(self, answerer: Answerer) -> None:
        """Answer calls until the server closes the connection."""
        while True:
            message = receive_message(self._connection)
            if message is None:
                return
            self._handle(answerer, message)

    def _handle(self, answerer: Answerer, message: Message) -> None:
        header = message.header
        for key in header.get("release", ()):
            self._desk.own.give_back(key)
        for key in header.get("forget", ()):
            self._desk.received.forget(key)
        if "call" in header:
            key = header["segment"][0] if "segment" in header else None
            with following(self._connection, message):
                stored = self._desk.answer(
                    answerer, Call(body=message.body, **header["call"]), message, key
                )
            if "number" in header:
                stored.header["number"] = header["number"]
            self._send(stored)

    def _send(self, stored: StoredReply) -> None:
        stored.header.setdefault("held", False)
        send_message(self._connection, stored.header, (stored.inline,), stored.descriptors)


def _load(setup: bytes) -> tuple[Answerer | None, Reply]:
    """The component that a server or client has pickled, and what to tell them about it."""
    try:
        source, config = pickle.loads(setup)
        show_log(config)
        component = load_component(source, config=config)
        prepare(component)
        answerer = Answerer(component)
        return answerer, Reply(200, "application/json", [orjson.dumps(asdict(answerer.facts))])
    except ChainruleError as error:
        return None, problem_reply(error, debug=True)
    except Exception as error:
        failure = ComponentError(
            f"Loading the component raised {type(error).__name__}: {error}", code="load_failed"
        )
        failure.__cause__ = error
        return None, problem_reply(failure, debug=True)


def _die_with_parent() -> None:
    """Be killed when the server is; without this a busy worker would outlive a killed server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Run a worker on one end of a socket pair."""
    _die_with_parent()
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what the author prints is a log, not output of the server
    worker = Worker(socket.socket(fileno=descriptor))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody wants the answer
        answerer = worker.load()
        if answerer is not None:
            gc.freeze()  # what is loaded now stays; collections need not look at it again and again
            worker.run(answerer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
