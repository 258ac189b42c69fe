"""A component behind a URL, served by Chainrule or by a Tesseract."""

from __future__ import annotations

import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from http import HTTPStatus
from os import PathLike
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlencode

import orjson

from chainrule._codec import Limits
from chainrule._device import DeviceLibrary
from chainrule._errors import CapabilityError, InputError, TransportError
from chainrule._same_host import is_supported
from chainrule._tracing import current_traceparent, span
from chainrule.client._bodies import (
    Answer,
    Dialect,
    answer_limits,
    as_body,
    dialect_of,
    read_answer,
)
from chainrule.client._compatibility import compare_interfaces, shown_changes
from chainrule.client._connections import (
    MAX_ANSWER_BYTES,
    ConnectionPool,
    Credentials,
    Deadline,
    LostConnectionError,
    Request,
    Verify,
    parse_url,
)
from chainrule.client._devices import (
    CHECK_ENDPOINT,
    DeviceLinks,
    Message,
    offers_device_memory,
    on_host,
)
from chainrule.client._forward_passes import PassTokens
from chainrule.client._jobs import Job
from chainrule.client._same_host import SharedMemory
from chainrule.client._server import JobInfo, Server, ServerJob
from chainrule.client._transport import Ticket, Transport, check_count, check_seconds
from chainrule.runtime.internal import Run

BY_KEY = "key"
Idempotent = bool | Literal["key"]
"""Whether calls may run twice; `"key"`: they may not, and every call has a key by which a server knows it."""

T = TypeVar("T")


@dataclass(frozen=True)
class CallKey:
    """By what a server knows a call that it is sent again.

    Attributes:
        text: random, or what the caller of `submit` has chosen.
        store: the jobs among which the key is known once a server has had the call (`JobStore.id`); `None`
            for those that the server has now. A server with other jobs refuses the call, and nothing has run.
    """

    text: str
    store: str | None = None


_STORE_HEADER = "Chainrule-Job-Store"

# A server with several components has each of them at such a path below its own.
_COMPONENT_PATH = re.compile(r"/c/[^/]+$")
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0


_DURATION = re.compile(
    r'^chainrule_request_duration_seconds_(sum|count)\{component="(.*)",endpoint="(\w+)"\} (\S+)$',
    re.MULTILINE,
)


def _mean_durations(text: str, component: str) -> dict[str, float]:
    """Endpoint → mean seconds of a component, from metrics in the text form of Prometheus."""
    found: dict[str, dict[str, float]] = {}
    for kind, name, endpoint, value in _DURATION.findall(text):
        if name == component:
            found.setdefault(endpoint, {})[kind] = float(value)
    return {name: each["sum"] / each["count"] for name, each in found.items() if each["count"]}


def _is_document(content: Mapping[str, Any]) -> bool:
    """Whether an answer has what every OpenAPI document of a component has, so that it can be read."""
    info = content.get("info")
    names = (info.get("title"), info.get("version")) if isinstance(info, dict) else (None,)
    parts = (content.get("paths"), content.get("components"))
    return all(isinstance(n, str) for n in names) and all(isinstance(p, dict) for p in parts)


