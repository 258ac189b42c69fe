"""Which format, compression and device transport a caller asks for in `Accept`.

The rules are those of the peer, so that its clients get what they expect: ranges are tried by falling
`q`, `*/*` and `application/*` mean the configured format, any other type is known by what follows its
last slash, and the first range that can be produced wins. Parameters: `gpu_transport`, `compression`,
and ours, `sparse=coo`, by which a caller says that it reads sparse arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from chainrule._codec._bodies import FORMATS, media_type_of
from chainrule._codec._frames_layout import FRAMES_MEDIA_TYPE
from chainrule._errors import InputError

_COMPRESSIONS = {"none": None, "lz4": "lz4", "zstd": "zstd"}
_GPU_TRANSPORTS = ("none",)


class NotAcceptableError(InputError):
    """No range of the `Accept` header can be produced: HTTP 406."""

    default_code: ClassVar[str] = "not_acceptable"
    http_status: ClassVar[int] = 406


@dataclass(frozen=True)
class Negotiated:
    """What a response will look like.

    Attributes:
        format: one of `FORMATS`.
        compression: `"lz4"`, `"zstd"` (frames only) or `None`.
        sparse: whether sparse arrays may be sent as such.
    """

    format: str
    compression: str | None = None
    sparse: bool = False

    @property
    def media_type(self) -> str:
        """The `Content-Type` of the response."""
        return media_type_of(self.format)


@lru_cache(maxsize=256)  # callers say the same thing again and again
def negotiate(
    accept: str | None,
    *,
    default_format: str = "json",
    default_compression: str | None = None,
    formats: tuple[str, ...] = FORMATS,
) -> Negotiated:
    """Choose a response's form.

    Args:
        accept: the `Accept` header; absent or empty means the defaults.
        default_format: the configured format.
        default_compression: the configured compression.
        formats: what can be produced here.

    Raises:
        NotAcceptableError: nothing that was asked for can be produced; `details` lists what can.

    Example:
        >>> negotiate("application/xml, application/json+base64;q=0.5").media_type
        'application/json+base64'
    """
    defaults = {"compression": default_compression or "none", "gpu_transport": "none"}
    if accept is None or not accept.strip():
        return _produce(default_format, defaults, formats) or Negotiated(default_format)
    for kind, parameters in _ranges(accept):
        wild = kind in ("*/*", "application/*")
        format = default_format if wild else kind.rsplit("/", 1)[-1]
        produced = _produce(format, {**defaults, **parameters}, formats)
        if produced is not None:
            return produced
    raise NotAcceptableError(
        f"Nothing in Accept: {accept[:100]!r} can be produced here; available are "
        f"{', '.join(map(media_type_of, formats))}.",
        details={
            "available_formats": list(formats),
            "available_gpu_transports": list(_GPU_TRANSPORTS),
            "available_compressions": ["none", "lz4"],
        },
    )


def _ranges(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Media ranges with their parameters, best first; equal weights keep their order."""
    ranges = []
    for text in accept.split(","):
        kind, *rest = (part.strip() for part in text.split(";"))
        if not kind:
            continue
        parameters = {}
        for parameter in rest:
            name, _, value = parameter.partition("=")
            parameters[name.strip().lower()] = value.strip().strip('"').lower()
        ranges.append((_weight(parameters.pop("q", "1")), kind.lower(), parameters))
    ranges.sort(key=lambda entry: -entry[0])
    return [(kind, parameters) for _, kind, parameters in ranges]


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


def _produce(
    format: str, parameters: dict[str, Any], formats: tuple[str, ...]
) -> Negotiated | None:
    is_frames = media_type_of(format) == FRAMES_MEDIA_TYPE
    compression = parameters["compression"]
    if format not in formats or parameters["gpu_transport"] not in _GPU_TRANSPORTS:
        return None
    if compression not in _COMPRESSIONS or (compression == "zstd" and not is_frames):
        return None
    sparse = is_frames or parameters.get("sparse") == "coo"
    return Negotiated(format, _COMPRESSIONS[compression], sparse)
