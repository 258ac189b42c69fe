"""HTTP/1.1 over plain sockets: one exchange at a time per connection, connections kept for the next.

The standard library parses responses; requests are written here, headers and body in one system call, and
bodies are received into fresh memory without another copy. What matters to a caller whose connection breaks
is whether the whole request had left: `LostConnectionError.was_sent` says so.

A server may be broken, or hostile. An exchange has a deadline, which no byte that arrives extends, and an
answer has a largest size, which is checked before anything is allocated for it. The caller's URL and token
are checked before anything is sent.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from os import PathLike
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np

from chainrule._errors import InputError, TransportError
from chainrule._tokens import read_token_file
from chainrule._visible import visible
from chainrule.client._bodies import Answer
from chainrule.client._transport import Ticket

_log = logging.getLogger(__name__)

# Servers close idle connections after five seconds or more; a younger one is most likely still open.
_MAX_IDLE_S = 4.0
_MAX_IDLE = 32
_MAX_PIECES = 512
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 1 << 20


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)

MAX_DOCUMENT_BYTES = 64 << 20
"""Of an answer that says something about the server: its document, its health, its jobs."""

MAX_ANSWER_BYTES = 4 << 30
"""Of one answer, unless a caller says otherwise: as much as a server takes of all requests together."""


class LostConnectionError(TransportError):
    """The connection could not be made, or broke.

    Attributes:
        was_sent: whether the whole request had left, so that the component may have run.
    """

    def __init__(self, message: str, *, was_sent: bool, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.was_sent = was_sent


class Deadline:
    """When an exchange has to be over; it begins when this is made.

    Args:
        timeout_s: how long the whole of it may take; `None` for no limit.
        quiet_s: how long any one wait may last, in addition.
    """

    def __init__(self, timeout_s: float | None, *, quiet_s: float | None = None) -> None:
        self.timeout_s = quiet_s if timeout_s is None else timeout_s
        self._at = None if timeout_s is None else time.monotonic() + timeout_s
        self._quiet_s = quiet_s

    def seconds_left(self) -> float | None:
        """How long the next wait may last; `None` for no limit.

        Raises:
            TimeoutError: no time is left.
        """
        if self._at is None:
            return self._quiet_s
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is up")
        return left if self._quiet_s is None else min(left, self._quiet_s)

    def allows(self, seconds: float) -> bool:
        """Whether time is left after a pause."""
        return self._at is None or time.monotonic() + seconds < self._at

    def limit(self, connection: socket.socket) -> None:
        """Let the next wait of a connection end with the deadline."""
        left = self.seconds_left()
        if connection.gettimeout() != left:
            connection.settimeout(left)


@dataclass(frozen=True)
class Origin:
    """Where a server listens.

    Attributes:
        host: name or address; what is asked for in `Host`, and what its certificate has to name.
        port: number.
        tls: settings of an encrypted connection, or `None` for a plain one.
        address: what to connect to, where the name stands for several servers.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    address: str | None = None

    @property
    def authority(self) -> str:
        """Name and port, as a URL has them."""
        return _with_port(self.host, self.port)

    def __str__(self) -> str:
        if self.address is None:
            return self.authority
        return f"{self.authority} at {_with_port(self.address, self.port)}"


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        method: `GET` or `POST`.
        target: path and query.
        headers: names and values.
        pieces: buffers which, one after the other, are the body.
        max_bytes: of the body of the answer.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    pieces: Sequence[Any] = ()
    max_bytes: int = MAX_DOCUMENT_BYTES

    @property
    def nbytes(self) -> int:
        """Size of the body."""
        return sum(memoryview(piece).nbytes for piece in self.pieces)

    def head(self) -> bytes:
        """The request line and headers as bytes."""
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.method == "POST":
            lines.append(f"Content-Length: {self.nbytes}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class IdleConnections(Generic[T]):
    """Connections that no call uses at present. Safe between threads, and after a fork.

    They are closed with this object.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: list[T] = []
        # No connection is used while it is held, so no call waits here for the network.
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> T | None:
        """The one that was used last, if there is any."""
        with self._lock:
            if self._pid != os.getpid():
                # After a fork the connections belong to the parent: two readers would mix answers up.
                self._pid = os.getpid()
                _close_all(self._idle)
            return self._idle.pop() if self._idle else None

    def keep(self, connection: T) -> None:
        """Keep one for the next call, or close it if there are enough."""
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            _close_all(self._idle)


def _close_all(idle: list[Any]) -> None:
    while idle:
        idle.pop().close()


class _IdleSocket(NamedTuple):
    since: float
    connection: socket.socket

    def close(self) -> None:
        self.connection.close()


class Credentials:
    """The token that a server asks for, if it asks for one. Safe between threads.

    Args:
        token: the token itself.
        file: a file with it, in its place; it is read again when the server refuses what it held.

    Raises:
        InputError: no header can carry the token (`bad_token`), the file cannot be used (`bad_token_file`),
            or both are given (`bad_option`).
    """

    def __init__(self, token: str | None = None, file: str | PathLike[str] | None = None) -> None:
        if token is not None and file is not None:
            raise InputError("Pass token or token_file, not both.", code="bad_option")
        self._file = None if file is None else Path(file)
        self._token = None if token is None else checked_token(token)
        if self._file is not None:
            self._token = _token_in(self._file)

    def sign(self, request: Request) -> Request:
        """The request with the token."""
        if self._token is None:
            return request
        headers = {**request.headers, "Authorization": f"Bearer {self._token}"}
        return replace(request, headers=headers)

    def is_new_after(self, refused: Request) -> bool:
        """Whether there is another token than the one that was refused; the file is read for it."""
        if self._file is None:
            return False
        try:
            self._token = _token_in(self._file)
        except InputError as error:  # it is being replaced: the server's answer stands
            _log.warning("%s", error.message)
            return False
        return refused.headers["Authorization"] != f"Bearer {self._token}"


def _token_in(file: Path) -> str:
    # Servers of others may have shorter tokens than ours.
    return read_token_file(file, min_length=1)[0].tokens[0].decode()


class ConnectionPool:
    """Connections to one server, opened as they are needed. Safe between threads.

    Args:
        origin: where the server listens.
        credentials: sent with every request.
    """

    def __init__(self, origin: Origin, credentials: Credentials | None = None) -> None:
        self.origin = origin
        self._credentials = credentials or Credentials()
        self._idle: IdleConnections[_IdleSocket] = IdleConnections()
        self._has_answered = False

    def exchange(self, request: Request, ticket: Ticket, deadline: Deadline) -> Answer:
        """Send a request and receive its answer; once more where the token was changed meanwhile.

        A request that was refused for its token has not run.

        Raises:
            LostConnectionError: the connection could not be made (`unreachable`), broke
                (`connection_lost`), or the answer was not complete in time (`timeout`).
            TransportError: the server redirects (`redirected`), or more than it may
                (`answer_too_large`).
        """
        signed = self._credentials.sign(request)
        answer = self._exchange(signed, ticket, deadline)
        if answer.status == HTTPStatus.UNAUTHORIZED and self._credentials.is_new_after(signed):
            return self._exchange(self._credentials.sign(request), ticket, deadline)
        return answer

    def _exchange(self, request: Request, ticket: Ticket, deadline: Deadline) -> Answer:
        connection = self._take(deadline)
        # Another thread may call this at any time until the `finally`. It shuts the connection down, which
        # ends the wait of this thread, and does not close it: the number could belong to another file by
        # then.
        ticket.when_cancelled(lambda: _abort(connection))
        keep = False
        try:
            self._send(connection, request, deadline)
            answer, keep = self._receive(connection, request, deadline)
            return answer
        finally:
            ticket.when_cancelled(None)
            if keep:
                self._idle.keep(_IdleSocket(time.monotonic(), connection))
            else:
                connection.close()

    @contextlib.contextmanager
    def stream(self, request: Request, deadline: Deadline) -> Iterator[HTTPResponse]:
        """Send a request, and read its answer as it comes, on a connection of its own.

        Raises:
            LostConnectionError: as `exchange` does, also while the block reads.
        """
        signed = self._credentials.sign(request)
        with self._stream(signed, deadline) as response:
            is_refused = response.status == HTTPStatus.UNAUTHORIZED
            if not (is_refused and self._credentials.is_new_after(signed)):
                yield response
                return
        with self._stream(self._credentials.sign(request), deadline) as response:
            yield response

    @contextlib.contextmanager
    def _stream(self, request: Request, deadline: Deadline) -> Iterator[HTTPResponse]:
        connection = self._connect(deadline)
        with contextlib.closing(connection):
            self._send(connection, request, deadline)
            with self._losses(deadline):
                response = HTTPResponse(_Reading(connection, deadline))  # type: ignore[arg-type]
                with contextlib.closing(response):
                    response.begin()
                    yield response

    def close(self) -> None:
        """Close the connections that no call uses."""
        self._idle.close()

    def _take(self, deadline: Deadline) -> socket.socket:
        while (idle := self._idle.take()) is not None:
            since, connection = idle
            # Readable before anything was asked means that the server has closed it.
            # Both conditions, because a server may close at the moment in which the request leaves. The
            # shorter the idle time, the rarer that is; what is left of the race is what `was_sent` and the
            # repetition are for.
            if not _is_readable(connection, 0.0) and time.monotonic() - since < _MAX_IDLE_S:
                deadline.limit(connection)
                return connection
            connection.close()
        return self._connect(deadline)

    def _connect(self, deadline: Deadline) -> socket.socket:
        origin = self.origin
        try:
            address = (origin.address or origin.host, origin.port)
            connection = socket.create_connection(address, deadline.seconds_left())
            # A large request leaves in several system calls. With Nagle's algorithm the last, short packet
            # would wait for the acknowledgement of those before, which the server delays by up to 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.tls is not None:
                # The name in the URL is what the certificate has to have, also where `address` says which of
                # several servers.
                connection = origin.tls.wrap_socket(connection, server_hostname=origin.host)
        except ssl.SSLCertVerificationError as error:
            raise LostConnectionError(
                f"The certificate of {origin} is not trusted ({error.verify_message}). Name a file with the "
                "authorities to trust: verify=FILE, or the variable SSL_CERT_FILE.",
                was_sent=False,
                code="unreachable",
            ) from error
        except ssl.SSLError as error:
            raise LostConnectionError(
                f"{origin} does not answer as a server with TLS does ({error.reason}). Does it speak http:// "
                "there?",
                was_sent=False,
                code="unreachable",
            ) from error
        except (OSError, UnicodeError) as error:  # the latter for a name that no server can have
            raise LostConnectionError(
                f"Cannot connect to {origin}: {error}. Is the component being served there?",
                was_sent=False,
                code="unreachable",
            ) from error
        return connection

    def _send(self, connection: socket.socket, request: Request, deadline: Deadline) -> None:
        try:
            _send_all(connection, [request.head(), *request.pieces], deadline)
        except TimeoutError as error:
            raise self._timed_out(deadline, was_sent=False) from error
        except OSError as error:
            # A server that refuses a long body answers and closes without reading on: sending then fails with
            # EPIPE or ECONNRESET, while the answer that says why lies in the receive buffer.
            if _has_answer(connection):  # refused before it was read to the end, with a reason
                return
            raise LostConnectionError(
                f"The connection to {self.origin} broke while the request was sent ({error}).",
                was_sent=False,
                code="connection_lost",
            ) from error

    def _receive(
        self, connection: socket.socket, request: Request, deadline: Deadline
    ) -> tuple[Answer, bool]:
        reading: Any = _Reading(connection, deadline)
        response = HTTPResponse(reading, method=request.method)
        with contextlib.closing(response), self._losses(deadline):
            response.begin()
            self._has_answered = True
            self._check_length(response.headers.get("content-length"))
            if response.status in _REDIRECTS:
                raise self._redirected(response.headers.get("location", "another place"))
            answer = Answer(
                response.status,
                response.headers.get("content-type", ""),
                self._read_body(response, request.max_bytes),
                _seconds(response.headers.get("retry-after")),
                response.headers.get("chainrule-memory"),
                response.headers.get("chainrule-forward-pass"),
                response.headers.get("tesseract-exports"),
            )
            # Some servers close the connection after a failure without saying so.
            return answer, not response.will_close and response.status < 500

    def _check_length(self, declared: str | None) -> None:
        """Refuse a length that is not a number: `HTTPResponse` would take all that follows for the body."""
        if declared is None or (declared.isascii() and declared.strip().isdigit()):
            return
        raise LostConnectionError(
            f"The answer of {self.origin} has a Content-Length that is not a number of bytes: "
            f"{declared[:40]!r}. Where it ends is not known.",
            was_sent=True,
            code="connection_lost",
        )

    def _read_body(self, response: HTTPResponse, max_bytes: int) -> Any:
        try:
            return _read_body(response, max_bytes)
        except _TooLargeError as error:
            raise TransportError(
                f"The answer of {self.origin} has {error}, and at most {max_bytes} are read. Pass a larger "
                "max_answer_bytes if you trust the server.",
                code="answer_too_large",
                details={"limit": max_bytes},
            ) from None

    @contextlib.contextmanager
    def _losses(self, deadline: Deadline) -> Iterator[None]:
        """While an answer is read: what it means when none comes, or only a part of it."""
        try:
            yield
        except TransportError:
            raise
        except TimeoutError as error:
            raise self._timed_out(deadline, was_sent=True) from error
        except (OSError, HTTPException) as error:
            is_unknown = self.origin.tls is None and not self._has_answered
            hint = " Does it speak https:// there?" if is_unknown else ""
            raise LostConnectionError(
                f"The connection to {self.origin} broke before the answer was complete "
                f"({type(error).__name__}).{hint}",
                was_sent=True,
                code="connection_lost",
            ) from error

    def _timed_out(self, deadline: Deadline, *, was_sent: bool) -> LostConnectionError:
        return LostConnectionError(
            f"No complete answer from {self.origin} within {deadline.timeout_s:g} s. Pass a larger timeout.",
            was_sent=was_sent,
            code="timeout",
        )

    def _redirected(self, location: str) -> TransportError:
        return TransportError(
            f"{self.origin} sends callers on to {visible(location[:200])}. Pass the URL of the component "
            "itself.",
            code="redirected",
        )


class _Reading:
    """What `HTTPResponse` takes for a socket: every read of it ends with the deadline."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_RawReading(self._connection, self._deadline))


class _RawReading(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._deadline.limit(self._connection)
        return self._connection.recv_into(buffer)


def _send_all(connection: socket.socket, pieces: list[Any], deadline: Deadline) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    can_gather = not isinstance(connection, ssl.SSLSocket)
    while views:
        deadline.limit(connection)
        if can_gather:
            # Linux takes at most 1024 pieces in one call (IOV_MAX). It may take only a part of them: what
            # follows drops the pieces that have left and cuts the one that has left in part.
            sent = connection.sendmsg(views[:_MAX_PIECES])
        else:
            sent = connection.send(views[0])
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


class _TooLargeError(Exception):
    """An answer that is larger than it may be, with its size in words."""


def _read_body(response: HTTPResponse, max_bytes: int) -> Any:
    if response.length is None:
        return _read_chunks(response, max_bytes)
    if response.length > max_bytes:
        raise _TooLargeError(f"{response.length} bytes")
    # The length was checked against `max_bytes` first: a server cannot make its caller allocate more by a
    # header.
    body = np.empty(response.length, np.uint8)
    position = 0
    while position < len(body):
        count = response.readinto(body[position:].data)
        if not count:
            raise ConnectionError("the body ended early")
        position += count
    response.read()  # marks the response as complete
    return body


def _read_chunks(response: HTTPResponse, max_bytes: int) -> bytes:
    """A body of unknown length."""
    chunks, total = [], 0
    while chunk := response.read(_CHUNK):
        total += len(chunk)
        if total > max_bytes:
            raise _TooLargeError(f"more than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _is_readable(connection: socket.socket, within_s: float) -> bool:
    poll = select.poll()  # `select.select` knows only the first 1024 descriptors of a process
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * within_s))


def _has_answer(connection: socket.socket) -> bool:
    try:
        return _is_readable(connection, 0.1) and bool(connection.recv(1, socket.MSG_PEEK))
    except (OSError, ValueError):
        return False


def _abort(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


Verify = bool | str | PathLike[str] | ssl.SSLContext
"""How certificates are checked: as the system does, not at all, by a file of authorities, or by settings."""


def parse_url(url: str, verify: Verify) -> tuple[Origin, str]:
    """Where a server listens, and the path of the component there.

    Raises:
        InputError: it is not the URL of a server (`bad_url`), or the file of authorities cannot be read
            (`bad_option`).
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except (ValueError, TypeError):
        raise _bad_url(url) from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise _bad_url(url)
    written = f"[{host}]" if ":" in host else host
    if not re.fullmatch(rf"(.*@)?{re.escape(written)}(:[0-9]*)?", parts.netloc, re.IGNORECASE):
        raise _bad_url(url)  # `[::1].example.org`, which Python takes for `::1`
    if parts.username is not None:
        raise InputError(
            "A URL with a user or password in it is not understood; pass token=….", code="bad_url"
        )
    tls = tls_settings(verify) if parts.scheme == "https" else None
    default_port = 80 if tls is None else 443
    return Origin(host, port or default_port, tls), quote(parts.path.rstrip("/"), "/%")


def _bad_url(url: object) -> InputError:
    return InputError(
        f"Expected a URL such as http://localhost:8000; found {str(url)[:200]!r}.", code="bad_url"
    )


def tls_settings(verify: Verify) -> ssl.SSLContext:
    """The settings of encrypted connections that check certificates so.

    Raises:
        InputError: the file of authorities cannot be read (`bad_option`).
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    if isinstance(verify, bool):
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, TypeError) as error:
        raise InputError(
            "verify is True, False, an SSLContext, or a PEM file of certificates to trust; found "
            f"{str(verify)[:200]!r}, which cannot be used ({error}).",
            code="bad_option",
        ) from None


def checked_token(token: str) -> str:
    """A token without the space around it.

    Raises:
        InputError: no header can carry it (`bad_token`).
    """
    token = token.strip() if isinstance(token, str) else "not a text"
    if not token.isascii() or any(character.isspace() for character in token):
        raise InputError("A token is one word of ASCII characters.", code="bad_token")
    return token
