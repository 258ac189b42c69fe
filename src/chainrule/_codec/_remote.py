"""Bytes from an address that the operator allowed.

http and https go through the standard library, with a byte range and without redirects (a redirect could
lead anywhere); other schemes (`s3://`, `gs://`, …) go through fsspec when it is installed.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from chainrule._errors import CapabilityError, DecodeError, TransportError

_TIMEOUT_S = 30.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def read_remote(url: str, offset: int, nbytes: int) -> bytes:
    """Exactly `nbytes` from `offset` on of a resource whose address was already checked.

    Raises:
        DecodeError: the resource is too short.
        TransportError: it cannot be fetched.
    """
    read = _read_http if url.split(":", 1)[0].lower() in ("http", "https") else _read_fsspec
    content = read(url, offset, nbytes)
    if len(content) != nbytes:
        raise DecodeError(
            f"The address gave {len(content)} bytes from the offset on, {nbytes} are needed.",
            code="array_decode_error",
        )
    return content


def _read_http(url: str, offset: int, nbytes: int) -> bytes:
    opener = urllib.request.build_opener(_NoRedirect)
    headers = {"Range": f"bytes={offset}-{offset + max(nbytes, 1) - 1}"}
    try:
        with opener.open(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S
        ) as answer:
            if answer.status != 206:
                _skip(answer, offset)
            return answer.read(nbytes)
    except (urllib.error.URLError, OSError) as error:
        raise _unreachable(error) from error


def _skip(answer: Any, count: int) -> None:
    """Read past what was not asked for, from servers that do not know byte ranges."""
    while count > 0 and (chunk := answer.read(min(count, 1 << 20))):
        count -= len(chunk)


def _read_fsspec(url: str, offset: int, nbytes: int) -> bytes:
    try:
        import fsspec
    except ImportError:
        raise CapabilityError(
            "Addresses other than http(s) need the package fsspec: pip install fsspec.",
            code="missing_dependency",
        ) from None
    try:
        with fsspec.open(url, "rb") as file:
            file.seek(offset)
            return file.read(nbytes)
    except (OSError, ValueError, ImportError) as error:
        raise _unreachable(error) from error


def _unreachable(error: BaseException) -> TransportError:
    return TransportError(
        f"An allowed address could not be read ({type(error).__name__}).",
        code="address_unreachable",
    )
