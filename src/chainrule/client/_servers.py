"""Several servers of one component as one transport: a list of URLs, or a name that means several addresses.

The dispatcher is that of pools. What is different: the servers live on without this handle and have other
callers, so a server may be full, fail for a while, come back as another version, or leave the name.

A server is in one of these states:

    up        it is given calls
    resting   it has turned a call away (503 or 429 with `Retry-After`): no calls until that time is over
    ejected   three calls in a row failed there: no calls until it says that it is ready; at most half of
              those that can be reached are ejected
    down      it cannot be connected to, or is stopping: no calls until it says that it is ready
    refused   it serves another component than the first one, or another version of its interface

`_server_keeping` asks the servers that are not up whether they are.

The invariant: a call is sent again only where that is safe. That is so when it never left, when the server
says that it has not begun, and when the caller said that calls may run twice. A call with a key that may have
begun is sent again to a server with the same jobs, which knows it by its key: the server that was asked, once
that is back, or one that shares its jobs.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import xxhash

from chainrule._describe import describe_value
from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    InputError,
    TransportError,
)
from chainrule._lru_cache import LRUCache
from chainrule.client._bodies import NATIVE, TURNED_AWAY
from chainrule.client._connections import (
    LostConnectionError,
    Origin,
    Verify,
    parse_url,
    tls_settings,
)
from chainrule.client._http import (
    BY_KEY,
    CHANGED,
    CallKey,
    HttpTransport,
    Idempotent,
    check_idempotent,
    new_key,
)
from chainrule.client._jobs import Job
from chainrule.client._pool import (
    Dispatcher,
    Replica,
    ReplicaLostError,
    ReplicatedTransport,
    Slot,
    TwoChoices,
)
from chainrule.client._server import (
    NO_DATABASE,
    JobEvent,
    JobInfo,
    JobServer,
    Server,
    ServerJob,
)
from chainrule.client._server_keeping import ServerKeeper, ServerReplica, server_of
from chainrule.client._transport import Ticket, check_seconds

T = TypeVar("T")

Resolve = Callable[[str, int], Iterable[str]]
"""Gives the addresses behind a name and a port."""

# A server has at most this many calls of one handle at once, and a handle at most that many in all.
_DEPTH = 32
_MAX_CALLS = 256
# How long a server rests that has turned a call away.
_MIN_REST_S = 0.1
_MAX_REST_S = 5.0
# A call is given up after it has met this many failures.
_MAX_LOST = 3
# Jobs whose server is remembered; for one that is forgotten, the servers are asked in turn.
_REMEMBERED = 4096
# Servers that an error lists.
_SHOWN = 8
# What a server answers that takes no calls of this handle any more, or none before it was looked at again.
_GONE = CHANGED | {"shutting_down", "job_kept"}
# How often a call with a key looks for a server that knows it.
_LOOK_S = 0.1
# In place of an endpoint: a call that becomes a job, and has a key.
_SUBMIT = "submit"
# What such an endpoint computes changes nothing, and may be computed twice.
_READING = frozenset(("abstract_eval",))


class ServerLostError(ReplicaLostError):
    """A server cannot be reached, failed, or has no room.

    Attributes:
        was_sent: whether the component may have run.
    """

    def __init__(self, error: ChainruleError, *, was_sent: bool, never_began: bool = False) -> None:
        super().__init__(
            error.message, code=error.code, details=error.details, never_began=never_began
        )
        self.was_sent = was_sent


class Rendezvous:
    """Which of some servers a piece of content belongs to: every handle finds the same one.

    Each server has a number for each content; the highest one wins. So when one of R servers goes, only the
    content that was its own moves, and no one has to be told.

    Args:
        ids: of the servers.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = list(ids)
        self._hashes = np.array(
            [xxhash.xxh3_64_intdigest(id.encode()) for id in self._ids], dtype=np.uint64
        )

    def home(self, content: bytes) -> str | None:
        """The server of some content; `None` when there is no server."""
        if not self._ids:
            return None
        key = np.uint64(xxhash.xxh3_64_intdigest(content))
        # Mixed after the XOR: the highest of plain XORs is decided by the first bits alone. Of three servers,
        # the one whose first bit is not that of the others would get half of all content.
        return self._ids[int(np.argmax(_mixed(self._hashes ^ key)))]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers of which every bit depends on every bit: the last steps of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True)
