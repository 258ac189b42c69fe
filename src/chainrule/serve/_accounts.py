"""Whose token a request has, and how much that holder may still ask for.

Each name in the token file has one account: the limits from the file, and what was used. Accounts outlive a
change of the file, so that a new token is no new allowance.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chainrule._errors import ChainruleError
from chainrule._tokens import TokenHolder, read_token_file, readable_by_all
from chainrule.serve._watched_files import WatchedFiles

_log = logging.getLogger(__name__)

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
