"""What a caller says about a server, checked before anything is sent: its URL, the token, the limits."""

from __future__ import annotations

import math
import re
import ssl
from numbers import Integral, Real
from os import PathLike
from urllib.parse import quote, urlsplit

from chainrule._errors import InputError
from chainrule.client._connections import Origin

Verify = bool | str | PathLike[str] | ssl.SSLContext
"""How certificates are checked: as the system does, not at all, by a file of authorities, or by settings."""


def parse_url(url: str, verify: Verify) -> tuple[Origin, str]:
    """Where a server listens, and the path of the component there.

    Raises:
        InputError: it is not the URL of a server (`bad_url`), or the file of authorities cannot be read
            (`bad_option`).
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except (ValueError, TypeError):
        raise _bad_url(url) from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise _bad_url(url)
    written = f"[{host}]" if ":" in host else host
    if not re.fullmatch(rf"(.*@)?{re.escape(written)}(:[0-9]*)?", parts.netloc, re.IGNORECASE):
        raise _bad_url(url)  # `[::1].example.org`, which Python takes for `::1`
    if parts.username is not None:
        raise InputError(
            "A URL with a user or password in it is not understood; pass token=….", code="bad_url"
        )
    tls = _tls(verify) if parts.scheme == "https" else None
    default_port = 80 if tls is None else 443
    return Origin(host, port or default_port, tls), quote(parts.path.rstrip("/"), "/%")


def _bad_url(url: object) -> InputError:
    return InputError(
        f"Expected a URL such as http://localhost:8000; found {str(url)[:200]!r}.", code="bad_url"
    )


def _tls(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    if isinstance(verify, bool):
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, TypeError) as error:
        raise InputError(
            "verify is True, False, an SSLContext, or a PEM file of certificates to trust; found "
            f"{str(verify)[:200]!r}, which cannot be used ({error}).",
            code="bad_option",
        ) from None


def checked_token(token: str) -> str:
    """A token without the space around it.

    Raises:
        InputError: no header can carry it (`bad_token`).
    """
    token = token.strip() if isinstance(token, str) else "not a text"
    if not token.isascii() or any(character.isspace() for character in token):
        raise InputError("A token is one word of ASCII characters.", code="bad_token")
    return token


def check_seconds(name: str, value: float | None) -> None:
    """Refuse what is no time to wait; `None` is: for ever.

    Raises:
        InputError: it is not a number above zero (`bad_option`).
    """
    if value is None:
        return
    if not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise InputError(
            f"{name} is a number of seconds above 0, or None; found {value!r}.", code="bad_option"
        )


def check_count(name: str, value: int, *, least: int) -> None:
    """Refuse what is not a whole number, or too small.

    Raises:
        InputError: it is (`bad_option`).
    """
    if not isinstance(value, Integral) or value < least:
        raise InputError(
            f"{name} is a whole number, at least {least}; found {value!r}.", code="bad_option"
        )