class HttpTransport(Transport):
    """Requests to a server.

    Args:
        url: where the component is served; `http://` is assumed when no scheme is given.
        address: what to connect to, where the name in the URL stands for several servers.
        is_one_of_many: what certainly has not run is left to the caller, who has other servers to ask.

    The other arguments are those of `Component.from_url`.

    Raises:
        InputError: the URL is not one (`bad_url`), or an option makes no sense (`bad_option`).
    """

    max_concurrency = 32

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        timeout: float | None = None,
        retries: int = 2,
        idempotent: Idempotent = False,
        share_memory: bool = True,
        verify: Verify = True,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        address: str | None = None,
        is_one_of_many: bool = False,
    ) -> None:
        self._settings: dict[str, Any] = {
            "token": token, "token_file": token_file, "timeout": timeout, "retries": retries,
            "idempotent": idempotent, "share_memory": share_memory, "verify": verify,
            "max_answer_bytes": max_answer_bytes, "address": address, "is_one_of_many": is_one_of_many,
        }  # fmt: skip
        check_seconds("timeout", timeout)
        check_count("retries", retries, least=0)
        check_count("max_answer_bytes", max_answer_bytes, least=1)
        check_idempotent(idempotent)
        origin, self._base = parse_url(url, verify)
        origin = replace(origin, address=address)
        self._server_base = _COMPONENT_PATH.sub("", self._base)
        self._pool = ConnectionPool(origin, Credentials(token, token_file))
        self._max_answer_bytes = max_answer_bytes
        self._limits = answer_limits(max_answer_bytes)
        self._timeout_s = timeout
        self._retries = retries
        self._idempotent = idempotent
        self._is_one_of_many = is_one_of_many
        self._headers = {"Host": origin.authority}
        scheme = "http" if origin.tls is None else "https"
        self._url = self.place = f"{scheme}://{origin.authority}{self._base}"
        self._share_memory = share_memory
        # Lock order: `_agreement`, then `_lock`, then the locks of the connection pool and the shared memory,
        # which are held for a few instructions only. The first two are held while the server is asked.
        self._lock = threading.Lock()
        self._agreement = threading.Lock()
        self._document: dict[str, Any] | None = None
        self._job_store: str | None = None
        self._dialect: Dialect | None = None
        self._memory: SharedMemory | None = None
        self._passes = PassTokens(lambda answer: read_answer(answer, self._limits))

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle that is sent to another process opens connections of its own there.
        return partial(HttpTransport, **self._settings), (self._url,)

    @property
    def known_document(self) -> dict[str, Any] | None:
        """The server's document, once it has been asked for."""
        return self._document

    @property
    def job_store(self) -> str | None:
        """The id of the server's jobs, as its document had it when it was read last."""
        return self._job_store

    def describe(self) -> dict[str, Any]:
        """The server's OpenAPI document, asked for once."""
        with self._lock:
            if self._document is None:
                self._document = self._read_document()
        return self._document

    def look(self, timeout_s: float) -> dict[str, Any]:
        """Ask for the server's document again, if the server says that it is ready.

        Raises:
            TransportError: it cannot be reached in this time, or is not ready (`not_ready`).
            NotGrantedError: it refuses the token.
        """
        deadline = Deadline(timeout_s)
        request = Request("GET", f"{self._server_base}/ready", self._headers)
        answer = self._pool.exchange(request, Ticket(), deadline)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise TransportError(
                f"{self.place} says that it is not ready for calls (503 from /ready).",
                code="not_ready",
            )
        # Any other answer counts as ready: servers of others have no /ready.
        self._document = document = self._read_document(deadline)
        return document

    def _read_document(self, deadline: Deadline | None = None) -> dict[str, Any]:
        document = self._ask_for_document(deadline)
        if not _is_document(document):
            raise TransportError(
                f"What answers at {self.place} is not a component: its OpenAPI document says "
                "nothing of endpoints and schemas.",
                code="not_a_component",
            )
        # It is the server's, not the component's: servers of one component have equal documents.
        self._job_store = document.pop("x-job-store", None)
        return document

    def _ask_for_document(self, deadline: Deadline | None) -> dict[str, Any]:
        try:
            return self._get("/openapi.json", deadline)
        except CapabilityError as error:
            reason = error.message
            if error.code != "not_found":  # not a server of Chainrule
                reason = (
                    f"the server has no {self._base}/openapi.json. Name the server, such as "
                    "http://host:8000, or one of its components, http://host:8000/c/name."
                )
            raise TransportError(
                f"There is no component at {self.place}: {reason}",
                code="not_a_component",
            ) from error

    def health(self) -> dict[str, Any]:
        """The answer of `/health`."""
        return self._get("/health")

    def mean_seconds(self) -> dict[str, float]:
        """What the server's `/metrics` say of the component; nothing where it has none."""
        request = Request("GET", f"{self._server_base}/metrics", self._headers)
        answer = self._exchange(request, Ticket())
        if answer.status != HTTPStatus.OK:
            return {}
        named = self._base.removeprefix(self._server_base).rpartition("/")[2]
        text = bytes(answer.body).decode("utf-8", errors="replace")
        return _mean_durations(text, unquote(named) or self.describe()["info"]["title"])

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Ask an endpoint of the served component; the caller's trace, if there is one, goes on there."""
        key = CallKey(new_key()) if self._idempotent == BY_KEY else None
        return self.call_with_key(endpoint, payload, run_id=run_id, ticket=ticket, key=key)

    def call_with_key(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None,
        ticket: Ticket | None,
        key: CallKey | None,
    ) -> Any:
        """`call`, with a key by which a server of Chainrule knows a call that is repeated."""
        facts = {"server.address": str(self._pool.origin), "chainrule.endpoint": endpoint}
        with span(f"call {endpoint}", kind="CLIENT", attributes=facts):
            return self._call(endpoint, payload, run_id, ticket or Ticket(), key)

    def _call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        run_id: str | None,
        ticket: Ticket,
        key: CallKey | None,
    ) -> Any:
        with self._devices.exchanging(payload) as message:
            return self._call_with(message, endpoint, payload, run_id, ticket, key)

    def _call_with(
        self,
        message: Message | None,
        endpoint: str,
        payload: Mapping[str, Any],
        run_id: str | None,
        ticket: Ticket,
        key: CallKey | None,
    ) -> Any:
        """`_call` with the message that has its arrays on a GPU, if there are any."""
        dialect = self._agree()
        if run_id is not None and dialect.is_native:
            Run.check_id(run_id)
        path = f"{self._base}/{quote(endpoint)}"
        headers = {**self._headers, **_trace_headers(), "Content-Type": dialect.content_type}
        accept = dialect.accept
        read: Callable[[Answer, Limits], Any] = read_answer
        if message is not None:
            accept, read = message.accept(accept), message.read
            headers["Tesseract-Exports-Done"] = message.done
        if accept is not None:
            headers["Accept"] = accept
        target = path if run_id is None else f"{path}?run_id={quote(run_id, safe='')}"

        sent = on_host(payload) if message is None else message.payload
        pieces = as_body(sent, dialect.body_format)

        def ask(known: Mapping[str, str]) -> Any:
            def send(pieces: list[Any], more: Mapping[str, str]) -> Answer:
                named = {**headers, **known, **more}
                request = Request("POST", target, named, pieces, self._max_answer_bytes)
                return self._exchange(request, ticket)

            # Through shared memory, inputs are there sooner than they are known again. A call with a key may
            # be answered by another server, as a job.
            is_near = message is not None or (self._memory is not None and self._memory.is_in_use)
            if key is not None or is_near or not dialect.is_native:
                return read(send(pieces, {}), self._limits)
            return self._passes.call(endpoint, sent, pieces, send)

        return self._as_known(ask, key if dialect.is_native else None)

    def device_library(self) -> DeviceLibrary | None:
        """What holds arrays on the GPU of the server, if it is of this host."""
        return self._devices.library()

    @cached_property
    def _devices(self) -> DeviceLinks:
        def check(pieces: list[Any]) -> Answer:
            headers = {**self._headers, "Content-Type": "application/json"}
            path = f"{self._base}/{CHECK_ENDPOINT}"
            return self._exchange(Request("POST", path, headers, pieces), Ticket())

        is_offered = self._share_memory and offers_device_memory(self.describe())
        is_native = self._agree().is_native
        return DeviceLinks(self.place, check if is_offered else None, is_native=is_native)

    def _as_known(self, ask: Callable[[Mapping[str, str]], T], key: CallKey | None) -> T:
        """What `ask` gives with the headers that name what is known here: the component's version, the jobs.

        A server with another version, or other jobs, refuses the call before anything has run. If its callers
        need not care, it gets it once more.

        Raises:
            TransportError: the component has another interface now (`schema_changed`).
        """
        try:
            return ask(self._known(key))
        except TransportError as error:
            if error.code not in CHANGED or self._is_one_of_many:
                raise
        before, after = self.describe(), self._read_document()
        changes = [change for change in compare_interfaces(before, after) if change.breaks]
        if changes:
            raise TransportError(
                f"The component at {self.place} has another interface than when this handle was made: "
                f"{shown_changes(changes)}. Make a new handle.",
                code="schema_changed",
            )
        self._document = after
        return ask(self._known(key))

    def _known(self, key: CallKey | None) -> dict[str, str]:
        known = {"Chainrule-Content-Hash": self.describe()["info"].get("x-content-hash")}
        if key is not None:
            known |= {"Idempotency-Key": key.text, _STORE_HEADER: key.store or self._job_store}
        return {name: value for name, value in known.items() if value is not None}

    def submit(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job | None:
        """Have the server take a call on as a job; `None` when it is not one of Chainrule."""
        key = CallKey(idempotency_key or new_key())
        info = self.take_on(endpoint, payload, run_id=run_id, key=key)
        return None if info is None else self._job(info)

    def take_on(
        self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None, key: CallKey
    ) -> JobInfo | None:
        """Have the server take a call on as a job; `None` when it is not one of Chainrule.

        Args:
            endpoint: its name.
            payload: the whole request.
            run_id: the id by which files of this call are known.
            key: makes it safe to send the request again when the connection breaks.
        """
        dialect = self._agree()
        if not dialect.is_native:
            return None
        headers = {**self._headers, **_trace_headers(), "Content-Type": dialect.content_type}
        query = {"wait": "false"}
        if self._idempotent is True:
            query["idempotent"] = "true"
        if run_id is not None:
            query["run_id"] = Run.check_id(run_id)
        target = f"{self._base}/{quote(endpoint)}?{urlencode(query)}"
        pieces, ticket = as_body(on_host(payload), dialect.body_format), Ticket()

        def ask(known: Mapping[str, str]) -> JobInfo:
            request = Request("POST", target, {**headers, **known}, pieces)
            may_repeat = self._is_known_again(request)
            answer = self._repeat(partial(self._pool.exchange, request, ticket), may_repeat, ticket)
            if answer.status != HTTPStatus.ACCEPTED:
                read_answer(answer)
            return JobInfo.from_json(orjson.loads(bytes(answer.body)))

        return self._as_known(ask, key)

    def job(self, job_id: str) -> Job:
        """A job that the server has taken on before."""
        return self._job(self.server.job(job_id))

    def _job(self, info: JobInfo) -> Job:
        return ServerJob(self.server, info, self._agree().accept)

    @cached_property
    def server(self) -> Server:
        """The server itself: how it is, and its jobs."""
        return Server(
            self._pool,
            self._server_base,
            self._headers,
            lambda request: self._exchange(request, Ticket()),
            self._max_answer_bytes,
        )

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()
        if self._memory is not None:
            self._memory.close()
        if "_devices" in vars(self):
            self._devices.close()

    def _agree(self) -> Dialect:
        """Find out, once, what the server speaks and whether memory can be shared."""
        if self._dialect is not None:
            return self._dialect
        with self._agreement:  # one agreement for all threads that use a fresh handle
            if self._dialect is None:
                dialect = dialect_of(self.describe())
                if dialect.is_native and self._share_memory and is_supported():
                    self._memory = SharedMemory(self._offer)
                self._dialect = dialect
        return self._dialect

    def _offer(self) -> Answer:
        request = Request("GET", f"{self._server_base}/same-host", self._headers)
        return self._exchange(request, Ticket())

    def _get(self, path: str, deadline: Deadline | None = None) -> dict[str, Any]:
        """What a path below the component's answers; asked for once where there is a deadline."""
        request = Request("GET", self._base + path, self._headers)
        if deadline is None:
            answer = self._exchange(request, Ticket())
        else:
            answer = self._pool.exchange(request, Ticket(), deadline)
        if answer.status != HTTPStatus.OK:
            read_answer(answer)
        try:
            content = orjson.loads(bytes(answer.body))
        except ValueError:
            content = None
        return content if isinstance(content, dict) else {}

    def _exchange(self, request: Request, ticket: Ticket) -> Answer:
        is_keyed = "Idempotency-Key" in request.headers
        may_repeat = request.method != "POST" or self._is_known_again(request)

        def once(deadline: Deadline) -> Answer:
            def send(request: Request) -> Answer:
                return self._pool.exchange(request, ticket, deadline)

            # What is asked for is small, and the offer of shared memory itself is asked for here. The body of
            # a call with a key outlives its connection.
            if self._memory is None or request.method != "POST" or is_keyed:
                return send(request)
            return self._memory.exchange(request, send)

        return self._repeat(once, may_repeat, ticket)

    def _is_known_again(self, request: Request) -> bool:
        """Whether the server knows a call that it is sent again; of several, the caller chooses one."""
        return _STORE_HEADER in request.headers and not self._is_one_of_many

    def _repeat(
        self, once: Callable[[Deadline], Answer], may_repeat: bool, ticket: Ticket
    ) -> Answer:
        """Make an exchange, and again where that is safe: nothing was run, or calls may run twice.

        All attempts together have one deadline. Only a call that the server turned away, and whose caller is
        patient, has the whole time once more: nothing of it has begun.
        """
        may_repeat = may_repeat or self._idempotent is True
        pause_s = _FIRST_PAUSE_S
        attempts_left, since = self._retries, None
        may_have_run: LostConnectionError | None = None
        deadline = Deadline(self._timeout_s)
        while True:
            wait_s = pause_s
            try:
                answer = once(deadline)
            except LostConnectionError as error:
                # A request that did not leave as a whole has not run: the server refuses a body that ends
                # early. One that left may have run, and is repeated only if its caller said so, or if a key
                # lets the server tell the two apart.
                is_safe = not error.was_sent or may_repeat
                # Over all attempts, and told to the caller: of two attempts, the first of which was sent, the
                # second may fail to connect, and the call may have run all the same.
                if error.was_sent:
                    may_have_run = may_have_run or error
                error.was_sent = may_have_run is not None
                if self._is_one_of_many and not may_have_run:
                    raise
                is_late = not deadline.allows(pause_s)
                if not attempts_left or not is_safe or is_late or ticket.is_cancelled:
                    raise
            else:
                is_changed = answer.status == HTTPStatus.PRECONDITION_FAILED
                if may_have_run and is_changed and self._idempotent is not True:
                    # Another server is in the place of the one that may have run the call.
                    raise may_have_run
                if not answer.was_turned_away or ticket.is_cancelled:
                    return answer
                if self._is_one_of_many and not may_have_run:
                    return answer
                since = since or time.monotonic()
                if not attempts_left and time.monotonic() - since >= ticket.patience_s:
                    return answer
                # Callers that were turned away at the same time should not come back at the same time.
                wait_s = max(pause_s, answer.retry_after_s or 0.0) * random.uniform(1.0, 1.5)
                if ticket.patience_s:
                    deadline = Deadline(self._timeout_s)
                elif not deadline.allows(min(wait_s, _MAX_PAUSE_S)):
                    return answer
            ticket.pause(min(wait_s, _MAX_PAUSE_S))
            attempts_left = max(0, attempts_left - 1)
            pause_s *= 2


def new_key() -> str:
    """An `Idempotency-Key` for one call."""
    return secrets.token_hex(16)


CHANGED = frozenset(("component_changed", "job_store_other"))
"""What a server answers that is not the one that was asked before: nothing has run."""


def check_idempotent(value: Idempotent) -> None:
    """Check what is said of repeated calls.

    Raises:
        InputError: it is neither true, false nor `"key"` (`bad_option`).
    """
    if not isinstance(value, bool) and value != BY_KEY:
        raise InputError(
            f'idempotent is True, False or "{BY_KEY}"; found {value!r}.', code="bad_option"
        )


def _trace_headers() -> dict[str, str]:
    traceparent = current_traceparent()
    return {} if traceparent is None else {"traceparent": traceparent}
