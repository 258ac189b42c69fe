"""The application as a web server calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Application = Callable[..., Awaitable[None]]


class CountingApplication(Protocol):
    """Answers requests, and counts those that do not come to it."""

    def __call__(self, *args: Any) -> Awaitable[None]:
        """Answer one request."""

    def refuse(self, status: int) -> None:
        """Count a request that was turned away."""


class Dispatcher:
    """Calls of a component go straight to their endpoint, everything else through the router.

    A router looks at one route after the other, and what it adds to a request (middleware, exception
    handlers) endpoints do not need: they answer every error themselves.

    Args:
        router: answers everything else.

    Attributes:
        endpoints: path → what answers `POST` there.
    """

    def __init__(self, router: Application) -> None:
        self._router = router
        self.endpoints: dict[str, CountingApplication] = {}

    def refuse(self, scope: MutableMapping[str, Any], status: int) -> None:
        """Count a request that somebody before us turned away, where it is a call of a component."""
        endpoint = self.endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is not None:
            endpoint.refuse(status)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        application: Application = self._router
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            application = self.endpoints.get(scope["path"], application)
        await application(scope, receive, send)
