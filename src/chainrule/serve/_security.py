"""Which callers are allowed: those with a token; without tokens, this machine, but no foreign web page."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.serve._accounts import Account, Accounts, TooManyRequestsError
from chainrule.serve._endpoint import send_reply
from chainrule.serve._logs import TOKEN_NAME
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
    """ASGI middleware that lets only requests with a token through, as many as its holder may make.

    Args:
        app: what is protected.
        accounts: the holders of tokens.
        on_refused: is told of every request that is turned away, with the status of the answer.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        accounts: Accounts,
        on_refused: Callable[[MutableMapping[str, Any], int], None],
    ) -> None:
        self._app = app
        self._accounts = accounts
        self._on_refused = on_refused

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass on, or answer 401 or 429."""
        if scope["type"] != "http" or _is_open(scope):
            await self._app(scope, receive, send)
            return
        account = self._account_of(scope)
        if account is None:
            await self._refuse(scope, send, _unauthorized(scope))
            return
        scope[TOKEN_NAME] = account.holder.name
        with ExitStack() as use:
            try:
                use.enter_context(account.use(is_call=scope["method"] == "POST"))
            except TooManyRequestsError as error:
                await self._refuse(scope, send, error)
                return
            await self._app(scope, receive, send)

    def _account_of(self, scope: MutableMapping[str, Any]) -> Account | None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        # Names of schemes have no case (RFC 7235, 2.1); only the token is a secret.
        return self._accounts.find(token.strip() if scheme.lower() == b"bearer" else b"")

    async def _refuse(
        self, scope: MutableMapping[str, Any], send: Any, error: ChainruleError
    ) -> None:
        self._on_refused(scope, error.http_status)
        await send_reply(send, problem_reply(error), close=True)


def _unauthorized(scope: Mapping[str, Any]) -> UnauthorizedError:
    if b"authorization" in dict(scope["headers"]):
        return UnauthorizedError(
            "The token that was sent is not one that this server knows; it may have been replaced. Ask the "
            "server's operator for the present one."
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
