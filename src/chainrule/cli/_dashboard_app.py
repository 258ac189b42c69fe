"""The dashboard's own small server: it asks the servers, so that tokens stay here and CORS stays out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chainrule._errors import ChainruleError
from chainrule.client.internal import Server
from chainrule.serve.internal import no_address, static_file

_HOST = "127.0.0.1"


def serve_dashboard(
    servers: Mapping[str, Server], *, port: int, on_ready: Callable[[str], None]
) -> None:
    """Serve the dashboard on loopback until a signal.

    Args:
        servers: address → server.
        port: where to listen; 0 picks a free one.
        on_ready: called with the page's address.

    Raises:
        TransportError: the port is taken (`address_in_use`), or not allowed (`bad_address`).
    """
    with _listen(port) as listener:
        on_ready(f"http://{_HOST}:{listener.getsockname()[1]}")
        config = uvicorn.Config(dashboard_app(servers), log_level="warning", server_header=False)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise no_address(_HOST, port, error) from error


def dashboard_app(servers: Mapping[str, Server]) -> Starlette:
    """The page, its parts, and what the servers say at this moment."""

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
        # A page of somebody else's cannot read this by pointing a name of its own at this machine.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])],
    )


def _ask(url: str, server: Server) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        status = server.status()
    except ChainruleError as error:
        problem = {"code": error.code, "message": error.message}
        return {"url": url, "status": None, "error": problem, "round_trip_s": None}
    seconds = time.perf_counter() - began
    return {"url": url, "status": status, "error": None, "round_trip_s": seconds}
