"""The server's side of one worker process: start it, talk to it, notice its end, kill it."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import orjson

from chainrule._errors import ChainruleError, DecodeError, DefinitionError, StorageError
from chainrule._same_host import (
    CANCEL,
    INLINE_BYTES,
    Message,
    Segment,
    ending_facts,
    ending_words,
    receive_message,
    send_message,
    socket_pair,
    with_memory_settings,
)
from chainrule.serve._calls import Call, CallError, Facts, Reply, SegmentBody, Watcher, too_slow
from chainrule.serve._logs import Output

# A call that is cancelled is given this long to break off before its worker is killed.
_CANCEL_GRACE_S = 0.5
# A worker that closed its connection is given this long to end by itself, so that its status says why.
_LAST_BREATH_S = 0.5


class WorkerProcess:
    """One worker process. At most one call at a time.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        on_change: called on the event loop when the process has ended.
        output: where its output goes.
    """

    def __init__(
        self,
        source: Any,
        config: Any,
        on_change: Callable[[WorkerProcess], None],
        output: Output,
    ) -> None:
        self._setup = _pickled(source, config)
        self._on_change = on_change
        self._output = output
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
        self._watcher = call.watcher
        answer = self._send_call(header, call)
        try:
            return self._to_reply(await asyncio.wait_for(answer, timeout_s), call.room)
        except TimeoutError:
            self.kill()
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=True) from None
        except asyncio.CancelledError:
            # The reply may have arrived in the step in which the caller left. Then the worker is free, and
            # would not answer a message that asks it to break off.
            if answer.cancelled() or not answer.done():
                await self._cancel()
            elif answer.exception() is None:
                answer.result().close()
            raise

    def _send_call(self, header: dict[str, Any], call: Call) -> asyncio.Future[Message]:
        inline, descriptors = [call.body], []
        if isinstance(call.body, SegmentBody):
            header["body"] = call.body.nbytes
            inline, descriptors = [], [call.body.segment.descriptor]
        if call.room is not None:
            header["room"] = True
            descriptors.append(call.room.descriptor)
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

    def _to_reply(self, message: Message, room: Segment | None) -> Reply:
        header, stored = message.header, None
        try:
            if "room" in header and room is not None:
                stored = SegmentBody(room, header["room"])
            elif "segment" in header:
                stored = SegmentBody(Segment(*message.descriptors), header["segment"])
            if stored is not None and stored.nbytes > stored.segment.size:
                raise DecodeError("The answer is larger than its memory.", code="bad_segment")
        except (ChainruleError, TypeError):
            self.kill()
            raise CallError(
                "The worker's reply is damaged.", code="worker_crashed", status=502
            ) from None
        return Reply(header["status"], header["content_type"], [message.body], stored=stored)

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
            self._loop.call_later(_LAST_BREATH_S, self.kill)
        elif "progress" in message.header:  # perhaps from a thread that outlived its call
            if self._watcher is not None:
                self._watcher.on_progress(*message.header["progress"])
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
        else:
            self.kill()  # an unexpected answer: the author's code writes to the socket

    def _on_process_end(self) -> None:
        assert self._process is not None, "it was started"
        self._is_doomed = True
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
