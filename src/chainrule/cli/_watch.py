"""`chainrule top` and `chainrule dashboard`: what servers do at this moment.

`top` draws one server in the terminal. `dashboard` serves a page on this machine and asks the servers
itself, so that tokens do not reach the browser and the servers need no CORS.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from chainrule._errors import ChainruleError, InputError
from chainrule.cli._jobs import jobs_table
from chainrule.cli._output import make_table, show, write_error, write_text
from chainrule.cli._sources import add_server, open_server
from chainrule.client.internal import Server
from chainrule.runtime.internal import Document

if TYPE_CHECKING:  # of the extra `serve`, which only the dashboard needs
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_HOST = "127.0.0.1"
_JOBS = 12
_KEPT = 50  # observations in a line of blocks


def add_top_arguments(parser: ArgumentParser) -> None:
    """The server, and how often to look."""
    add_server(parser)
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="Draw again after this many seconds",
    )
    parser.add_argument("--once", action="store_true", help="Draw once and end")
    parser.set_defaults(handler=_top)


def _top(options: Namespace) -> int:
    """Show load, queue, latency, workers and jobs until `q`; once where the output is not a terminal."""
    server = open_server(options)
    if options.json:
        write_text(json.dumps(server.status()) + "\n")
    elif options.once or not _can_be_redrawn():
        show(_view(options.url, server.status(), server))
    else:
        _watch(options, server)
    return 0


def _can_be_redrawn() -> bool:
    """Whether standard output is a terminal that can show one view after the other in one place."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return os.environ.get("TERM") not in ("dumb", "unknown")


def _watch(options: Namespace, server: Server) -> None:
    from rich.console import Console
    from rich.live import Live

    history: deque[Mapping[str, Any]] = deque(maxlen=_KEPT)

    def view() -> Any:
        history.append(server.status())
        return _view(options.url, history[-1], server, history)

    screen = Live(view(), console=Console(), screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _single_keys(), screen as live:
        while not _asked_to_end(options.every):
            live.update(view(), refresh=True)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Let keys of a terminal arrive at once, and not be shown."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _asked_to_end(seconds: float) -> bool:
    """Wait for some seconds, or until `q` is pressed."""
    if not sys.stdin.isatty():
        sleep(seconds)
        return False
    until = monotonic() + seconds
    while select.select([sys.stdin], [], [], max(0.0, until - monotonic()))[0]:
        if os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b"\x1b", b""):
            return True
    return False


