"""What a handle says about encodings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RequestedEncoding:
    """How a caller wants arrays to travel.

    Attributes:
        output_format: `json`, `json+base64` or `json+binref`; `None` leaves it to the server.
        gpu_transport: how device memory travels.
        compression: `lz4`, `none`, or `None` to leave it to the server.
    """

    output_format: str | None = None
    gpu_transport: str | None = None
    compression: str | None = None


@dataclass(frozen=True)
class ServerCapabilities:
    """What a server says it can produce; `None` where it says nothing.

    Attributes:
        output_formats: names of formats.
        gpu_transports: names of transports.
        compressions: names of compressions.
    """

    output_formats: tuple[str, ...] | None
    gpu_transports: tuple[str, ...] | None
    compressions: tuple[str, ...] | None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ServerCapabilities:
        """Read them from an OpenAPI document."""

        def listed(name: str) -> tuple[str, ...] | None:
            found = document.get(f"x-supported-{name}")
            return None if found is None else tuple(found)

        return cls(listed("output-formats"), listed("gpu-transports"), listed("compressions"))