class ServerOptions:
    """How the servers of one handle are used; see `Component.from_urls`."""

    token: str | None
    token_file: Any
    timeout: float | None
    retries: int
    idempotent: Idempotent
    share_memory: bool
    verify: Verify
    max_answer_bytes: int
    startup_timeout: float

    def connect(self, url: str, *, address: str | None = None) -> HttpTransport:
        """Connections to one of the servers."""
        return HttpTransport(
            url,
            token=self.token,
            token_file=self.token_file,
            timeout=self.timeout,
            retries=self.retries,
            share_memory=self.share_memory,
            verify=self.verify,
            max_answer_bytes=self.max_answer_bytes,
            address=address,
            is_one_of_many=True,
        )


# Held by the first thread of a forked process that uses a handle of its parent.
_forked = threading.Lock()


class ServersTransport(ReplicatedTransport):
    """Requests to several servers of one component. Nothing is sent before the first use.

    Args:
        urls: where the servers are; one name, with `resolve`.
        options: how the servers are used.
        resolve: gives the addresses behind the name; `None` when each URL is a server.
        resolve_every_s: how often the addresses are asked for.
    """

    def __init__(
        self,
        urls: Sequence[str],
        options: ServerOptions,
        resolve: Resolve | None = None,
        resolve_every_s: float = 30.0,
    ) -> None:
        _check_list(urls)
        check_idempotent(options.idempotent)
        check_seconds("startup_timeout", options.startup_timeout)
        check_seconds("resolve_every", resolve_every_s)
        self._made_of = urls, options, resolve, resolve_every_s
        self._options = options
        self.max_concurrency = (
            min(_MAX_CALLS, _DEPTH * len(urls)) if resolve is None else _MAX_CALLS
        )
        self._set_up()

    def _set_up(self) -> None:
        """Make connections, locks and threads, also in a forked process, where none of them works."""
        urls, options, resolve, resolve_every_s = self._made_of
        if any(url.startswith("https://") for url in urls):
            # Reading the authorities takes longer than a call; once is enough for all servers.
            options = replace(options, verify=tls_settings(options.verify))
        servers = _check_urls(urls, options)
        dispatcher = Dispatcher(
            _DEPTH,
            options.startup_timeout,
            choice=TwoChoices(random.Random()),
            why_none_is_up=lambda: _why_none_is_up(keeper, dispatcher),
        )
        keeper = self._servers = ServerKeeper(
            dispatcher,
            (lambda known: servers) if resolve is None else _Addresses(urls[0], resolve, options),
            None if resolve is None else resolve_every_s,
        )
        super().__init__(
            _numbered(urls) if resolve is None else f"the servers of {urls[0]}",
            dispatcher=dispatcher,
            keeper=keeper,
            idempotent=options.idempotent is True,
        )
        # Held until the servers have been asked for the first time.
        self._starting = threading.Lock()
        self._is_started = False
        self._pid = os.getpid()
        self._rendezvous = Rendezvous(()), -1
        self._homes: LRUCache[str, str] = LRUCache(_REMEMBERED)

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle that is sent to another process opens connections of its own there.
        return ServersTransport, self._made_of

    def start(self) -> None:
        """Ask all servers once, whether they are ready and what they serve."""
        if self._pid != os.getpid():
            with _forked:  # the connections and threads are the parent's
                if self._pid != os.getpid():
                    self._set_up()
        if self._is_started:
            return
        with self._starting:
            if self._servers.failure is not None:
                raise self._servers.failure
            if not self._is_started and not self.is_closed:
                self._servers.begin()
                self._is_started = True

    def describe(self) -> dict[str, Any]:
        """The document of the first server that answered."""
        self.start()
        if self._servers.document is None:  # none was up: wait for the first one
            return self._attempt_at("describe", lambda server: server.transport.describe())
        return self._servers.document

    @property
    def known_state(self) -> str:
        """A line for each server."""
        rows = [_row(slot) for slot in self._dispatcher.slots[:_SHOWN]]
        width = max((len(row["server"]) for row in rows), default=0)
        lines = [
            f"{row['server']:{width}}  {row['state']:8} "
            + (row["problem"] or f"{row['in_flight']} of {row['limit']} calls")
            for row in rows
        ]
        more = len(self._dispatcher.slots) - len(rows)
        lines += [f"and {more} more"] if more else []
        return "".join(
            f"\n  {'servers' if not number else '':9} {line}" for number, line in enumerate(lines)
        )

    def status(self) -> dict[str, Any]:
        """The servers: which are up, how many calls each has, and why the others get none."""
        self.start()
        return {
            "servers": [_row(slot) for slot in self._dispatcher.slots],
            "waiting": self._dispatcher.waiting,
            "repeated": self._repeated,
            "affinity": self._forward_passes.counts,
        }

    def mean_seconds(self) -> dict[str, float]:
        """What the `/metrics` of one of the servers say of the component."""
        return self._attempt_at("abstract_eval", lambda server: server.transport.mean_seconds())

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have a server answer, and another one where that is safe.

        Raises:
            InputError: the request is at fault; `poison_input` when workers of several servers die of it.
            TransportError: no answer came.
        """
        self.start()
        ticket = ticket or Ticket()

        def ask(server: ServerReplica, key: CallKey | None = None) -> Any:
            return server.call(endpoint, payload, run_id=run_id, ticket=ticket, key=key)

        point = self._point(endpoint, payload)
        if self._options.idempotent != BY_KEY:
            return self._attempt_at(endpoint, ask, point, ticket)
        return self._attempt_with_key(endpoint, ask, new_key(), point, ticket)

    def submit(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job | None:
        """Have one of the servers take a call on as a job; `None` when it is not one of Chainrule.

        A key of the caller's own belongs to one server, as long as that is up: the call may come again.
        """
        self.start()
        text = idempotency_key or new_key()
        content = None if idempotency_key is None else text.encode()

        def ask(server: ServerReplica, key: CallKey) -> tuple[ServerReplica, JobInfo | None]:
            return server, server.transport.take_on(endpoint, payload, run_id=run_id, key=key)

        server, info = self._attempt_with_key(_SUBMIT, ask, text, content, Ticket())
        if info is None:
            return None
        self._homes.put(info.id, server.id)
        return self._job(server, info)

    def job(self, job_id: str) -> Job:
        """A job that one of the servers has taken on before: they are asked in turn until one knows it."""
        self.start()
        home = self._homes.get(job_id)
        unknown: ChainruleError | None = None
        for server in sorted(self.servers_up(), key=lambda server: server.id != home):
            try:
                return self._job(server, server.transport.server.job(job_id))
            except (CapabilityError, TransportError) as error:
                unknown = error if unknown is None or isinstance(error, TransportError) else unknown
        raise unknown or _why_none_is_up(self._servers, self._dispatcher)

    def servers_up(self) -> list[ServerReplica]:
        """The servers that are up."""
        return [server_of(slot) for slot in self._dispatcher.slots if slot.is_up]

    def _job(self, server: ServerReplica, info: JobInfo) -> ServerJob:
        return ServerJob(_JobServers(self.servers_up, server), info, NATIVE.accept)

    # Who is asked, and who is asked next

    def _attempt_at(
        self,
        endpoint: str,
        ask: Callable[[ServerReplica], T],
        point: bytes | None = None,
        ticket: Ticket | None = None,
    ) -> T:
        return self.attempt(endpoint, point, _asking(ask), ticket or Ticket())

    def _attempt_with_key(
        self,
        endpoint: str,
        ask: Callable[[ServerReplica, CallKey], T],
        text: str,
        point: bytes | None,
        ticket: Ticket,
    ) -> T:
        """What `ask` gives for some server; once a server may have begun, for one that knows the key."""
        store: str | None = None

        def ask_any(server: ServerReplica) -> T:
            nonlocal store  # of the last attempt, which is the only one that may have begun
            store = server.transport.job_store
            return ask(server, CallKey(text, store))

        try:
            return self._attempt_at(endpoint, ask_any, point, ticket)
        except ServerLostError as error:
            if not error.was_sent or store is None or ticket.is_cancelled:
                raise
            lost = error
        key = CallKey(text, store)
        return self._ask_again(endpoint, lambda server: ask(server, key), store, lost, ticket)

    def _ask_again(
        self,
        endpoint: str,
        ask: Callable[[ServerReplica], T],
        store: str,
        lost: ServerLostError,
        ticket: Ticket,
    ) -> T:
        """What `ask` gives for a server with some jobs, waited for.

        Such a call takes no lease: its server has counted it already, and all of them together are no more
        than this handle had under way.
        """
        patience_s = max(ticket.patience_s, self._options.startup_timeout)
        until = time.monotonic() + patience_s
        while not ticket.is_cancelled and time.monotonic() < until:
            for slot in self._dispatcher.slots:
                server = server_of(slot)
                if not slot.is_up or server.transport.job_store != store:
                    continue
                with contextlib.suppress(ServerLostError):
                    return self._ask(slot, _asking(ask), ticket)
            ticket.pause(_LOOK_S)
        raise ReplicaLostError(
            f"{lost.message} {endpoint} may have run, and no server that knows its key has answered within "
            f"{patience_s:g} s. Pass a longer startup_timeout if servers take longer to come back, or "
            "idempotent=True if calls may run twice.",
            code=lost.code,
            details=lost.details,
        ) from lost

    def _lease(
        self, endpoint: str, point: bytes | None, last: str | None, ticket: Ticket
    ) -> contextlib.AbstractContextManager[Slot]:
        prefer = None if last else self._home(endpoint, point)
        return self._dispatcher.lease(prefer=prefer, avoid=last, ticket=ticket)

    def _home(self, endpoint: str, point: bytes | None) -> str | None:
        """The server that ran the forward pass; else, as for the key of a job, what all handles agree on."""
        found = super()._home(endpoint, point)
        if found is not None or point is None or endpoint == "apply":
            return found
        rendezvous, changes = self._rendezvous
        if changes != self._dispatcher.changes:
            # Read before the servers are listed: a change since is seen next time.
            changes = self._dispatcher.changes
            rendezvous = Rendezvous(server.id for server in self.servers_up())
            self._rendezvous = rendezvous, changes
        return rendezvous.home(point)

    def _ask(self, slot: Slot, ask: Callable[[Replica], T], ticket: Ticket) -> T:
        server = server_of(slot)
        try:
            answer = ask(server)
        except TransportError as error:
            lost = None if ticket.is_cancelled else self._judge(slot, error)
            if lost is None:
                raise
            raise lost from error
        except ChainruleError:
            self._note_answer(slot)
            raise
        self._note_answer(slot)
        return answer

    def _note_answer(self, slot: Slot) -> None:
        server_of(slot).tries = 0
        if slot.failures or slot.limit < _DEPTH:
            self._dispatcher.note_answer(slot)

    def _judge(self, slot: Slot, error: TransportError) -> ServerLostError | None:
        """What a failure says of the server; `None` when it is the call's own."""
        status = error.details.get("status")
        is_broken = isinstance(error, LostConnectionError)
        if (is_broken and error.code == "unreachable") or error.code in _GONE:
            if self._dispatcher.mark_lost(slot):
                self._servers.lost(slot, error.message)
            may_have_run = getattr(error, "was_sent", error.code == "job_kept")
            return ServerLostError(error, was_sent=may_have_run, never_began=not may_have_run)
        if error.code == NO_DATABASE:  # it may have stored the job, and not have said so any more
            return ServerLostError(error, was_sent=True)
        if status in TURNED_AWAY and "retry_after_s" in error.details:
            if self._dispatcher.turn_away(slot):
                rest_s = max(error.details["retry_after_s"], _MIN_REST_S)
                # Handles that were turned away at the same time should not come back at the same time.
                self._servers.rest(slot, min(rest_s, _MAX_REST_S) * random.uniform(1.0, 1.5))
            return ServerLostError(error, was_sent=False, never_began=True)
        # Such an answer without a code of ours comes from something between this handle and the server, which
        # does not say whether the request has reached it.
        is_proxy = status in (502, 503, 504) and error.code == TransportError.default_code
        if not (is_broken or is_proxy or error.code == "worker_crashed"):
            self._note_answer(slot)
            return None
        if self._dispatcher.note_failure(slot):
            self._servers.lost(
                slot, f"several calls failed in a row; the last one: {error.message}"
            )
        # The record of a call with a key says that its worker died: that is its answer at every server.
        is_recorded = error.code == "worker_crashed" and self._options.idempotent == BY_KEY
        if error.code == "timeout" or is_recorded:
            return None
        return ServerLostError(error, was_sent=getattr(error, "was_sent", True))

    def _check_repeat(
        self, error: ReplicaLostError, endpoint: str, deaths: int, since: float, ticket: Ticket
    ) -> None:
        """Raise if the call must not be sent again."""
        assert isinstance(error, ServerLostError), "raised by `_ask`"
        if ticket.is_cancelled:
            raise error
        if error.was_sent and not self._may_run_twice(endpoint):
            if self._has_key(endpoint):
                raise error  # see `_attempt_with_key`
            raise ReplicaLostError(
                f"{error.message} {endpoint} was not sent to another server, because it may have run. Pass "
                "idempotent=True if calls may run twice.",
                code=error.code,
                details=error.details,
            ) from error
        if error.code == "worker_crashed" and deaths >= _MAX_LOST:
            raise InputError(
                f"Workers of {deaths} servers died while they computed {endpoint} for this input. It is not "
                "tried again.",
                code="poison_input",
                details=error.details | {"deaths": deaths},
            ) from error
        patience_s = max(ticket.patience_s, self._options.startup_timeout)
        if deaths >= _MAX_LOST or time.monotonic() - since > patience_s:
            raise error

    def _may_run_twice(self, endpoint: str) -> bool:
        """Whether a call that may have run can be sent to another server."""
        return self._idempotent or endpoint in _READING

    def _has_key(self, endpoint: str) -> bool:
        return self._options.idempotent == BY_KEY or endpoint == _SUBMIT


