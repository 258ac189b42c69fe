"""Which callers are allowed: those with the token; without one, this machine, but no foreign web page."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.serve._endpoint import send_reply
from chainrule.serve._options import is_loopback
from chainrule.serve._page import is_page
from chainrule.serve._problems import problem_reply

# A library for URLs is too lenient: it takes `[::1].evil.com` for `::1`, and knows users before an `@`.
_HOST = re.compile(
    r"(?:https?://)?(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{0,5})?"
)
_PROBES = frozenset(("/health", "/ready"))


class UnauthorizedError(ChainruleError):
    """No token, or the wrong one: HTTP 401."""

    default_code = "unauthorized"
    http_status = 401
    exit_code = 2


class BearerToken:
    """ASGI middleware that lets only requests with the token through.

    Args:
        app: what is protected.
        token: the expected token.
        on_refused: is told of every request that is turned away, with the status of the answer.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        token: bytes,
        on_refused: Callable[[MutableMapping[str, Any], int], None] = lambda scope, status: None,
    ) -> None:
        self._app = app
        self._token = token
        self._on_refused = on_refused

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass on, or answer 401."""
        if scope["type"] != "http" or _is_open(scope) or self.allows(scope):
            await self._app(scope, receive, send)
            return
        error = _unauthorized(scope)
        self._on_refused(scope, error.http_status)
        await send_reply(send, problem_reply(error), close=True)

    def allows(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a request has the token."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        # Names of schemes have no case (RFC 7235, 2.1); only the token is a secret.
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)


def _unauthorized(scope: Mapping[str, Any]) -> UnauthorizedError:
    if b"authorization" in dict(scope["headers"]):
        return UnauthorizedError(
            "The token that was sent is not the one that this server asks for."
        )
    return UnauthorizedError(
        "This server asks for a token: Authorization: Bearer <token>. Pass it to Component.from_url(url, "
        "token=…), or its file to commands: --token-file."
    )


class ForeignOriginError(ChainruleError):
    """A web page of another site made this request: HTTP 403."""

    default_code = "foreign_origin"
    http_status = 403
    exit_code = 2


class LocalCallers:
    """ASGI middleware for a server on loopback without a token: no web page of another site may call.

    A browser on this machine can reach what other machines cannot. What a page of another site sends
    carries that site's name: as `Origin`, or, where the site made its own name point to this machine, as
    `Host`.

    Args:
        app: what is protected.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass on, or answer 403."""
        if scope["type"] != "http" or self.allows(scope):
            await self._app(scope, receive, send)
            return
        error = ForeignOriginError(
            "This server has no token and answers only requests to localhost that no page of another "
            "site has made. Give it a token (--token-file), or, behind a proxy that does the checking, "
            "start it with --insecure."
        )
        await send_reply(send, problem_reply(error), close=True)

    def allows(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a request is to this machine, and not from a page of another."""
        return all(
            _is_loopback_name(value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in (b"host", b"origin")
        )


@lru_cache(maxsize=64)  # callers say the same thing again and again
def _is_loopback_name(name: str) -> bool:
    """Whether `host`, `host:port` or an origin, and nothing more, is this machine."""
    match = _HOST.fullmatch(name)
    return match is not None and is_loopback((match["address"] or match["name"]).lower())


def is_probe(scope: Mapping[str, Any]) -> bool:
    """Whether a request asks how the server is, as orchestrators do: with no token, at any load."""
    return scope["path"] in _PROBES


def _is_open(scope: MutableMapping[str, Any]) -> bool:
    return is_probe(scope) or is_page(scope)