def _view(
    url: str, status: Mapping[str, Any], server: Server, history: Sequence[Mapping[str, Any]] = ()
) -> Any:
    """What `top` shows; with the states before, where it is drawn again and again."""
    from rich.console import Group
    from rich.text import Text

    return Group(  # a small screen cuts the end: the oldest jobs
        *([Text("q ends this", style="dim")] if history else []),
        _headline(url, status, history),
        _workers(status["workers"]),
        jobs_table("jobs", server.jobs(limit=_JOBS)),
    )


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """A line of blocks, from zero to the largest of the values."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(
        " " if value is None else _BLOCKS[min(7, int(8 * value / top))] for value in values
    )


def _headline(url: str, status: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Any:
    requests, queue, latency = status["requests"], status["queue"], status["latency_s"]
    names = ", ".join(Document.full_name(c["name"], c["version"]) for c in status["components"])
    times = ", ".join(f"{name} {_milliseconds(value)}" for name, value in latency.items())
    jobs = ", ".join(f"{count} {state}" for state, count in status["jobs"].items() if count)
    rows = (
        ("components", names),
        ("up", f"{status['uptime_s']:.0f} s, Chainrule {status['version']}"),
        (
            "requests",
            f"{requests['per_second']:.1f}/s, {requests['in_flight']} in flight, "
            f"{requests['total']} in all, {requests['errors']} failed",
        ),
        *_lately("requests", [each["requests"]["per_second"] for each in history]),
        ("queue", f"{queue['length']} of {queue['limit']}"),
        *_lately("queue", [each["queue"]["length"] for each in history]),
        ("latency", times),
        *_lately("p50", [each["latency_s"].get("p50") for each in history]),
        ("jobs", jobs or "none"),
    )
    return make_table(url, ("", ""), rows)


def _lately(name: str, values: Sequence[float | None]) -> list[tuple[str, str]]:
    """A row with the last values as a line of blocks, where there are several."""
    return [(f"  {name} lately", sparkline(values))] if len(values) > 1 else []


def _workers(workers: Sequence[Mapping[str, Any]]) -> Any:
    columns = ("worker", "component", "pid", "state", "restarts")
    rows = [
        (str(w["id"]), w["component"], str(w["pid"] or ""), w["state"], str(w["restarts"]))
        for w in workers
    ]
    return make_table("workers", columns, rows)


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g} ms"


def add_dashboard_arguments(parser: ArgumentParser) -> None:
    """The servers, their tokens, and where the page is."""
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="URLs of the servers, such as http://localhost:8000"
    )
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="[URL=]FILE",
        help="Token for one server, or for all without a file of their own; repeat for more "
        "(default: no tokens)",
    )
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="Port of the page; 0 takes a free one"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="Show a server as unreachable after this many seconds",
    )
    parser.set_defaults(handler=_dashboard)


def _dashboard(options: Namespace) -> int:
    """Serve the page on this machine until Ctrl-C."""
    files = _token_files(options.urls, options.token_file)
    servers = {url: _server(url, files[url], options.timeout) for url in options.urls}
    announce = _announce_json if options.json else _announce
    _serve(servers, port=options.port, on_ready=announce)
    return 0


def _server(url: str, token_file: Path | None, timeout: float) -> Server:
    return open_server(Namespace(url=url, token_file=token_file), timeout_s=timeout)


def _token_files(urls: Sequence[str], given: Sequence[str]) -> dict[str, Path | None]:
    """Which file has the token of which server.

    Raises:
        InputError: a token is given for a server that is not on the list (`bad_option`).
    """
    own: dict[str, Path] = {}
    for_all: Path | None = None
    for entry in given:
        url, _, file = entry.rpartition("=")
        if not url:
            for_all = Path(file)
        elif url in urls:
            own[url] = Path(file)
        else:
            raise InputError(
                f"--token-file names {url}, which is not one of the servers: {', '.join(urls)}.",
                code="bad_option",
            )
    return {url: own.get(url, for_all) for url in urls}


def _announce(url: str) -> None:
    write_error(f"Dashboard at {url} (Ctrl-C stops it)\n")


def _announce_json(url: str) -> None:
    write_text(json.dumps({"url": url}) + "\n")


def _serve(servers: Mapping[str, Server], *, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the dashboard on loopback until a signal.

    Args:
        servers: address → server.
        port: where to listen; 0 picks a free one.
        on_ready: called with the page's address.

    Raises:
        TransportError: the port is taken (`address_in_use`), or not allowed (`bad_address`).
    """
    import uvicorn

    with _listen(port) as listener:
        on_ready(f"http://{_HOST}:{listener.getsockname()[1]}")
        config = uvicorn.Config(
            _app(servers), log_level="warning", use_colors=False, server_header=False
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    from chainrule.serve.internal import no_address

    # `create_server` leaves its socket open when the port is out of range.
    if port not in range(65536):
        raise no_address(_HOST, port, ValueError("a port is a number from 0 to 65535"))
    try:
        return socket.create_server((_HOST, port))
    except OSError as error:
        raise no_address(_HOST, port, error) from error


def _app(servers: Mapping[str, Server]) -> Starlette:
    """The page, its parts, and what the servers say at this moment."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from chainrule.serve.internal import static_file

    async def page(request: Request) -> Response:
        return static_file("dashboard.html")

    async def part(request: Request) -> Response:
        return static_file(request.path_params["name"])

    async def ask_all(request: Request) -> Response:
        answers = await asyncio.gather(
            *(asyncio.to_thread(_ask, url, server) for url, server in servers.items())
        )
        return JSONResponse({"servers": answers}, headers={"Cache-Control": "no-store"})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/_page/{name}", part),
            Route("/servers", ask_all),
        ],
        # Otherwise a page of another site could read this by giving its own name the address 127.0.0.1.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])],
    )


def _ask(url: str, server: Server) -> dict[str, Any]:
    began = perf_counter()
    try:
        status = server.status()
    except ChainruleError as error:
        problem = {"code": error.code, "message": error.message}
        return {"url": url, "status": None, "error": problem, "round_trip_s": None}
    seconds = perf_counter() - began
    return {"url": url, "status": status, "error": None, "round_trip_s": seconds}
