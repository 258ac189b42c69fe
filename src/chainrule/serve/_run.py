"""`serve`: an application on uvicorn, from start to an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from chainrule._errors import InputError, TransportError
from chainrule.runtime import ComponentConfig
from chainrule.serve._app import MakePool, Server
from chainrule.serve._connections import (
    Connection,
    ConnectionLimit,
    RequestLimit,
    TlsHandshake,
    enough_descriptors,
)
from chainrule.serve._options import ServeOptions
from chainrule.serve._security import LocalCallers
from chainrule.serve._watched_files import WatchedFiles

_log = logging.getLogger(__name__)


def serve(
    components: Any,
    *,
    config: ComponentConfig | None = None,
    on_ready: Callable[[str], None] | None = None,
    make_pool: MakePool | None = None,
    **settings: Any,
) -> None:
    """Serve components over HTTP until SIGTERM or SIGINT.

    Args:
        components: one source or several, see `create_app`.
        config: settings of every component.
        on_ready: called with the URL once the server answers.
        make_pool: what answers calls, in place of worker processes; see `chainrule.deploy.ray.engine`.
        **settings: the fields of `ServeOptions`: `host`, `port`, `workers`, `timeout_s`, ….

    Raises:
        ChainruleError: the settings are unsafe, a component cannot be loaded, or the address is taken.
    """
    options = ServeOptions(**settings)
    server = Server(components, options=options, config=config, make_pool=make_pool)
    _keep_freed_memory()
    with enough_descriptors(options.max_connections) as max_connections:
        _run(server, _Runner(server, options, ConnectionLimit(max_connections), on_ready))


# Of `mallopt`, as in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of a body for the next one.

    Bodies come in pieces of up to 256 KiB. glibc gives memory of that size back to the system as soon as it
    is free, and the system clears it again for the next piece: that was two thirds of the processor time of
    a request with 8 MB. What users have set themselves (GLIBC_TUNABLES) stays.
    """
    if "GLIBC_TUNABLES" in os.environ:
        return
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        mallopt(_M_TRIM_THRESHOLD, 16 << 20)


def _run(server: Server, runner: _Runner) -> None:
    try:
        with _reasons_kept(server) as reasons:
            runner.run()
    except SystemExit:  # how uvicorn ends when it could not start; the reasons are raised below
        if runner.started:
            raise
    except KeyboardInterrupt:  # by which uvicorn says, after everything is stopped, what stopped it
        if not runner.should_exit:
            raise
    if runner.was_stopped_while_starting:
        return
    if server.startup_error is not None:
        raise server.startup_error
    if not runner.started:
        reason = reasons[0] if reasons else OSError(errno.EADDRINUSE, "")
        raise no_address(runner.config.host, runner.config.port, reason)


@contextlib.contextmanager
def _reasons_kept(server: Server) -> Iterator[list[OSError]]:
    """What keeps a server from starting is raised by `serve`; uvicorn would print it too."""
    reasons: list[OSError] = []

    def is_news(record: logging.LogRecord) -> bool:
        if isinstance(record.msg, OSError):
            reasons.append(record.msg)
            return False
        return server.startup_error is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(is_news)
    try:
        yield reasons
    finally:
        log.removeFilter(is_news)


def no_address(host: str, port: int, reason: Exception) -> TransportError:
    """The error of a server that cannot listen where it was told to."""
    number = getattr(reason, "errno", None) or 0
    is_taken = number == errno.EADDRINUSE
    # Negative numbers are those of name servers; an OverflowError (port 70000) has none.
    why = os.strerror(number) if number > 0 else getattr(reason, "strerror", None) or str(reason)
    help = " Another server listens there; --port 0 picks a free one." if is_taken else ""
    return TransportError(
        f"Cannot listen on {host}:{port}: {why}.{help}",
        code="address_in_use" if is_taken else "bad_address",
    )


class _Tls:
    """Certificate and key of a server, which may be replaced while it runs.

    Args:
        certificate: file with the certificate, and those that signed it.
        key: file with the key; `None` where it is in the same file.

    Attributes:
        context: for the next connection.
        files: as they are watched.

    Raises:
        InputError: they cannot be used (`bad_option`).
    """

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate, self._key = certificate, key
        files = [certificate] if key is None else [certificate, key]
        self.files = WatchedFiles("TLS", files, self._load)

    def _load(self) -> None:
        # A new context: one that has read half of what belongs together could not be used any more.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            raise InputError(
                f"The TLS certificate and key cannot be used: {error.strerror or error}.",
                code="bad_option",
            ) from error
        self.context = context


