"""Token files: who may call a server, with which tokens, and how often.

A file has one token per line. A line is a token, or a name, a token and limits:

    # name   token              limits
    alice    vE2mVh0q6sVbX3kz   rate=10 calls=4
    alice    old7Jq2wR5tY8uI1
    bob      Zx4cV7bN0mQ3wE6r

A name may stand in several lines: all its tokens are valid, and its limits count for them together. So an old
and a new token are valid at the same time until the line of the old one is removed. A file of one word, the
usual one, is one token of `default`, without limits.

Servers and clients read the same format. A client sends the first token of its file.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chainrule._errors import InputError

DEFAULT_NAME = "default"

_MIN_LENGTH = 16
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_TOKEN = re.compile(r"[!-~]+")
_LIMIT = re.compile(r"(rate|calls)=(.*)")
_MAKE_ONE = "Make a token with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


@dataclass(frozen=True)
class TokenHolder:
    """Who may call.

    Attributes:
        name: how logs and metrics call it.
        tokens: all that are valid; the first is the one to send.
        rate: how many requests it may make per second; `None` for no limit.
        calls: how many of its calls may be under way; `None` for no limit.
    """

    name: str
    tokens: tuple[bytes, ...]
    rate: float | None = None
    calls: int | None = None

    def __repr__(self) -> str:
        count = len(self.tokens)
        return f"TokenHolder({self.name!r}, {count} tokens, rate={self.rate}, calls={self.calls})"


def read_token_file(file: Path, *, min_length: int = _MIN_LENGTH) -> list[TokenHolder]:
    """The holders of the tokens in a file, in the order of their first lines.

    Args:
        file: its path.
        min_length: shorter tokens are refused.

    Raises:
        InputError: the file cannot be read or used (`bad_token_file`). The message never holds a token.
    """
    holders: dict[str, TokenHolder] = {}
    owners: dict[bytes, str] = {}
    for place, line in _lines(file):
        holder = _holder(line, place, min_length)
        token = holder.tokens[0]
        if token in owners:
            raise _bad(
                f"{place} has the same token as a line of {owners[token]}. Remove one of them."
            )
        owners[token] = f"{holder.name!r}"
        known = holders.get(holder.name)
        holders[holder.name] = holder if known is None else _joined(known, holder, place)
    if not holders:
        raise _bad(
            f"The token file {file} has no token in it; lines that begin with # are comments. {_MAKE_ONE}"
        )
    return list(holders.values())


def readable_by_all(file: Path) -> bool:
    """Whether any user of this machine may read a file that this user could protect."""
    found = os.stat(file)
    return found.st_uid == os.geteuid() and bool(found.st_mode & stat.S_IROTH)


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Where each line with a token is, in words, and the line."""
    try:
        with open(file, "rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        text = content.decode("ascii")
    except OSError as error:
        raise _bad(f"The token file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _bad(f"The token file {file} cannot be read: it is not ASCII text.") from None
    if len(content) > _MAX_BYTES:
        raise _bad(f"The token file {file} has more than {_MAX_BYTES >> 20} MiB.")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"Line {number} of the token file {file}", line


def _holder(line: str, place: str, min_length: int) -> TokenHolder:
    words = line.split()
    limits: dict[str, str] = {}
    while len(words) > 1 and (limit := _LIMIT.fullmatch(words[-1])):
        if limit[1] in limits:
            raise _bad(f"{place} gives {limit[1]} twice.")
        limits[limit[1]] = limit[2]
        words.pop()
    if len(words) > 2:
        raise _bad(
            f"{place} has {len(words)} words. Expected a token alone, or a name, a token and the limits "
            "rate=NUMBER and calls=NUMBER."
        )
    *names, token = words
    name = names[0] if names else DEFAULT_NAME
    if not _NAME.fullmatch(name):
        raise _bad(
            f"{place} begins with something that is no name. A name has up to 64 letters, digits and "
            "the characters . _ @ -"
        )
    if len(token) < min_length or not _TOKEN.fullmatch(token):
        raise _bad(
            f"{place} has a token of {len(token)} characters; a token has at least {min_length} printable "
            f"ones. {_MAKE_ONE}"
        )
    rate = _number(limits.get("rate"), f"{place}: rate", "a number of requests per second above 0")
    calls = _number(limits.get("calls"), f"{place}: calls", "a whole number of at least 1")
    if calls is not None and (calls < 1 or calls != int(calls)):
        raise _bad(f"{place}: calls has to be a whole number of at least 1; found {calls:g}.")
    return TokenHolder(name, (token.encode(),), rate, None if calls is None else int(calls))


def _number(text: str | None, what: str, expected: str) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise _bad(f"{what} has to be {expected}; found {text[:20]!r}.")
    return value


def _joined(known: TokenHolder, more: TokenHolder, place: str) -> TokenHolder:
    """One holder of two lines; a limit may stand in one of them, or in both if it is the same."""
    for limit in ("rate", "calls"):
        values = {getattr(known, limit), getattr(more, limit)} - {None}
        if len(values) > 1:
            raise _bad(
                f"{place} gives {known.name!r} another limit ({limit}) than a line before. The limits of a "
                "name count for all its tokens; give two callers two names."
            )
    return replace(
        known,
        tokens=known.tokens + more.tokens,
        rate=known.rate or more.rate,
        calls=known.calls or more.calls,
    )


def _bad(message: str) -> InputError:
    return InputError(message, code="bad_token_file")
