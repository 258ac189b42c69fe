"""What the command line is given to compute with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chainrule._errors import CapabilityError, InputError


def read_payload(text: str) -> Any:
    """The body of a request: JSON in the argument itself, or in the file or address after `@`.

    Raises:
        InputError: the file cannot be read.
        json.JSONDecodeError: it is not JSON.
    """
    return json.loads(_read(text[1:]) if text.startswith("@") else text)


def _read(place: str) -> str | bytes:
    try:
        return _read_address(place) if "://" in place else Path(place).read_bytes()
    except OSError as error:
        raise InputError(
            f"The payload file {place!r} cannot be read: {error.strerror or error}.",
            code="payload_unreadable",
        ) from error


def _read_address(address: str) -> bytes:
    try:
        import fsspec
    except ImportError as error:
        raise CapabilityError(
            "Payloads at an address need fsspec: pip install fsspec.", code="fsspec_missing"
        ) from error
    with fsspec.open(address, "rb") as stream:
        return stream.read()
