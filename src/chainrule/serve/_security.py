"""Who may call: a bearer token, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.serve._endpoint import send_reply
from chainrule.serve._page import is_page
from chainrule.serve._problems import problem_reply

__all__ = ["BearerToken"]

# Probes of an orchestrator carry no token, and learn nothing here.
_OPEN_PATHS = frozenset(("/health", "/ready"))


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
    """

    def __init__(self, app: Callable[..., Awaitable[None]], token: bytes) -> None:
        self._app = app
        self._expected = b"Bearer " + token

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass on, or answer 401."""
        if scope["type"] != "http" or _is_open(scope) or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        error = UnauthorizedError("This server asks for a token: Authorization: Bearer <token>.")
        await send_reply(send, problem_reply(error), close=True)

    def _is_allowed(self, scope: MutableMapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


def _is_open(scope: MutableMapping[str, Any]) -> bool:
    return scope["path"] in _OPEN_PATHS or is_page(scope)
