"""A worker that is lent to clients of the same host, and what the server still does for them.

While a worker is lent it reads calls from the clients' connections itself (`_direct`): two context switches
per call instead of four, and no event loop. The server keeps a hand on every connection and looks, some
fifty times a second, at the slot in which the worker says what it is doing. A lease ends

- when the server needs the worker for somebody else, or stops,
- when one call takes longer than a look or two: it is then supervised like any other, and the other clients
  of the worker queue up at the server,
- when nobody has called for a second.

The worker then leaves all connections to the server, which reads them again. A packet has exactly one
reader, so it does not matter that both may try for a moment. If the worker dies, the slot tells whose call
it took along; that client gets the same answer as over HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chainrule._errors import ChainruleError
from chainrule.runtime._samehost import CallSlot, CurrentCall, Message
from chainrule.serve._calls import CallError, too_slow
from chainrule.serve._traffic import Traffic

if TYPE_CHECKING:
    from chainrule.serve._pool import Counters

__all__ = ["Client", "Lease", "Lendable"]

_LOOK_EVERY_S = 0.02
_MAX_IDLE_S = 1.0
_CANCEL_GRACE_S = 1.0


class Client(Protocol):
    """A connection of a client of the same host, as a lease sees it.

    Attributes:
        number: of the connection, unique in the server.
        endpoints: path → endpoint of the component that it called last.
    """

    number: int
    endpoints: Mapping[str, str]

    @property
    def descriptor(self) -> int:
        """Of the connection."""

    @property
    def is_lendable(self) -> bool:
        """Whether the server reads it, and has nothing to answer."""

    @property
    def has_left(self) -> bool:
        """Whether the other side has closed the connection."""

    @property
    def is_unheard(self) -> bool:
        """Whether a message waits to be read, or the server is answering one."""

    def lend(self, prefix: str) -> Sequence[str]:
        """Stop reading; returns the keys with this prefix that the client holds, the worker's to know now."""

    def read_again(self) -> None:
        """Read, although the worker may still do so too."""

    def take_back(self, held: Sequence[str], release: Callable[[str], object]) -> None:
        """Read again, alone; the client still holds these segments."""

    def release(self, key: str) -> None:
        """The client no longer reads a segment."""

    def fail(self, number: int | None, error: ChainruleError) -> None:
        """Answer a call, or the present one, with an error."""

    def handle(self, message: Message) -> None:
        """Answer a message that somebody else has read."""

    def close(self) -> None:
        """Close the connection."""


class Lendable(Protocol):
    """A worker that can be lent.

    Attributes:
        slot: where it says what it is doing.
        lease: there while it is lent.
        can_be_killed: whether `kill` ends a call that does not end by itself.
    """

    slot: CallSlot
    lease: Lease | None
    can_be_killed: bool

    @property
    def prefix(self) -> str:
        """How the keys of its segments begin."""

    def send_client(self, client: Client, holds: Sequence[str]) -> bool:
        """Have it read a client's calls; whether that was possible."""

    def send_recall(self) -> None:
        """Have it come back."""

    def release_segment(self, key: str) -> None:
        """Tell it that nobody reads one of its segments any more."""

    def interrupt(self) -> None:
        """Have it look whether its call was cancelled."""

    def kill(self) -> None:
        """End it at once."""