class _Runner(uvicorn.Server):
    def __init__(
        self,
        server: Server,
        options: ServeOptions,
        connection_limit: ConnectionLimit,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        tls = None
        if options.tls_certificate is not None:
            tls = _Tls(options.tls_certificate, options.tls_key)
            server.watched.append(tls.files)
        make_http = partial(Connection, options.read_timeout_s, connection_limit)

        def make_https(**state: Any) -> TlsHandshake:
            # uvicorn knows nothing of TLS: connections count from the moment they are accepted.
            assert tls is not None
            return TlsHandshake(make_http(**state), tls.context)

        app = server.app
        if options.token_file is None and not options.insecure:
            app = LocalCallers(app)
        config = uvicorn.Config(
            RequestLimit(app, connection_limit),
            host=options.host,
            port=options.port,
            http=make_http if tls is None else make_https,  # type: ignore[arg-type]  # called like a class
            ws="none",
            loop="auto",
            lifespan="on",
            access_log=False,
            log_level="warning",
            use_colors=False,  # otherwise it asks standard output, which may be closed
            # As many as are accepted in one turn of the event loop, which others wait for.
            backlog=256,
            timeout_keep_alive=60,
            # Our own drain comes first; this is for callers that do not read their answers.
            timeout_graceful_shutdown=int(options.grace_s) + 5,
            server_header=False,
            proxy_headers=False,  # nothing here depends on who called
        )
        super().__init__(config)
        self._connection_limit = connection_limit
        self._server = server
        self._options = options
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def was_stopped_while_starting(self) -> bool:
        """Whether a signal came before the components were loaded."""
        return self.should_exit and isinstance(self._server.startup_error, asyncio.CancelledError)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's; SIGHUP (a closed terminal) stops the server in the same way, unless it is ignored."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            with super().capture_signals():
                yield
            return
        signal.signal(signal.SIGHUP, self._handle_hangup)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def _handle_hangup(self, _: int, frame: FrameType | None) -> None:
        self.handle_exit(signal.SIGTERM, frame)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; what is still being loaded is not waited for.

        With a delay the first SIGTERM is only announced (`/ready`), and takes effect when the delay is over.
        """
        loop, delay_s = self._loop, self._options.drain_delay_s
        is_first = not self._server.is_draining and not self.should_exit
        if loop is not None and self.started and sig == signal.SIGTERM and delay_s and is_first:
            self._server.is_draining = True
            loop.call_soon_threadsafe(
                loop.call_later, delay_s, partial(super().handle_exit, sig, frame)
            )
            return
        super().handle_exit(sig, frame)
        if self._loop is not None and not self.started:
            self._loop.call_soon_threadsafe(self._server.give_up_starting)

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            try:
                self._on_ready(self._url())
            except Exception as error:  # raised after an orderly stop
                self._server.startup_error = error
                self.should_exit = True

    def _url(self) -> str:
        scheme = "https" if self._options.tls_certificate else "http"
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"{scheme}://{host}:{port}"

    async def shutdown(self, sockets: Any = None) -> None:
        # uvicorn closes its sockets and waits for the requests under way, which end only because the pools
        # drain at the same time: without that, callers in a queue would be waited for as long as they like.
        drain = asyncio.create_task(self._server.drain())
        self._connection_limit.end_handshakes()
        await super().shutdown(sockets)
        if not self.force_exit:
            await drain
            return
        # A second Ctrl-C. uvicorn leaves out the end of the lifespan then, and would report its task.
        drain.cancel()
        await self._server.stop()
        await self.lifespan.shutdown()


# A process that author code forks here (`workers=0`) has the server's handlers: SIGTERM would not end it, and
# `multiprocessing`, which ends its processes in this way and waits for them, would wait for good. So a child
# begins with the system's handlers. A signal that comes before it has them would be lost: it is held back.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_held = threading.local()


def _hold_signals() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _handle_no_signals() -> None:
    for number in _SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), _Runner):
            signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
    _release_signals()


os.register_at_fork(
    before=_hold_signals, after_in_parent=_release_signals, after_in_child=_handle_no_signals
)
