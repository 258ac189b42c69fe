"""Which formats a server reads and writes, as its OpenAPI document tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chainrule._codec import FRAMES_MEDIA_TYPE


@dataclass(frozen=True)
class Dialect:
    """How to talk to a server.

    Attributes:
        content_type: of the requests we send.
        body_format: the codec's name of the format that goes with it.
        accept: what we ask for; `None` asks for whatever the server likes.
        is_native: whether the server is one of ours.
    """

    content_type: str
    body_format: str
    accept: str | None
    is_native: bool = False


NATIVE = Dialect(
    FRAMES_MEDIA_TYPE, FRAMES_MEDIA_TYPE.removeprefix("application/"), FRAMES_MEDIA_TYPE, True
)
# The peer takes arrays as base64 inside a body that has to call itself application/json.
_PEER = Dialect("application/json", "json+base64", "application/json+base64; gpu_transport=none")
# Servers before 1.13 answer 500 to any Accept header but their own format's.
_OLD_PEER = Dialect("application/json", "json+base64", None)


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """The dialect of the server that published this document."""
    if "x-capabilities" in document:
        return NATIVE
    return _PEER if "x-supported-output-formats" in document else _OLD_PEER
