"""The server's side of one worker process: start it, talk to it, notice its end, kill it."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from chainrule._errors import ChainruleError, DefinitionError
from chainrule.runtime._samehost import (
    INLINE_BYTES,
    Message,
    Segment,
    SegmentCache,
    ending_facts,
    ending_words,
    receive_message,
    send_message,
    socket_pair,
    with_memory_settings,
)
from chainrule.serve._calls import Call, CallError, Facts, Reply, StoredBody, Watcher, too_slow
from chainrule.serve._output import OutputLog

__all__ = ["SegmentBody", "WorkerProcess"]

_CANCEL_GRACE_S = 0.5
_LAST_BREATH_S = 0.5
_numbers = itertools.count()


@dataclass(frozen=True)
class SegmentBody:
    """A request's body in a segment of the server's or of a client's.

    Attributes:
        segment: the memory.
        nbytes: how much of it is the body.
        on_done: called once the worker is done with it, with whether it may be written to again.
    """

    segment: Segment
    nbytes: int
    on_done: Callable[[bool], None]


class WorkerProcess:
    """One worker process. At most one call at a time.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        on_exit: called on the event loop when the process has ended.
        log: where its output goes; the server's own error stream when not given.
    """

    def __init__(
        self,
        source: Any,
        config: Any,
        on_exit: Callable[[WorkerProcess], None],
        log: OutputLog | None = None,
    ) -> None:
        self.number = next(_numbers)
        self._setup = _pickled(source, config)
        self._on_exit = on_exit
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._received = SegmentCache()
        self._sent: set[str] = set()
        self._release: list[str] = []
        self._forget: list[str] = []
        self._answer: asyncio.Future[Message] | None = None
        self._watcher: Watcher | None = None
        self._is_doomed = False
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None

    async def start(self) -> Facts:
        """Start the process and load the component in it.

        Raises:
            DefinitionError: the component cannot be loaded.
            CallError: the process died while loading.
            OSError: the system has no room for another process.
        """
        self._connection, theirs = socket_pair()
        self._connection.setblocking(False)
        try:
            with theirs:
                self._process = self._spawn(theirs.fileno())
        except OSError:
            self._connection.close()
            raise
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_process_end)
        self._loop.add_reader(self._connection, self._on_readable)
        setup = self._exchange({"worker": self.number}, [self._setup], [])
        try:
            reply = self._to_reply(await setup)
        except CallError as error:
            raise CallError(
                f"The component's process ended {ending_words(self.exit_code)} while it loaded the "
                "component; its error output may say more.",
                code=error.code,
                status=error.http_status,
                details=error.details,
            ) from error
        content = orjson.loads(b"".join(reply.open()))
        if reply.status != 200:
            raise DefinitionError(
                content["message"],
                code=content["code"],
                details={"traceback": content.get("traceback")},
            )
        return Facts(**content)

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        output = None if self._log is None else self._log.follow()
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "chainrule.serve._worker", str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stderr=output,
                env=with_memory_settings(),
            )
        finally:
            if output is not None:
                os.close(output)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.exit_code is None

    @property
    def is_usable(self) -> bool:
        """Whether the next call can be given to it."""
        return self.is_alive and not self._is_doomed

    async def call(self, call: Call, *, timeout_s: float | None) -> Reply:
        """Have a call answered.

        Raises:
            CallError: the process died (`worker_crashed`) or took too long (`call_timeout`); in both
                cases it has to be replaced.
        """
        header: dict[str, Any] = {
            "call": {
                "endpoint": call.endpoint,
                "content_type": call.content_type,
                "content_encoding": call.content_encoding,
                "accept": call.accept,
                "run_id": call.run_id,
                "traceparent": call.traceparent,
                "merged": call.merged,
            }
        }
        held = True
        self._watcher = call.watcher
        try:
            message = await asyncio.wait_for(self._send_call(header, call), timeout_s)
            held = message.header["held"]
            return self._to_reply(message)
        except TimeoutError:
            self.kill()
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=True) from None
        except asyncio.CancelledError:
            held = await self._cancel()
            raise
        finally:
            if isinstance(call.body, SegmentBody):
                self._done_with(call.body, held)

    def _send_call(self, header: dict[str, Any], call: Call) -> asyncio.Future[Message]:
        self._release, header["release"] = [], self._release
        self._forget, header["forget"] = [], self._forget
        body, inline, descriptors = call.body, [call.body], []
        if isinstance(body, SegmentBody):
            segment = body.segment
            header["segment"] = [segment.key, body.nbytes]
            self._sent.add(segment.key)
            inline, descriptors = [], [segment.descriptor]
        if call.watcher is None:
            return self._exchange(header, inline, descriptors)
        header["watch"] = True
        try:
            return self._exchange(header, inline, [*descriptors, call.watcher.open_log()])
        finally:
            call.watcher.log_is_sent()

    def _exchange(
        self, header: dict[str, Any], body: list[Any], descriptors: list[int]
    ) -> asyncio.Future[Message]:
        self._answer = self._loop.create_future()
        try:
            send_message(self._connection, header, body, descriptors)
        except OSError:
            self.kill()
            if not self.is_alive:
                self._fail_answer()
        return self._answer

    def _done_with(self, body: SegmentBody, held: bool) -> None:
        if held:
            self._sent.discard(body.segment.key)
        body.on_done(not held)

    async def _cancel(self) -> bool:
        """Ask the author's code to stop; kill it when it does not. Returns whether inputs are held."""
        answer = self._loop.create_future()
        self._answer = answer
        try:
            os.kill(self.pid, signal.SIGUSR1)
            message = await asyncio.wait_for(answer, _CANCEL_GRACE_S)
            stored = self._to_reply(message).stored
            if stored is not None:  # it was finished after all: its memory goes back
                stored.release()
            return message.header["held"]
        except (TimeoutError, CallError, asyncio.CancelledError, OSError):
            self.kill()
            return True

    def forget_segment(self, key: str) -> None:
        """Tell the process, with the next call, that a segment is no longer used."""
        if key in self._sent:
            self._sent.discard(key)
            self._forget.append(key)

    def kill(self) -> None:
        """End the process at once; `on_exit` follows."""
        self._is_doomed = True
        if self._process is not None and self.is_alive:
            self._process.kill()

    async def close(self) -> None:
        """End the process and wait until it is gone."""
        self.kill()
        while self.is_alive:
            await asyncio.sleep(0.005)

    def _to_reply(self, message: Message) -> Reply:
        header = message.header
        stored = self._stored(message) if "segment" in header else None
        return Reply(header["status"], header["content_type"], [message.body], stored=stored)

    def _stored(self, message: Message) -> StoredBody:
        key, nbytes = message.header["segment"]
        descriptor = message.descriptors[0] if message.descriptors else None
        segment = self._received.get(key, descriptor)
        if segment is None or nbytes > segment.size:
            self.kill()
            raise CallError("The worker named unknown memory.", code="worker_crashed", status=502)
        return StoredBody(key, segment, nbytes, lambda: self._release.append(key))

    def _on_readable(self) -> None:
        try:
            message = receive_message(self._connection)
        except BlockingIOError:
            return
        except (OSError, ChainruleError):
            message = None
        if message is None:
            # Most likely it is ending, and its status will say how.
            self._is_doomed = True
            self._loop.remove_reader(self._connection)
            self._loop.call_later(_LAST_BREATH_S, self.kill)
        elif "progress" in message.header:  # perhaps from a thread that outlived its call
            if self._watcher is not None:
                self._watcher.on_progress(*message.header["progress"])
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
        else:
            self.kill()  # an answer that nobody asked for: the author's code writes to our socket

    def _on_process_end(self) -> None:
        assert self._process is not None, "it was started"
        self._is_doomed = True
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._connection)
        self.exit_code = self._process.wait()
        os.close(self._pidfd)
        self._connection.close()
        self._fail_answer()
        # The failed answer refers to us by its traceback; what we hold must not wait for the collector.
        self._answer = None
        self._received = SegmentCache()
        self._on_exit(self)

    def _fail_answer(self) -> None:
        if self._answer is None or self._answer.done():
            return
        self._answer.set_exception(self._end_error())
        # Nobody may be waiting any more; that is not an error.
        self._answer.exception()

    def _end_error(self) -> CallError:
        """What the caller of a process that has ended is told."""
        return CallError(
            f"The component's process ended {ending_words(self.exit_code)} while it was computing. It "
            "has been replaced; the next call gets a new one.",
            code="worker_crashed",
            status=502,
            details=ending_facts(self.exit_code),
        )


def _pickled(source: Any, config: Any) -> bytes:
    try:
        setup = pickle.dumps((source, config))
    except (pickle.PicklingError, AttributeError, TypeError):
        setup = b""
    if not 0 < len(setup) <= INLINE_BYTES:
        raise DefinitionError(
            f"A worker process cannot be given this {type(source).__name__}. Serve a path such as "
            "component.py or component.py:name, or use workers=0.",
            code="not_picklable",
        )
    return setup
