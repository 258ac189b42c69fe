"""A thread of the server that loads and runs author code, one task after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from chainrule.runtime._samehost import CallSlot, Message
from chainrule.serve._answering import Answerer
from chainrule.serve._desk import Desk
from chainrule.serve._direct import DirectClients
from chainrule.serve._lease import Client, Lease

__all__ = ["WorkerThread"]

_log = logging.getLogger(__name__)

Task = Callable[[], None]


class WorkerThread:
    """One thread that runs tasks of the server and, while it is lent (`_lease`), calls of clients.

    The component is loaded on it too: what an author makes may belong to the thread that made it. Nobody
    waits for the thread at the end of the process, whatever the author's code is doing.

    Args:
        load: loads the component.

    Attributes:
        slot: in which the thread says what it is doing for clients it is lent to.
        lease: there while it is lent.
    """

    can_be_killed = False
    prefix = "t."

    def __init__(self, load: Callable[[], Answerer]) -> None:
        self.slot = CallSlot()
        self.lease: Lease | None = None
        self._load = load
        self._loading: Future[Answerer] = Future()
        self._loop = asyncio.get_running_loop()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._desk = Desk("t")
        self._direct: DirectClients | None = None
        # A lent thread waits for sockets, not for the queue; by this it learns that a task is there.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name="chainrule-component", daemon=True).start()

    async def loaded(self) -> Answerer:
        """What answers calls, when the component is loaded.

        Raises:
            BaseException: whatever the component's code raised.
        """
        return await asyncio.wrap_future(self._loading)

    @property
    def backlog(self) -> int:
        """How many tasks have not begun."""
        return self._tasks.qsize()

    def submit(self, task: Task | None) -> None:
        """Run something on the thread; `None` ends it when all before is done."""
        self._tasks.put(task)
        if self.lease is not None:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        self._loading.set_running_or_notify_cancel()
        try:
            self._loading.set_result(self._load())
        except BaseException as error:
            self._loading.set_exception(error)
        while (task := self._next_task()) is not None:
            try:
                task()
            except BaseException:  # without this thread nobody would ever be answered again
                _log.exception("a call was lost")
            del task  # it holds a request and its reply
        self.slot.close()
        os.close(self._wake)

    def _next_task(self) -> Task | None:
        while self._direct is not None:
            with contextlib.suppress(queue.Empty):
                return self._tasks.get_nowait()
            self._direct.wait()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return self._tasks.get()

    def send_client(self, client: Client, holds: Sequence[str]) -> bool:
        """Have the thread read a client's calls itself."""
        number, endpoints = client.number, client.endpoints
        descriptor = os.dup(client.descriptor)
        self.submit(lambda: self._add(number, descriptor, holds, endpoints))
        return True

    def _add(
        self, number: int, descriptor: int, holds: Sequence[str], endpoints: Mapping[str, str]
    ) -> None:
        if self._direct is None:
            answerer = self._loading.result()
            self._direct = DirectClients(
                self._desk,
                answerer,
                self.slot,
                self._wake,
                max_body_bytes=answerer.facts.max_body_bytes,
                tell=self._tell,
            )
        self._direct.add(number, descriptor, holds, endpoints)

    def send_recall(self) -> None:
        """Have the thread come back from its clients; it does when its call is over."""
        self.submit(self._return)

    def _return(self) -> None:
        held, tally = ({}, []) if self._direct is None else self._direct.leave_all()
        self._direct = None
        self._tell({"recalled": held, "tally": tally})

    def _tell(
        self, header: dict[str, Any], body: Sequence[bytes] = (), descriptors: Sequence[int] = ()
    ) -> None:
        # Whoever tells closes what it sends along.
        message = Message(header, b"".join(body), [os.dup(each) for each in descriptors])
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._on_told, message)

    def _on_told(self, message: Message) -> None:
        if self.lease is not None:
            self.lease.hear(message)

    def release_segment(self, key: str) -> None:
        """Tell the thread that nobody reads one of its segments any more."""
        self.submit(lambda: self._give_back(key))

    def _give_back(self, key: str) -> None:
        self._desk.own.give_back(key)

    def forget_client(self, number: int) -> None:
        """Tell the thread that a client has left."""
        self.submit(lambda: self._desk.received.forget_all(f"c{number}."))

    def interrupt(self) -> None:
        """Nothing to do: author code in a thread cannot be interrupted."""

    def kill(self) -> None:
        """Nothing to do: author code in a thread cannot be stopped."""
