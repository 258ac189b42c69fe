"""Which callers are allowed: those with a token; without tokens, this machine, but no foreign web page.

`BearerToken` asks for a token. Each name in the token file has one `Account`: the limits from the file, and
what was used. Accounts outlive a change of the file, so that a new token is no new allowance. `LocalCallers`
guards a server without tokens.
"""

from __future__ import annotations

import hmac
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from chainrule._errors import ChainruleError
from chainrule._tokens import TokenHolder, read_token_file, readable_by_all
from chainrule.serve._endpoint import send_reply
from chainrule.serve._logs import TOKEN_NAME
from chainrule.serve._options import is_loopback
from chainrule.serve._page import is_page
from chainrule.serve._problems import problem_reply
from chainrule.serve._watched_files import WatchedFiles

_log = logging.getLogger(__name__)

# A library for URLs is too lenient: it takes `[::1].evil.com` for `::1`, and knows users before an `@`.
_HOST = re.compile(
    r"(?:https?://)?(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{0,5})?"
)
_PROBES = frozenset(("/health", "/ready"))


REASONS = ("rate", "calls")


class TooManyRequestsError(ChainruleError):
    """A holder of a token asks for more than its limits allow: HTTP 429. Nothing was run.

    Attributes:
        retry_after_s: when to come back.
    """

    default_code = "rate_limited"
    http_status = 429

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Account:
    """What one holder may ask for, and has asked for. For the event loop.

    Args:
        holder: name and limits.

    Attributes:
        holder: see above; another one after a change of the file.
        requests: how many it has made, those that were refused included.
        refused: reason → how many of them were refused.
        running: how many of its calls are under way.
    """

    def __init__(self, holder: TokenHolder) -> None:
        self.holder = holder
        self.requests = 0
        self.refused = dict.fromkeys(REASONS, 0)
        self.running = 0
        self._allowance = math.inf  # requests that may be made at once
        self._since = 0.0

    @contextmanager
    def use(self, *, is_call: bool) -> Iterator[None]:
        """Count one request while it is answered.

        Args:
            is_call: it runs a component.

        Raises:
            TooManyRequestsError: a limit is reached (`rate_limited`, `too_many_calls`).
        """
        self.requests += 1
        self._check_rate()
        if not is_call:
            yield
            return
        most = self.holder.calls
        if most is not None and self.running >= most:
            self.refused["calls"] += 1
            raise TooManyRequestsError(
                f"{self.running} calls with this token are under way, and {most} may be at a time.",
                code="too_many_calls",
                retry_after_s=1,
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def _check_rate(self) -> None:
        """Take one request from the allowance, which grows by `rate` per second up to one second's worth."""
        rate = self.holder.rate
        if rate is None:
            return
        now = time.monotonic()
        most = max(1.0, rate)
        # A bucket of tokens: it is full at first (`inf` is cut to `most`), so a caller may begin with one
        # second's worth at once, and in every time t afterwards makes at most most + rate · t requests.
        self._allowance = min(most, self._allowance + (now - self._since) * rate)
        self._since = now
        if self._allowance < 1:
            self.refused["rate"] += 1
            raise TooManyRequestsError(
                f"This token may be used for {rate:g} requests per second, and there were more.",
                code="rate_limited",
                retry_after_s=math.ceil((1 - self._allowance) / rate),
            )
        self._allowance -= 1


class Accounts:
    """All holders of tokens of a server.

    Args:
        file: the token file; it is read again when it changes.
        on_revoked: called when a token that was valid is not any more.

    Attributes:
        files: the file, as it is watched.
        refused: how many requests had no valid token.

    Raises:
        InputError: the file cannot be used (`bad_token_file`).
    """

    def __init__(self, file: Path, on_revoked: Callable[[], None]) -> None:
        self.refused = 0
        self._file = Path(file)
        self._on_revoked = on_revoked
        self._accounts: dict[str, Account] = {}
        self._by_token: list[tuple[bytes, Account]] = []
        self.files = WatchedFiles("token", [self._file], self._load)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def find(self, token: bytes) -> Account | None:
        """The account of a token; a file that has changed is read first where the token is not known."""
        found = self._find(token)
        if found is None and self.files.look():
            found = self._find(token)
        if found is None:
            self.refused += 1
        return found

    def _find(self, token: bytes) -> Account | None:
        """All tokens are compared, each in constant time: the time does not say which one is similar."""
        found = None
        for known, account in self._by_token:
            if hmac.compare_digest(token, known):
                found = account
        return found

    def _load(self) -> None:
        holders = read_token_file(self._file)
        if readable_by_all(self._file):
            _log.warning(
                "Every user of this machine can read the token file %s: chmod 600 %s",
                self._file,
                self._file,
            )
        before = {token for token, _ in self._by_token}
        accounts = {holder.name: self._account(holder) for holder in holders}
        self._accounts = accounts
        self._by_token = [
            (token, accounts[holder.name]) for holder in holders for token in holder.tokens
        ]
        if before - {token for token, _ in self._by_token}:
            self._on_revoked()

    def _account(self, holder: TokenHolder) -> Account:
        account = self._accounts.get(holder.name)
        if account is None:
            return Account(holder)
        account.holder = holder
        return account


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