class Lease:
    """One worker while it is lent.

    Args:
        worker: who is lent.
        timeout_s: how long one call may take; `None` for ever.
        counters: of the component.
        traffic: where every answered call is recorded.
        on_end: called when the worker is the server's again.
    """

    def __init__(
        self,
        worker: Lendable,
        *,
        timeout_s: float | None,
        counters: Counters,
        traffic: Traffic,
        on_end: Callable[[Lease], None],
    ) -> None:
        self.worker = worker
        self.is_ending = False
        self._timeout_s = timeout_s
        self._counters = counters
        self._traffic = traffic
        self._on_end = on_end
        self._clients: dict[int, Client] = {}
        self._answered = worker.slot.answered
        self._active_at = time.monotonic()
        self._seen: CurrentCall | None = None
        self._supervised: _Supervision | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)

    @property
    def client_count(self) -> int:
        """How many connections the worker reads."""
        return len(self._clients)

    def add(self, client: Client) -> None:
        """Lend the worker to one more client."""
        holds = client.lend(self.worker.prefix)
        if self.worker.send_client(client, holds):
            self._clients[client.number] = client
        else:
            client.take_back(holds, self.worker.release_segment)

    def end(self) -> None:
        """Call the worker back; `on_end` follows when it has finished what it is doing."""
        if not self.is_ending:
            self.is_ending = True
            self.worker.send_recall()

    def hear(self, message: Message) -> None:
        """The worker says something about its clients."""
        match message.header:
            case {"recalled": held, "tally": tally}:
                self._tell(tally)
                self._end(held)
            case {"tally": tally}:
                self._tell(tally)
            case {"pass_on": number, "message": header}:
                self._pass_on(number, message._replace(header=header))
            case {"released": keys, "client": number}:
                self._release(number, keys)
            case {"gone": number}:
                self._drop(number)
            case _:
                self.worker.kill()  # the author's code writes to our socket

    def _end(self, held: Mapping[str, Sequence[str]]) -> None:
        """The worker has come back, and says which clients still hold memory of its."""
        self._finish()
        for number, client in self._clients.items():
            client.take_back(held.get(str(number), ()), self.worker.release_segment)
        self._on_end(self)

    def lost(self, error: CallError) -> CallError | None:
        """The worker has died: whoever waits for it is told, the others notice nothing.

        Returns:
            What its caller was told; `None` when nobody waited.
        """
        self._finish()
        call = self.worker.slot.current or CurrentCall(0, 0)
        client = self._clients.get(call.client)
        told = None
        # A worker that dies while it reads has taken a call along, unless the call is still there.
        was_taken = client is not None and not (call.number == 0 and client.is_unheard)
        if client is not None and was_taken and not client.has_left:
            told = error if self._supervised is None else self._supervised.failure or error
            client.fail(call.number or None, told)
        for each in self._clients.values():
            each.take_back((), self.worker.release_segment)
        return told

    def _pass_on(self, number: int, message: Message) -> None:
        """The worker has read a message that is for the server."""
        client = self._clients.get(number)
        if client is None:
            message.close()
        else:
            client.handle(message)

    def _release(self, number: int, keys: Sequence[str]) -> None:
        """The worker has read that a client no longer uses memory that is not the worker's."""
        client = self._clients.get(number)
        if client is not None:
            for key in keys:
                client.release(key)

    def _tell(self, tally: Sequence[Sequence[Any]]) -> None:
        """The worker says what it has answered."""
        for row in tally:
            self._traffic.add(*row)

    def _drop(self, number: int) -> None:
        """A client has left, or sent what is no message."""
        client = self._clients.pop(number, None)
        if client is not None:
            client.close()

    def _finish(self) -> None:
        self._timer.cancel()
        self._count()
        if self._supervised is not None:
            self._counters.running -= 1

    def _count(self) -> None:
        answered = self.worker.slot.answered
        if answered != self._answered:
            self._counters.answered += answered - self._answered
            self._answered, self._active_at = answered, time.monotonic()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)
        self._count()
        call = self.worker.slot.current
        if call is not None and call == self._seen:
            self._supervise(call)
        elif call is None and time.monotonic() - self._active_at > _MAX_IDLE_S:
            self.end()
        self._seen = call

    def _supervise(self, call: CurrentCall) -> None:
        """A call that takes its time: watch over it as over any other."""
        client = self._clients.get(call.client)
        if client is None:  # it has just left
            return
        if self._supervised is None:
            self._counters.running += 1
            self.end()
        # The worker may take another call that was there already, before it hears that it is wanted.
        if self._supervised is None or self._supervised.call != call:
            self._supervised = _Supervision(
                call, self.worker, client, self._timeout_s, self._counters
            )
            for other in self._clients.values():
                if other is not client:
                    other.read_again()
        self._supervised.look()


class _Supervision:
    """Stops a call that takes too long, or that nobody waits for."""

    def __init__(
        self,
        call: CurrentCall,
        worker: Lendable,
        client: Client,
        timeout_s: float | None,
        counters: Counters,
    ) -> None:
        self.call = call
        self.failure: CallError | None = None
        self._worker = worker
        self._client = client
        self._timeout_s = timeout_s
        self._counters = counters
        self._since = time.monotonic() - _LOOK_EVERY_S
        self._cancelled_at: float | None = None

    def look(self) -> None:
        """See how the call is doing."""
        now = time.monotonic()
        if self._cancelled_at is not None:
            if now - self._cancelled_at > _CANCEL_GRACE_S:
                self._worker.kill()
        elif self._client.has_left:
            self._cancelled_at = now
            self._counters.cancelled += 1
            self._worker.slot.cancel(self.call)
            self._worker.interrupt()
        elif (
            self.failure is None
            and self._timeout_s is not None
            and now - self._since > self._timeout_s
        ):
            self._give_up(self._timeout_s)

    def _give_up(self, timeout_s: float) -> None:
        self._counters.timed_out += 1
        self.failure = too_slow("The call", timeout_s, was_stopped=self._worker.can_be_killed)
        if self._worker.can_be_killed:
            self._worker.kill()  # the client is told when the process is gone
        else:
            self._client.fail(self.call.number, self.failure)
            self._client.read_again()
