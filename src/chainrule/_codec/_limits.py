"""How large, how deep and how many: the bounds a decoder keeps before it allocates anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from chainrule._errors import LimitError

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds on what a decoder accepts from a stranger.

    Attributes:
        max_body_bytes: bytes of one encoded body, as received.
        max_array_bytes: bytes of one decoded array.
        max_total_bytes: bytes of all decoded arrays of one body together, so that a thousand small
            compressed buffers cannot do what one large one may not.
        max_expanded_bytes: bytes that are not in the body itself but come of it: of compressed bodies and
            buffers, and of files that it refers to. A body of 30 kB may stand for a gigabyte.
        max_fields: mapping entries and list items of one body, array contents not counted.
        max_depth: nesting of mappings and lists, array contents not counted.
    """

    max_body_bytes: int = 512 * _MIB
    max_array_bytes: int = 1024 * _MIB
    max_total_bytes: int = 2048 * _MIB
    max_expanded_bytes: int = 1024 * _MIB
    max_fields: int = 100_000
    max_depth: int = 64

    def check_body(self, nbytes: int) -> None:
        """Refuse a body that is larger than `max_body_bytes`."""
        if nbytes > self.max_body_bytes:
            raise LimitError(
                f"The body has {nbytes} bytes, the limit is {self.max_body_bytes}. Send the arrays in "
                "application/vnd.chainrule.frames, or ask the operator to raise max_body_bytes.",
                code="body_too_large",
                details={"nbytes": nbytes, "limit": self.max_body_bytes},
            )


DEFAULT_LIMITS = Limits()

TRUSTING_LIMITS = Limits(
    max_body_bytes=1 << 50,
    max_array_bytes=1 << 50,
    max_total_bytes=1 << 50,
    max_expanded_bytes=1 << 50,
    max_fields=1 << 30,
)
"""For what comes from ourselves, or from somebody we chose: its size is trusted, its form is not."""


def expansion_too_large(nbytes: int | None, limit: int) -> LimitError:
    """A body that stands for more than it may; `None` when nobody knows how much more."""
    found = "more" if nbytes is None else f"{nbytes} bytes"
    return LimitError(
        f"Compressed data and files of one body may come to {limit} bytes; found {found}. Send the data "
        "uncompressed, or ask the operator to raise --max-expanded-bytes and --max-inflight-bytes.",
        code="expansion_too_large",
        details={"limit": limit},
    )


@dataclass
class Budget:
    """What is left of the limits while one body is decoded."""

    limits: Limits = DEFAULT_LIMITS
    fields_left: int = field(init=False)
    bytes_left: int = field(init=False)
    expanded_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.fields_left = self.limits.max_fields
        self.bytes_left = self.limits.max_total_bytes
        self.expanded_left = self.limits.max_expanded_bytes

    def enter(self, count: int, depth: int) -> None:
        """Account for one mapping or list with `count` entries at nesting `depth`.

        Raises:
            LimitError: too deep, or too many fields in this body.
        """
        self.fields_left -= count
        if depth > self.limits.max_depth:
            raise LimitError(
                f"The data is nested deeper than {self.limits.max_depth} levels.",
                code="too_deep",
                details={"limit": self.limits.max_depth},
            )
        if self.fields_left < 0:
            raise LimitError(
                f"The body has more than {self.limits.max_fields} fields. Send many numbers as one "
                "array instead of many fields.",
                code="too_many_fields",
                details={"limit": self.limits.max_fields},
            )

    def take(self, nbytes: int) -> None:
        """Account for one array of `nbytes`, before it is allocated.

        Raises:
            LimitError: the array, or all arrays of this body together, would be too large.
        """
        if not self.try_take(nbytes):
            limit = min(self.limits.max_array_bytes, self.bytes_left)
            raise LimitError(
                f"An array of {nbytes} bytes was declared, at most {limit} are allowed here "
                f"(max_array_bytes={self.limits.max_array_bytes}, "
                f"max_total_bytes={self.limits.max_total_bytes}).",
                code="array_too_large",
                details={"nbytes": nbytes, "limit": limit},
            )

    def expand(self, nbytes: int) -> None:
        """Account for bytes that are not in the body, before they are read or expanded.

        Raises:
            LimitError: this body stands for too many of them.
        """
        if nbytes > self.expanded_left:
            raise expansion_too_large(nbytes, self.limits.max_expanded_bytes)
        self.expanded_left -= nbytes

    def try_take(self, nbytes: int, count: int = 1) -> bool:
        """Account for `count` arrays of `nbytes` each and say yes, or, where they are too large, say no."""
        total = count * nbytes
        if total > self.bytes_left or nbytes > self.limits.max_array_bytes:
            return False
        self.bytes_left -= total
        return True
