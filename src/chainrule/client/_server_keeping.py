"""Whether servers are up, and whether they serve what a handle over several of them expects.

`ServerKeeper` asks all servers at first, and later those that are not up, on a few threads however many there
are (`Agenda`). It also asks the name of the servers for its addresses.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from chainrule._errors import ChainruleError, InputError, NotGrantedError
from chainrule.client._compatibility import compare_interfaces, shown_changes
from chainrule.client._http import CallKey, HttpTransport
from chainrule.client._pool import Dispatcher, Keeper, Replica, Slot
from chainrule.client._transport import Ticket

_log = logging.getLogger(__name__)

# How long a server may take to say that it is ready, and how many are asked at the same time.
_LOOK_S = 5.0
_LOOKERS = 8
# A server that is not up is asked again after a time that doubles with each failure.
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 10.0
# How soon the addresses of a name are asked for again after a failure.
_RESOLVE_AGAIN_S = 1.0
_NOT_ASKED = "not asked yet"


class ServerReplica(Replica):
    """A server, as one replica.

    Args:
        id: its URL, or its address.
        transport: requests to it.

    Attributes:
        problem: why it is not up; empty when it is.
        is_refused: whether that is because it serves something else.
        tries: how often it was found not to be up, or ejected, since its last answer.
    """

    def __init__(self, id: str, transport: HttpTransport) -> None:
        self.id = id
        self.transport = transport
        self.problem = _NOT_ASKED
        self.is_refused = False
        self.tries = 0

    def start(self) -> dict[str, Any]:
        """Ask whether it is ready, and what it serves now."""
        return self.transport.look(_LOOK_S)

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
        key: CallKey | None = None,
    ) -> Any:
        """Have the server answer."""
        return self.transport.call_with_key(
            endpoint, payload, run_id=run_id, ticket=ticket, key=key
        )

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """One after the other."""
        return self.transport.call_many(endpoint, payloads, ticket=ticket)

    def stop(self) -> None:
        """Close connections that no call uses."""
        self.transport.close()


class Agenda:
    """Does what is due, on a few threads that are started as they are needed.

    A thread that takes something on first makes sure that another one waits for what comes next.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._threads = self._waiting = 0
        self._is_closed = False

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        """Do something later."""
        with self._changed:
            if self._is_closed:
                return
            heapq.heappush(self._items, (time.monotonic() + seconds, next(self._numbers), action))
            self._have_one_wait()
            self._changed.notify()

    def close(self) -> None:
        """Do nothing more."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    def _have_one_wait(self) -> None:
        if not self._waiting and self._threads < _LOOKERS:
            self._threads += 1
            threading.Thread(target=self._work, name="chainrule-servers", daemon=True).start()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                # A thread that ended here would still be counted in `_threads`, and after `_LOOKERS` of them
                # no server would be asked again.
                _log.exception("A server could not be asked")

    def _next(self) -> Callable[[], Any] | None:
        """What is due next, waited for; `None` when another thread waits already, or all is over."""
        with self._changed:
            # One thread waits for what is due, the others work. One that comes back from its work while
            # another waits is not needed, and ends.
            if self._waiting or self._is_closed:
                self._threads -= 1
                return None
            self._waiting += 1
            while not self._is_closed and (wait_s := self._seconds_to_wait()) != 0:
                self._changed.wait(wait_s)
            self._waiting -= 1
            if self._is_closed:
                self._threads -= 1
                return None
            action = heapq.heappop(self._items)[2]
            if self._items:
                self._have_one_wait()
            return action

    def _seconds_to_wait(self) -> float | None:
        return max(0.0, self._items[0][0] - time.monotonic()) if self._items else None


class ServerKeeper(Keeper):
    """Asks the servers that are not up whether they are, and a name for its addresses.

    Args:
        dispatcher: is told which servers are up.
        list_servers: gives id → connections of every server there is now; those that are known already are
            handed in, and kept.
        resolve_every_s: how often that is asked again; `None` for a list that does not change.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        list_servers: Callable[[Mapping[str, HttpTransport]], Mapping[str, HttpTransport]],
        resolve_every_s: float | None,
    ) -> None:
        super().__init__(dispatcher)
        self._list_servers = list_servers
        self._resolve_every_s = resolve_every_s
        self._agenda = Agenda()
        self._lock = threading.Lock()  # of `_is_asking`
        # Of `_slots`; held while the name is resolved. Lock order: this one, then the dispatcher's.
        self._resolving = threading.Lock()
        self._slots: dict[str, Slot] = {}
        self._is_asking = False

    def begin(self) -> None:
        """Ask all servers once, and wait for their answers.

        Raises:
            InputError: one of a list is another component than the first that answers (`other_component`).
            NotGrantedError: none is up, and one refuses the token.
            TransportError: the name cannot be resolved, or no server answers as a component does.
        """
        with self._resolving:
            slots = self._update()
        with ThreadPoolExecutor(_LOOKERS, thread_name_prefix="chainrule-servers") as threads:
            found = list(threads.map(_look, slots))
        for slot, answer in zip(slots, found, strict=True):
            self._take_in(slot, answer)
            if self._resolve_every_s is None and server_of(slot).is_refused:
                self.failure = InputError(server_of(slot).problem, code="other_component")
                raise self.failure
        errors = [answer for answer in found if isinstance(answer, ChainruleError)]
        if len(errors) == len(found):
            for error in errors:
                if isinstance(error, NotGrantedError) or error.code == "not_a_component":
                    raise error
        if self._resolve_every_s is not None:
            self._agenda.after(self._resolve_every_s, self._resolve_regularly)

    def lost(self, slot: Slot, problem: str, wait_s: float | None = None) -> None:
        """A server gets no calls any more; ask it later whether it is up again."""
        server = server_of(slot)
        server.problem = problem
        _log.warning("%s gets no calls: %s", server.id, problem)
        self._look_later(slot)
        if self._resolve_every_s is not None:
            with self._lock:
                if self._is_asking:
                    return
                self._is_asking = True
            self._agenda.after(_RESOLVE_AGAIN_S, self._resolve_once)

    def rest(self, slot: Slot, seconds: float) -> None:
        """Open a server again that has turned a call away."""
        self._agenda.after(seconds, partial(self._dispatcher.reopen, slot))

    def close(self) -> None:
        """Close the connections."""
        self.closed.set()
        self._agenda.close()
        self._dispatcher.close()
        for slot in self._dispatcher.slots:
            slot.replica.stop()

    def _look_later(self, slot: Slot) -> None:
        server = server_of(slot)
        pause_s = min(_FIRST_PAUSE_S * 2**server.tries, _MAX_PAUSE_S)
        server.tries += 1
        # Handles that lost a server at the same time should not all ask it at the same time.
        self._agenda.after(pause_s * random.uniform(0.75, 1.25), partial(self._look_again, slot))

    def _look_again(self, slot: Slot) -> None:
        if not slot.is_leaving and not slot.is_up:
            self._take_in(slot, _look(slot))

    def _take_in(self, slot: Slot, answer: dict[str, Any] | ChainruleError) -> None:
        """What a server answered: it is given calls, or asked again later."""
        server = server_of(slot)
        problem = (
            answer.message if isinstance(answer, ChainruleError) else self._unlike(server, answer)
        )
        server.is_refused = bool(problem) and not isinstance(answer, ChainruleError)
        if problem and problem != server.problem:
            _log.warning("%s gets no calls: %s", server.id, problem)
        elif not problem and server.problem not in ("", _NOT_ASKED):
            _log.info("%s gets calls again", server.id)
        server.problem = problem
        if problem:
            self._look_later(slot)
            return
        self._dispatcher.mark_up(slot)

    def _unlike(self, server: ServerReplica, document: dict[str, Any]) -> str:
        """How the component of a server is another one than that of this handle; empty if it is not."""
        if self.document is None:
            self._learn(document)
        known = self.document
        assert known is not None, "learned above"
        if document == known:
            return ""
        name, other = known["info"]["title"], document["info"]["title"]
        if name != other:
            return (
                f"{server.id} serves the component {other!r}, and this handle is one of {name!r}. Take the "
                "URL out of the list, or name the component in it: http://host:8000/c/name."
            )
        changes = compare_interfaces(known, document)
        if not changes:
            return ""
        return (
            f"The component {name!r} has another interface at {server.id} than this handle knows: "
            f"{shown_changes(changes)}. Make a new handle once all servers have the new version."
        )

    # Which servers there are

    def _update(self) -> list[Slot]:
        """Take in servers that are new, and let go of those that are gone; the new ones."""
        known = {id: server_of(slot).transport for id, slot in self._slots.items()}
        listed = self._list_servers(known)
        new = [
            Slot(ServerReplica(id, transport))
            for id, transport in listed.items()
            if id not in known
        ]
        for slot in new:
            self._slots[slot.id] = slot
            self._dispatcher.add(slot)
        for id in known.keys() - listed.keys():
            slot = self._slots.pop(id)
            self._dispatcher.remove(slot)
            slot.replica.stop()
            _log.info("%s is no longer among the servers", id)
        return new

    def _resolve_regularly(self) -> None:
        assert self._resolve_every_s is not None, "a list that does not change is not asked for"
        self._agenda.after(self._resolve_every_s, self._resolve_regularly)
        self._resolve()

    def _resolve_once(self) -> None:
        with self._lock:
            self._is_asking = False
        self._resolve()

    def _resolve(self) -> None:
        try:
            with self._resolving:
                new = self._update()
        except ChainruleError as error:  # a name server that is away does not end what works
            _log.warning("%s", error.message)
            return
        for slot in new:
            self._agenda.after(0.0, partial(self._look_again, slot))


def server_of(slot: Slot) -> ServerReplica:
    """The server of a slot."""
    assert isinstance(slot.replica, ServerReplica), "only servers are added"
    return slot.replica


def _look(slot: Slot) -> dict[str, Any] | ChainruleError:
    """The document of a server, or why there is none."""
    try:
        return slot.replica.start()
    except ChainruleError as error:
        return error
