"""Small calls of fast components, answered within the turn of the event loop in which they came.

A task, a future and two turns of the event loop cost as much as the whole of a small call. Where the author's
thread is free and its last answer took less than a moment, the loop gives it the call and waits that moment;
a call that takes longer goes on as any other. So the loop never stands still for longer than `MOMENT_S`, and
what a caller sees is the same on both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from chainrule.runtime._samehost import INLINE_BYTES
from chainrule.serve._calls import Call, Reply

__all__ = ["BEGUN", "MOMENT_S", "Begun", "CanBegin", "ExpressLane", "ExpressStop", "Ticket"]

BEGUN = "chainrule.begun"
"""Where a call that was begun here, and goes on elsewhere, stands in an ASGI scope."""

MOMENT_S = 0.001
"""How long the event loop waits for an answer, at most."""

# Bodies that come in parts or on request, and requests that are to be jobs.
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"idempotency-key"))


class Begun(Protocol):
    """A call that a worker has been given.

    Attributes:
        call: the call.
    """

    call: Call


@runtime_checkable
class CanBegin(Protocol):
    """A pool that may answer calls while the event loop waits."""

    def begin(self, call: Call) -> Begun | None:
        """Give a worker a call that is likely to be over in a moment; `None` when that is not to be hoped."""

    def wait(self, begun: Begun) -> Reply | None:
        """The reply, if it comes within `MOMENT_S`; otherwise `finish` has to follow."""

    async def finish(self, begun: Begun) -> Reply:
        """The reply of a call that took longer."""


class ExpressStop(Protocol):
    """An endpoint that knows how to begin."""

    def prepare(self, scope: Any) -> Call | None:
        """The call of a request, still without its body; `None` when it cannot be begun."""

    def begin(self, call: Call) -> Begun | None:
        """Begin a call; `None` leaves it to the usual way."""

    def wait(self, begun: Begun) -> Reply | None:
        """The reply, if it comes within a moment."""


class Ticket(NamedTuple):
    """A request on the express lane whose headers are here.

    Attributes:
        stop: the endpoint.
        call: without its body.
        nbytes: length of the body.
    """

    stop: ExpressStop
    call: Call
    nbytes: int


class ExpressLane:
    """Tells which requests may be answered at once.

    Attributes:
        stops: path → endpoint.
        guards: each says whether a request is allowed; those that are not learn why on the usual way.
    """

    def __init__(self) -> None:
        self.stops: dict[str, ExpressStop] = {}
        self.guards: list[Callable[[Any], bool]] = []

    def ticket_for(self, scope: Any) -> Ticket | None:
        """For a request whose headers are here, if it is small and has nothing unusual."""
        stop = self.stops.get(scope["path"])
        if stop is None or scope["method"] != "POST" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 6 or not 0 < int(length) <= INLINE_BYTES:
            return None
        if not _UNUSUAL.isdisjoint(headers) or not all(guard(scope) for guard in self.guards):
            return None
        call = stop.prepare(scope)
        return None if call is None else Ticket(stop, call, int(length))