def _asking(ask: Callable[[ServerReplica], T]) -> Callable[[Replica], T]:
    """What asks a server, for a dispatcher of any replicas."""

    def ask_server(replica: Replica) -> T:
        assert isinstance(replica, ServerReplica), "only servers are added"
        return ask(replica)

    return ask_server


class _JobServers(JobServer):
    """The server that has taken a job on; while that cannot be reached, another one that knows the job.

    Servers with one job store know each other's jobs. The others say that there is no such job.
    """

    def __init__(
        self, servers_up: Callable[[], Sequence[ServerReplica]], home: ServerReplica
    ) -> None:
        self._servers_up = servers_up
        self._home = home

    def job(self, job_id: str) -> JobInfo:
        return self._ask(lambda server: server.job(job_id))

    def cancel(self, job_id: str) -> JobInfo:
        return self._ask(lambda server: server.cancel(job_id))

    def result(self, job_id: str, accept: str | None) -> Any:
        return self._ask(lambda server: server.result(job_id, accept))

    def log(self, job_id: str) -> str:
        return self._ask(lambda server: server.log(job_id))

    def events(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[JobEvent]:
        return self._home.transport.server.events(job_id, timeout_s=timeout_s)

    def _ask(self, ask: Callable[[Server], T]) -> T:
        try:
            return ask(self._home.transport.server)
        except TransportError:
            others = [server for server in self._servers_up() if server is not self._home]
            for other in random.sample(others, min(_MAX_LOST, len(others))):
                with contextlib.suppress(CapabilityError, TransportError):
                    found = ask(other.transport.server)
                    self._home = other
                    return found
            raise


class _Addresses:
    """The servers behind a name: one for each address that it has now.

    Args:
        url: with the name.
        resolve: gives the addresses.
        options: how the servers are used.
    """

    def __init__(self, url: str, resolve: Resolve, options: ServerOptions) -> None:
        self._url, self._resolve, self._options = url, resolve, options
        self._origin: Origin = parse_url(url, verify=False)[0]

    def __call__(self, known: Mapping[str, HttpTransport]) -> dict[str, HttpTransport]:
        """Id → connections, those that are known already as they are.

        Raises:
            TransportError: the name has no addresses (`host_unknown`).
        """
        host, port = self._origin.host, self._origin.port
        try:
            addresses = list(dict.fromkeys(self._resolve(host, port)))
        except OSError as error:
            raise _unknown_name(host, str(error)) from error
        except Exception as error:  # of the caller's function
            raise _unknown_name(host, f"{type(error).__name__}: {error}") from error
        if not addresses:
            raise _unknown_name(host, "it has no addresses")
        listed = {}
        for address in addresses:
            id = str(Origin(address, port))
            listed[id] = known.get(id) or self._options.connect(self._url, address=address)
        return listed


def _resolve_name(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine resolves it."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def check_resolve(resolve: Any) -> Resolve:
    """What gives the addresses of a name.

    Raises:
        InputError: neither `"dns"` nor a function (`bad_option`).
    """
    if resolve == "dns":
        return _resolve_name
    if not callable(resolve):
        raise InputError(
            'resolve is "dns", or a function (host, port) -> addresses; found '
            f"{describe_value(resolve)}.",
            code="bad_option",
        )
    return resolve


def _unknown_name(host: str, reason: str) -> TransportError:
    return TransportError(
        f"The servers of {host} are not known: {reason}. Check the name, or name each server: "
        "Component.from_urls([…]).",
        code="host_unknown",
    )


def _check_list(urls: Any) -> None:
    """Check that some URLs are a list of texts.

    Raises:
        InputError: they are not, or there are none (`bad_url`).
    """
    is_list = isinstance(urls, Sequence) and not isinstance(urls, str)
    if not is_list or not urls or not all(isinstance(url, str) for url in urls):
        found = "an empty list" if is_list and not urls else describe_value(urls)
        raise InputError(
            f'Expected a list of URLs, such as ["http://a:8000", "http://b:8000"]; found {found}.',
            code="bad_url",
        )


def _check_urls(urls: Sequence[str], options: ServerOptions) -> dict[str, HttpTransport]:
    """Id → connections of a list of servers.

    Raises:
        InputError: one is no URL, or is there twice (`bad_url`).
    """
    listed: dict[str, HttpTransport] = {}
    for url in urls:
        transport = options.connect(url)
        if transport.place in listed:
            raise InputError(f"The URL {transport.place} is in the list twice.", code="bad_url")
        listed[transport.place] = transport
    return listed


def _why_none_is_up(keeper: ServerKeeper, dispatcher: Dispatcher) -> TransportError:
    servers = [server_of(slot) for slot in dispatcher.slots]
    if servers and all(server.is_refused for server in servers):
        return TransportError(servers[0].problem, code="schema_changed")
    shown = "\n".join(f"  {server.id}: {server.problem}" for server in servers[:_SHOWN])
    more = f"\n  and {len(servers) - _SHOWN} more" if len(servers) > _SHOWN else ""
    return TransportError(
        f"None of {_numbered(servers)} takes calls:\n{shown}{more}", code="pool_unavailable"
    )


def _numbered(servers: Sequence[Any]) -> str:
    return "1 server" if len(servers) == 1 else f"{len(servers)} servers"


def _row(slot: Slot) -> dict[str, Any]:
    """What `status` says of a server."""
    server = server_of(slot)
    state = slot.state
    if state == "starting":
        state = "refused" if server.is_refused else "down"
    return {
        "server": server.id,
        "state": state,
        "in_flight": slot.in_flight,
        "limit": slot.limit,
        "lost": slot.deaths,
        "problem": "" if slot.is_up else server.problem,
    }
