"""One log line per request: who was asked for what, how it went and how long it took. Never what was sent."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

_log = logging.getLogger("chainrule.access")

RUN_ID = "chainrule.run_id"
"""Where the id of a run stands in an ASGI scope when the caller gave none."""

Message = MutableMapping[str, Any]


class AccessLog:
    """ASGI middleware that logs every request to `chainrule.access`.

    Calls without a run id get one, so that this line and those of the component can be put together. The
    query is not logged: it may hold what only the caller should know.

    Args:
        app: what answers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Pass on, and log the end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        line = _Line(scope, send)
        scope[RUN_ID] = line.run_id
        try:
            await self._app(scope, receive, line.send)
        finally:
            line.write()


class _Line:
    def __init__(self, scope: Message, send: Any) -> None:
        self._start = time.perf_counter()
        self._scope = scope
        self._send = send
        self._status = 499
        self._sent = 0
        self.run_id = uuid.uuid4().hex

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._sent += _in_memory(message.get("headers", ()))
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    def write(self) -> None:
        scope = self._scope
        length = dict(scope["headers"]).get(b"content-length", b"0").decode("latin-1")
        facts: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "status": self._status,
            "seconds": round(time.perf_counter() - self._start, 6),
            "received": int(length) + _in_memory(scope["headers"]) if length.isdigit() else None,
            "sent": self._sent,
            "client": (scope.get("client") or [None])[0],
        }
        if scope["method"] == "POST":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("run_id")
            facts["run_id"] = given[0] if given else scope[RUN_ID]
        text = " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
        _log.info("%s", text, extra={"facts": facts})


def _in_memory(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """How many bytes of a body lie in shared memory (`_same_host`); the last word of a header says so."""
    size = dict(headers).get(b"chainrule-memory", b"").rpartition(b" ")[2]
    return int(size) if size.isdigit() and len(size) <= 18 else 0


def _shown(value: Any) -> str:
    """A value in a line of text; quoted where the caller chose it so that it might be taken for more."""
    text = str(value)
    return text if text.isprintable() and not {" ", '"'} & set(text) else json.dumps(text)
