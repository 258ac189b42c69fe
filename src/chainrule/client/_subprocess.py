"""A component in a process of its own: started here, reached by messages, ended with this process.

The process runs the same worker as a server's, so a crash of the author's code is an exception here and the
next call gets a new process. Arrays go through shared memory; there is no port and no HTTP.

A worker asks Linux to kill it when its parent dies (`PR_SET_PDEATHSIG`), so that a busy one does not outlive
this process. For Linux the parent is the *thread* that started it: a component that was opened on a thread
would lose its process as soon as that thread ends. So children of other threads are started by one thread
that stays (`start_for_good`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, cached_property, partial
from queue import SimpleQueue
from typing import Any, TypeVar

import orjson

from chainrule._codec import DEFAULT_LIMITS, TRUSTING_LIMITS
from chainrule._device import DeviceLibrary
from chainrule._errors import DecodeError, DefinitionError, StorageError, TransportError
from chainrule._registry import home_of
from chainrule._same_host import (
    CANCEL,
    CallMemory,
    Message,
    SegmentPool,
    ending_facts,
    ending_words,
    limit_waiting,
    receive_message,
    send_message,
    socket_pair,
    with_memory_settings,
)
from chainrule.client._bodies import NATIVE, Answer, as_body, read_answer
from chainrule.client._connections import LostConnectionError
from chainrule.client._devices import (
    CHECK_ENDPOINT,
    DeviceLinks,
    offers_device_memory,
    on_host,
)
from chainrule.client._environment import environment_variables
from chainrule.client._transport import Ticket, Transport, check_seconds
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import Run

# A process that is asked to end is given this long before the next, less polite way.
_PATIENCE_S = 0.5
# A call that is cancelled is given this long to break off before its process is killed.
_GRACE_S = 1.0


class SubprocessTransport(Transport):
    """A child process with one component.

    Args:
        source: path of the component, as `load_component` takes it.
        config: settings of the component.
        python: the interpreter of the environment to run it in, see `ensure_environment`; this one when
            not given.
        startup_timeout: seconds that loading the component may take.
        timeout: seconds that a call may take; a call that takes longer ends the process.

    Raises:
        DefinitionError: the component cannot be loaded.
        TransportError: the process ended or did not start in time.
    """

    def __init__(
        self,
        source: str,
        *,
        config: ComponentConfig | Mapping[str, Any] | None = None,
        python: str | None = None,
        startup_timeout: float = 60.0,
        timeout: float | None = None,
    ) -> None:
        check_seconds("startup_timeout", startup_timeout)
        check_seconds("timeout", timeout)
        self._settings: dict[str, Any] = {
            "config": config, "python": python, "startup_timeout": startup_timeout, "timeout": timeout,
        }  # fmt: skip
        self._source = source
        # The caller owns the process: it may see tracebacks, and its calls are trusted.
        settings = ComponentConfig.make(config).replace(debug=True)
        if settings.limits is DEFAULT_LIMITS:
            settings = settings.replace(limits=TRUSTING_LIMITS)
        self._setup = pickle.dumps((source, settings))
        self._python = python or sys.executable
        self._variables = None if python is None else environment_variables()
        self._startup_timeout_s = startup_timeout
        self._timeout_s = timeout
        # Held for a whole call: the process answers one at a time. `close` and cancellations do not take it.
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle that is sent to another process starts one of its own there.
        return partial(SubprocessTransport, **self._settings), (self._source,)

    @property
    def known_document(self) -> dict[str, Any]:
        """The document that the process sent when it started."""
        return self._facts["openapi"]

    def describe(self) -> dict[str, Any]:
        """The document that the process sent when it started."""
        return self._facts["openapi"]

    def health(self) -> dict[str, Any]:
        """`ok` while the process runs."""
        is_alive = self._process is not None and self._process.poll() is None
        return {"status": "ok" if is_alive else "stopped"}

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have the process answer; one call at a time, others wait."""
        ticket = ticket or Ticket()
        call = {
            "endpoint": endpoint,
            "content_type": NATIVE.content_type,
            "accept": NATIVE.accept,
            "run_id": None if run_id is None else Run.check_id(run_id),
        }
        with self._devices.exchanging(payload) as message:
            if message is None:
                return read_answer(self._ask(call, on_host(payload), ticket))
            call["accept"] = message.accept(NATIVE.accept)
            return message.read(self._ask(call, message.payload, ticket))

    def _ask(self, call: Mapping[str, Any], payload: Mapping[str, Any], ticket: Ticket) -> Answer:
        pieces = as_body(payload, NATIVE.body_format)
        with self._lock:
            return self._exchange({"call": call}, pieces, ticket)

    def device_library(self) -> DeviceLibrary | None:
        """What holds arrays on the GPU of the process."""
        return self._devices.library()

    @cached_property
    def _devices(self) -> DeviceLinks:
        def check(pieces: list[Any]) -> Answer:
            call = {"endpoint": CHECK_ENDPOINT, "content_type": "application/json"}
            with self._lock:
                return self._exchange({"call": call}, pieces, Ticket())

        is_offered = offers_device_memory(self._facts["openapi"])
        share = ComponentConfig.make(self._settings["config"]).device_exchange_share
        return DeviceLinks(self.place, check if is_offered else None, is_own=True, share=share)

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._stop()
        if "_devices" in vars(self):
            self._devices.close()

    def _start(self) -> None:
        ours, theirs = socket_pair()
        try:
            with theirs:
                self._process = start_for_good(lambda: self._spawn(theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        self.place = f"process {self._process.pid}"
        self._connection = _WorkerConnection(ours, self.place)
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection)
        limit_waiting(ours, self._startup_timeout_s)
        try:
            answer = self._connection.exchange({}, [self._setup])
            self._facts = _read_facts(answer)
        except BaseException as error:
            self._stop()
            if isinstance(error, LostConnectionError):
                raise self._not_started(error) from error
            raise
        limit_waiting(ours, self._timeout_s)

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._python, "-m", home_of("worker"), str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                env=with_memory_settings(self._variables or os.environ),
            )
        except OSError as error:
            raise TransportError(
                f"{self._python} cannot be started: {error.strerror}.", code="not_startable"
            ) from error

    def _exchange(self, header: Mapping[str, Any], pieces: Sequence[Any], ticket: Ticket) -> Answer:
        if self._is_closed:
            raise TransportError("This component has been closed.", code="closed")
        if ticket.is_cancelled:
            raise TransportError("The call was cancelled before it began.", code="cancelled")
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._start()
        assert self._process is not None
        connection = self._connection
        interruption = _Interruption(self._process, connection)
        # The order of the `finally` below matters: first `call_is_over`, which waits for an interruption that
        # is being sent, then the ticket forgets it. After that no message or signal of this call can reach
        # the next one.
        ticket.when_cancelled(interruption.interrupt)
        try:
            return connection.exchange(header, pieces)
        except LostConnectionError as error:
            self._stop()
            if ticket.is_cancelled:
                raise TransportError("The call was cancelled.", code="cancelled") from error
            raise self._ended(error) from error
        except BaseException:
            # Ctrl-C, most likely. The answer is still to come; the next call must not take it for its own.
            self._stop()
            raise
        finally:
            interruption.call_is_over()
            ticket.when_cancelled(None)

    def _stop(self) -> None:
        if self._process is not None:
            self._finalizer()

    def _not_started(self, error: LostConnectionError) -> TransportError:
        if error.code == "timeout":
            return TransportError(
                f"The component was not loaded within {self._startup_timeout_s:g} s. Pass a larger "
                "startup_timeout.",
                code="startup_timeout",
            )
        if not self._has_chainrule():
            return TransportError(
                f"{self._python} does not have Chainrule, which runs the component. Install it into that "
                "environment.",
                code="not_startable",
            )
        return self._crashed("while it loaded the component; its error output may say more")

    def _has_chainrule(self) -> bool:
        """Whether the interpreter of another environment has what the process needs."""
        if self._python == sys.executable:
            return True
        found = subprocess.run(
            [self._python, "-c", "import chainrule"],
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        return found.returncode == 0

    def _ended(self, error: LostConnectionError) -> TransportError:
        if error.code == "timeout":
            return TransportError(
                "The component's process did not answer in time during the call and was stopped.",
                code="call_timeout",
            )
        return self._crashed("during the call. The next call starts a new one")

    def _crashed(self, when: str) -> TransportError:
        assert self._process is not None
        status = self._process.returncode
        return TransportError(
            f"The component's process ended {ending_words(status)} {when}.",
            code="worker_crashed",
            details=ending_facts(status),
        )


class _WorkerConnection:
    """The connection to a worker: one call at a time, large bodies in shared memory.

    Args:
        connection: this end of it.
        place: the other side, for messages.
    """

    def __init__(self, connection: socket.socket, place: str) -> None:
        self._connection = connection
        self._place = place
        self._segments = SegmentPool()
        self._answers_are_large = False

    def exchange(self, header: Mapping[str, Any], pieces: Sequence[Any]) -> Answer:
        """Send a call, its body in pieces, and receive its answer.

        Raises:
            LostConnectionError: the other side is gone (`connection_lost`) or silent (`timeout`).
        """
        try:
            memory = CallMemory(self._segments, pieces, wants_room=self._answers_are_large)
        except OSError as error:
            raise StorageError(f"There is no shared memory for the request: {error}.") from error
        try:
            self._send(header, pieces, memory)
        except OSError as error:
            raise self._lost(error, was_sent=False) from error
        try:
            message = receive_message(self._connection)
            if message is None:
                raise ConnectionError("closed")
            content = self._content(message, memory)
        except (OSError, DecodeError) as error:
            raise self._lost(error, was_sent=True) from error
        # Only here, after the reply: on all ways out above the worker may still write to the segments. They
        # are then dropped with `memory`, and the memory goes when the worker closes its own descriptors (rule
        # 2 of `_segments`).
        memory.give_back()
        header = message.header
        return Answer(
            int(header["status"]),
            str(header["content_type"]),
            content,
            exports=header.get("exports"),
        )

    def send_cancel(self) -> None:
        """Ask the worker to interrupt the call of another thread; a signal has to follow."""
        with contextlib.suppress(OSError):  # it has ended, and the call with it
            send_message(self._connection, CANCEL)

    def close(self) -> None:
        """Close the connection. Arrays that were received stay valid."""
        self._connection.close()

    def _send(self, header: Mapping[str, Any], pieces: Sequence[Any], memory: CallMemory) -> None:
        header = dict(header)
        if memory.body is not None:
            header["body"] = memory.body_bytes
        if memory.room is not None:
            header["room"] = True
        inline = pieces if memory.body is None else ()
        send_message(self._connection, header, inline, memory.descriptors)

    def _content(self, message: Message, memory: CallMemory) -> Any:
        header = message.header
        self._answers_are_large = "room" in header or "segment" in header
        if "room" in header:
            return memory.answer(header["room"], None)
        if "segment" in header:
            (descriptor,) = message.descriptors
            return memory.answer(header["segment"], descriptor)
        return message.body

    def _lost(self, error: Exception, *, was_sent: bool) -> LostConnectionError:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return LostConnectionError(
                f"No answer from {self._place} in time. Pass a larger timeout.",
                was_sent=was_sent,
                code="timeout",
            )
        return LostConnectionError(
            f"The connection to {self._place} broke ({error}).",
            was_sent=was_sent,
            code="connection_lost",
        )


class _Interruption:
    """Interrupts one call, from another thread, and never the next one.

    The lock decides the race of reply and cancellation: while it is held, the call is not over. So the worker
    gets the message and the signal before the next call, and drops them if it has replied already.

    Args:
        process: runs the call.
        connection: to it.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: _WorkerConnection) -> None:
        self._process, self._connection = process, connection
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def interrupt(self) -> None:
        """Interrupt the call; where the author's code does not return to Python, end the process."""
        with self._lock:
            if self._is_over.is_set():
                return
            self._connection.send_cancel()
            self._process.send_signal(signal.SIGUSR1)
        threading.Thread(target=self._end_if_busy, name="chainrule-interrupt", daemon=True).start()

    def call_is_over(self) -> None:
        """The call is over and cannot be interrupted any more."""
        with self._lock:
            self._is_over.set()

    def _end_if_busy(self) -> None:
        if not self._is_over.wait(_GRACE_S):
            self._process.kill()


def _end(process: subprocess.Popen[bytes], connection: _WorkerConnection) -> None:
    """End a process: it ends by itself when its connection closes, unless the author's code is busy."""
    connection.close()
    for last_word in (process.terminate, process.kill):
        try:
            process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            last_word()
    process.wait()


def _read_facts(answer: Answer) -> dict[str, Any]:
    content = orjson.loads(bytes(answer.body))
    if answer.status == 200:
        return content
    error = DefinitionError(content["message"], code=content["code"])
    if content.get("traceback"):
        error.add_note(f"Traceback of the component:\n{content['traceback']}")
    raise error


T = TypeVar("T")


def start_for_good(start: Callable[[], T]) -> T:
    """Call something that starts a process, on a thread that lives as long as this process."""
    # The main thread lives as long as the process, so it may be the parent itself.
    if threading.current_thread() is threading.main_thread():
        return start()
    future: Future[T] = Future()
    _starter(os.getpid()).put((start, future))
    return future.result()


@cache
def _starter(pid: int) -> SimpleQueue[Any]:
    """What the thread is told; a forked process has one of its own."""
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_run, args=(tasks,), name="chainrule-starter", daemon=True).start()
    return tasks


def _run(tasks: SimpleQueue[Any]) -> None:
    while True:
        start, future = tasks.get()
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)
        del start, future  # what they refer to must not wait for the next task
