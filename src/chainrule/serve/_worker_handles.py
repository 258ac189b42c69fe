"""A worker as the server sees it: a process of its own, or a thread of the server (`workers=0`).

Both take one call at a time and have one interface (`Worker`). A process can be stopped, and its end is
noticed and explained. A thread is faster to reach and cannot be stopped: a call that takes too long is
answered with 504, and the thread is not usable until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson

from chainrule._errors import ChainruleError, DecodeError, DefinitionError, StorageError
from chainrule._progress import listening
from chainrule._same_host import (
    CANCEL,
    INLINE_BYTES,
    Message,
    Segment,
    SegmentPool,
    ending_facts,
    ending_words,
    receive_message,
    send_message,
    socket_pair,
    with_memory_settings,
)
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, CallError, Facts, Reply, SegmentBody, Watcher, too_slow
from chainrule.serve._devices import EXPORTS_HEADER
from chainrule.serve._logs import Output
from chainrule.serve._problems import problem_reply

_log = logging.getLogger(__name__)

# A call that is cancelled is given this long to break off before its worker is killed.
_CANCEL_GRACE_S = 0.5
# A worker that closed its connection is given this long to end by itself, so that its status says why.
_LAST_BREATH_S = 0.5


class Worker(Protocol):
    """One worker. At most one call at a time."""

    @property
    def pid(self) -> int:
        """Of its process."""

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""

    @property
    def is_usable(self) -> bool:
        """Whether the next call can be given to it."""

    async def start(self) -> Facts:
        """Load the component."""

    async def call(self, call: Call, *, timeout_s: float | None) -> Reply:
        """Have a call answered."""

    def kill(self) -> None:
        """End it at once, as far as that is possible; its call fails."""

    async def close(self) -> None:
        """End it and wait until it is gone."""


def _exports(header: dict[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
    """The header that names what a worker has exported on a GPU, if it has."""
    name = header.get("exports")
    return () if name is None else ((EXPORTS_HEADER, str(name).encode()),)


class WorkerProcess:
    """One worker process; `_worker` is what runs in it.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        on_change: called on the event loop when the process has ended.
        output: where its output goes.
        memory: shared memory for bodies.
    """

    def __init__(
        self,
        source: Any,
        config: Any,
        on_change: Callable[[WorkerProcess], None],
        output: Output,
        memory: SegmentPool,
    ) -> None:
        self._setup = _pickled(source, config)
        self._on_change = on_change
        self._output = output
        self._memory = memory
        self._answers_are_large = False
        self._loop = asyncio.get_running_loop()
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
        # This descriptor becomes readable when the process ends. SIGCHLD would tell of all children at once,
        # and the main thread only. Nothing reaps the process before `_on_process_end`, so until then its
        # number is not given to another one, and signals reach it alone.
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_process_end)
        self._loop.add_reader(self._connection, self._on_readable)
        setup = self._exchange({}, [self._setup], [])
        try:
            reply = self._to_reply(await setup, None)
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
        output = self._output.follow()
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "chainrule.serve._worker", str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stderr=output,
                env=with_memory_settings(),
            )
        finally:
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
        self._watcher = call.watcher
        # One call at a time: `_answer` is the only future that a message of this connection can settle, so
        # replies need no numbers. The pool keeps to that, since it gives a worker to one call until
        # `_release`.
        room = self._room(call)
        answer = self._send_call(call, room)
        try:
            message = await (answer if timeout_s is None else asyncio.wait_for(answer, timeout_s))
            reply = self._to_reply(message, room)
            self._release(call, room, reply)
            return reply
        except TimeoutError:
            self.kill()
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=True) from None
        except asyncio.CancelledError:
            # The reply may have arrived in the step in which the caller left: before that (`answer` has it),
            # or after (`_on_readable` has dropped it). Then the worker is free, and would not answer a
            # message that asks it to break off.
            if answer.done() and not answer.cancelled():
                if answer.exception() is None:
                    answer.result().close()
            elif self._answer is answer:
                await self._cancel()
            raise

    def _room(self, call: Call) -> SegmentBody | None:
        """Memory for the answer: that of the caller, or, where large answers are usual, of the server."""
        if call.room is not None:
            return SegmentBody(call.room, call.room.size)
        segment = self._memory.take_largest() if self._answers_are_large else None
        return None if segment is None else SegmentBody(segment, segment.size, self._memory)

    def _release(self, call: Call, room: SegmentBody | None, reply: Reply) -> None:
        """After the reply: what the worker has read is free, and a room that it has not written to.

        Without a reply (a timeout, a crash, a caller who left) nothing is: the worker may still use it. The
        memory goes when the last process closes it. That of the answer is freed by those who send it.
        """
        if isinstance(call.body, SegmentBody):
            call.body.release()
        # The last answer predicts the next: offering memory for every small answer would cost a descriptor
        # per call, and offering none makes the worker create, and the kernel clear, new memory for each large
        # one.
        self._answers_are_large = reply.stored is not None
        if room is not None and (reply.stored is None or reply.stored.segment is not room.segment):
            room.release()

    def _send_call(self, call: Call, room: SegmentBody | None) -> asyncio.Future[Message]:
        header: dict[str, Any] = {"call": call.told}
        inline, descriptors = [call.body], []
        if isinstance(call.body, SegmentBody):
            header["body"] = call.body.nbytes
            inline, descriptors = [], [call.body.segment.descriptor]
        if room is not None:
            header["room"] = True
            descriptors.append(room.segment.descriptor)
        if call.watcher is None:
            return self._exchange(header, inline, descriptors)
        header["watch"] = True
        output = call.watcher.output.follow()
        try:
            return self._exchange(header, inline, [*descriptors, output])
        finally:
            os.close(output)  # the worker has its own

    def _exchange(
        self, header: dict[str, Any], body: list[Any], descriptors: list[int]
    ) -> asyncio.Future[Message]:
        self._answer = self._loop.create_future()
        try:
            send_message(self._connection, header, body, descriptors)
        except OSError:
            self.kill()
            if not self.is_alive:
                self._fail_answer(self._end_error())
        return self._answer

    async def _cancel(self) -> None:
        """Ask the author's code to stop; kill it when it does not.

        The message goes first and the signal after it: a worker heeds a signal only if a message is there
        (others send SIGUSR1, too). Exactly one reply follows in either case: the worker breaks off and
        says so (499), or it had finished before the signal came, and this is its reply, which is not wanted
        any more. It then reads the message when it waits for the next call, and drops it. The memory of the
        caller is free when this returns: no worker writes to it any more.
        """
        self._answer = answer = self._loop.create_future()
        try:
            send_message(self._connection, CANCEL)
            os.kill(self.pid, signal.SIGUSR1)
            message = await asyncio.wait_for(answer, _CANCEL_GRACE_S)
            message.close()
        except (TimeoutError, CallError, asyncio.CancelledError, OSError):
            self.kill()

    def kill(self) -> None:
        """End the process at once; `on_change` follows."""
        self._is_doomed = True
        if self._process is not None and self.is_alive:
            self._process.kill()

    async def close(self) -> None:
        """End the process and wait until it is gone."""
        self.kill()
        while self.is_alive:
            await asyncio.sleep(0.005)

    def _to_reply(self, message: Message, room: SegmentBody | None) -> Reply:
        header, stored = message.header, None
        try:
            if "room" in header and room is not None:
                stored = replace(room, nbytes=header["room"])
            elif "segment" in header:
                segment = Segment(*message.descriptors)
                stored = SegmentBody(segment, header["segment"], self._memory)
            if stored is not None and stored.nbytes > stored.segment.size:
                raise DecodeError("The answer is larger than its memory.", code="bad_segment")
        except (ChainruleError, TypeError):
            self.kill()
            raise CallError(
                "The worker's reply is damaged.", code="worker_crashed", status=502
            ) from None
        return Reply(
            header["status"],
            header["content_type"],
            [message.body],
            stored=stored,
            headers=_exports(header),
            reuse=header.get("reuse", {}),
            forward_pass=header.get("forward_pass"),
            device_bytes=header.get("device_bytes"),
        )

    def _on_readable(self) -> None:
        try:
            message = receive_message(self._connection)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EMFILE:  # the worker is well, its answer is lost
                self._fail_answer(
                    StorageError("The server has no file descriptors left for this answer.")
                )
                return
            message = None
        except ChainruleError:
            message = None
        if message is None:
            # Most likely it is ending, and its status will say how.
            self._is_doomed = True
            self._loop.remove_reader(self._connection)
            # A closed connection comes a moment before the end of the process. Killing it at once would
            # replace its own status (an exit code, a segmentation fault) by SIGKILL, and the caller would be
            # told the wrong cause.
            self._loop.call_later(_LAST_BREATH_S, self.kill)
        elif "progress" in message.header:  # perhaps from a thread that outlived its call
            if self._watcher is not None:
                self._watcher.on_progress(*message.header["progress"])
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
        elif self._answer is not None and self._answer.cancelled():
            # The caller has left in this step of the event loop, and `call` does not know it yet.
            self._answer = None
            message.close()
        else:
            self.kill()  # an unexpected answer: the author's code writes to the socket

    def _on_process_end(self) -> None:
        assert self._process is not None, "it was started"
        self._is_doomed = True
        # The order: no more callbacks, then the status, then the descriptors. A descriptor that is closed
        # while the loop still watches it could be given to another connection, whose events would come here.
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._connection)
        self.exit_code = self._process.wait()
        os.close(self._pidfd)
        self._connection.close()
        self._fail_answer(self._end_error())
        self._answer = None
        self._on_change(self)

    def _fail_answer(self, error: ChainruleError) -> None:
        if self._answer is None or self._answer.done():
            return
        self._answer.set_exception(error)
        # If no caller waits any more, asyncio must not report the exception as lost.
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


class WorkerThread:
    """One thread that answers calls.

    The component is loaded on it too: what an author makes may belong to the thread that made it. The thread
    is a daemon: the end of the process does not wait for it, or for the author's code that it runs.

    A call that takes too long is answered with 504, but the thread goes on: until it is back, `is_usable` is
    false.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        on_change: called on the event loop when the thread is back from a call that is not waited for any
            more.
    """

    is_alive = True

    def __init__(self, source: Any, config: Any, on_change: Callable[[WorkerThread], None]) -> None:
        self._source, self._config = source, config
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answer: asyncio.Future[Reply] | None = None
        self.is_usable = True

    @property
    def pid(self) -> int:
        """Of the server itself."""
        return os.getpid()

    async def start(self) -> Facts:
        """Start the thread, which loads the component.

        Raises:
            BaseException: what the component's code raised.
        """
        loading: asyncio.Future[Answerer] = self._loop.create_future()
        threading.Thread(
            target=self._run, args=(loading,), name="chainrule-component", daemon=True
        ).start()
        # Nothing else writes `_answerer`: the thread made it, hands it over through the event loop, and waits
        # on `_calls` until the first task, so it is never used by both at a time.
        self._answerer = await loading
        return self._answerer.facts

    async def call(self, call: Call, *, timeout_s: float | None) -> Reply:
        """Have a call answered.

        Raises:
            CallError: it took too long (`call_timeout`); the thread goes on.
        """
        self.is_usable = False
        self._answer = answer = self._loop.create_future()
        self._calls.put(partial(self._reply_to, call, answer))
        try:
            return await (answer if timeout_s is None else asyncio.wait_for(answer, timeout_s))
        except TimeoutError:
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=False) from None

    def kill(self) -> None:
        """Let the call under way fail, and the thread end when it is back."""
        self.is_usable = False
        # The end is a task like the others: the thread finds it after the call under way, and leaves its
        # loop.
        self._calls.put(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                CallError("The worker was stopped.", code="worker_crashed", status=502)
            )

    async def close(self) -> None:
        """Do not wait for the thread: it ends with this process."""
        self.kill()

    # On the thread

    def _run(self, loading: asyncio.Future[Answerer]) -> None:
        try:
            answerer = Answerer.load(self._source, self._config)
        except BaseException as error:
            self._on_loop(_fail, loading, error)
            return
        self._on_loop(_settle, loading, answerer)
        while (task := self._calls.get()) is not None:
            task()
            del task  # it holds a request and its reply

    def _reply_to(self, call: Call, answer: asyncio.Future[Reply]) -> None:
        try:
            reply = self._reply(call)
        except BaseException:  # without this thread no call would ever be answered again
            _log.exception("A call was lost")
            error = CallError(
                "The server failed on this request.", code="internal_error", status=500
            )
            reply = problem_reply(error)
        self._on_loop(self._finish, answer, reply)

    def _reply(self, call: Call) -> Reply:
        if call.watcher is None:
            return self._answerer.answer(call)
        with following_in_thread(call.watcher, self._loop):
            return self._answerer.answer(call)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        # The only way from the thread to the loop. A future may be settled on the loop's own thread only; the
        # queue `_calls` is the only way back, and it is safe between threads.
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    # On the event loop

    def _finish(self, answer: asyncio.Future[Reply], reply: Reply) -> None:
        """The thread is back.

        The race of reply and cancellation is decided here, on the event loop, by `answer`: either it is
        still open, and the pool releases this worker after it has the reply; or the caller has left, the
        pool found the worker not usable then, and is told now that it is.
        """
        self.is_usable = True
        if answer.done():
            self._on_change(self)
        else:
            answer.set_result(reply)


@contextlib.contextmanager
def following_in_thread(watcher: Watcher, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """While the call of a job is answered on this thread, pass its progress and what it logs on.

    What it prints is not passed on: all threads share what they print to.

    Args:
        watcher: who hears of it.
        loop: on which it hears of it.
    """

    def emit(fraction: float, text: str) -> None:
        loop.call_soon_threadsafe(watcher.on_progress, fraction, text)

    handler = _ThisThread(watcher)
    logging.getLogger().addHandler(handler)
    try:
        with listening(emit):
            yield
    finally:
        logging.getLogger().removeHandler(handler)


class _ThisThread(logging.Handler):
    """Passes on what the thread that made it logs."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._write = watcher.output.writer()
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._write(f"{record.levelname} {record.getMessage()}\n".encode())


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
