"""What a decoder accepts: `Limits` on size, number and nesting, `Grants` of files and addresses.

Both are checked before anything is allocated or opened. A reference is a relative path below a granted
folder, or an address below an allowed prefix; absolute paths, `..`, links that lead out of the folder,
devices, pipes and unknown schemes are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from chainrule._errors import DecodeError, LimitError, NotGrantedError

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds on what a decoder accepts.

    Attributes:
        max_body_bytes: bytes of one encoded body, as received.
        max_array_bytes: bytes of one decoded array.
        max_total_bytes: bytes of all decoded arrays of one body together, so that a thousand small
            compressed buffers cannot do what one large one may not.
        max_expanded_bytes: memory for what is not in the body itself: compressed bodies and buffers once they
            are expanded, files that the body refers to, and bytes that several arrays share. A body of
            30 kB can expand to a gigabyte. By default a body stands for no more than one can hold.
        max_parsed_bytes: memory for the Python objects that JSON text is parsed into. A number of two
            bytes takes up to 48; in base64 or frames it takes eight.
        max_fields: mapping entries and list items of one body, array contents not counted.
        max_depth: nesting of mappings and lists, array contents not counted.
        is_expanded: the body was compressed as a whole, so that none of its arrays was received as it is.
    """

    max_body_bytes: int = 512 * _MIB
    max_array_bytes: int = 1024 * _MIB
    max_total_bytes: int = 2048 * _MIB
    max_expanded_bytes: int = 512 * _MIB
    max_parsed_bytes: int = 2048 * _MIB
    max_fields: int = 100_000
    max_depth: int = 64
    is_expanded: bool = False

    def check_body(self, nbytes: int) -> None:
        """Refuse a body that is larger than `max_body_bytes`."""
        if nbytes > self.max_body_bytes:
            raise LimitError(
                f"The body has {nbytes} bytes, the limit is {self.max_body_bytes}. Send the arrays in "
                "application/vnd.chainrule.frames, or ask the operator to raise max_body_bytes.",
                code="body_too_large",
                details={"nbytes": nbytes, "limit": self.max_body_bytes},
            )

    def shared_by(self, count: int) -> Limits:
        """The limits of each of several bodies whose data are in memory at the same time."""
        if count == 1:
            return self
        return replace(
            self,
            max_total_bytes=self.max_total_bytes // count,
            max_expanded_bytes=self.max_expanded_bytes // count,
            max_parsed_bytes=self.max_parsed_bytes // count,
        )

    def after_expanding(self, nbytes: int) -> Limits:
        """The limits that are left for the data of a body that was compressed as a whole.

        What is parsed is then not in the body either, so it has to fit into the same memory.
        """
        left = self.max_expanded_bytes - nbytes
        parsed = min(self.max_parsed_bytes, left)
        return replace(self, max_expanded_bytes=left, max_parsed_bytes=parsed, is_expanded=True)


DEFAULT_LIMITS = Limits()

TRUSTING_LIMITS = Limits(
    max_body_bytes=1 << 50,
    max_array_bytes=1 << 50,
    max_total_bytes=1 << 50,
    max_expanded_bytes=1 << 50,
    max_parsed_bytes=1 << 50,
    max_fields=1 << 30,
)
"""For bodies of our own processes, or of a server that the user chose: any size, the same checks of form."""


def expansion_too_large(nbytes: int | None, limit: int) -> LimitError:
    """The error for a body that expands to too many bytes; `None` when their number is not known."""
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
        if nbytes > min(self.limits.max_array_bytes, self.bytes_left):
            limit = min(self.limits.max_array_bytes, self.bytes_left)
            raise LimitError(
                f"An array of {nbytes} bytes was declared, at most {limit} are allowed here "
                f"(max_array_bytes={self.limits.max_array_bytes}, "
                f"max_total_bytes={self.limits.max_total_bytes}).",
                code="array_too_large",
                details={"nbytes": nbytes, "limit": limit},
            )
        self.bytes_left -= nbytes

    def expand(self, nbytes: int) -> None:
        """Account for memory of what is not in the body, before it is read or expanded.

        Raises:
            LimitError: this body has too many of them.
        """
        if nbytes > self.expanded_left:
            raise expansion_too_large(nbytes, self.limits.max_expanded_bytes)
        self.expanded_left -= nbytes

    def expand_array(self, nbytes: int, itemsize: int, *, is_compressed: bool) -> None:
        """Account for an array that was not received as it is. A schema may cast its elements to eight bytes.

        Raises:
            LimitError: this body has too many of them.
        """
        if is_compressed or self.limits.is_expanded:
            self.expand(max(nbytes, nbytes // itemsize * 8))


# The longest path that Linux opens; resolving a longer one would cost one system call per segment.
_MAX_LENGTH = 4096


@dataclass(frozen=True)
class Grants:
    """The folders and addresses that data may refer to.

    Attributes:
        input_dir: folder that references are read from; `None` grants no file.
        output_dir: folder that results are written to; `None` grants no file.
        allowed_urls: prefixes such as `https://data.example/meshes/` that may be fetched. A prefix
            matches by scheme, host and whole path segments, never by text alone.
    """

    input_dir: Path | None = None
    output_dir: Path | None = None
    allowed_urls: tuple[str, ...] = ()

    def input_file(self, reference: str) -> Path:
        """The existing regular file that a reference names below `input_dir`, links resolved.

        Raises:
            NotGrantedError: outside the folder, or not a regular file.
            DecodeError: no such file (`file_missing`).
        """
        return _existing_file(self.input_dir, reference, "input_dir")

    def output_file(self, reference: str) -> Path:
        """Like `input_file`, below `output_dir`."""
        return _existing_file(self.output_dir, reference, "output_dir")

    def input_path(self, reference: str) -> Path:
        """The place a reference names below `input_dir`, links resolved; it need not exist."""
        return _resolve(self.input_dir, reference, "input_dir")

    def output_path(self, reference: str) -> Path:
        """Like `input_path`, below `output_dir`."""
        return _resolve(self.output_dir, reference, "output_dir")

    def open_input(self, reference: str) -> int:
        """A read-only file descriptor of `input_file(reference)`; the caller closes it."""
        path = self.input_file(reference)
        # O_NOFOLLOW and the second look guard against a file that was swapped since it was resolved.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags)
        except OSError:
            raise _missing("input_dir") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _refused("is not a regular file", "input_dir")
        return descriptor

    def check_url(self, url: str) -> str:
        """Return an address that is allowed.

        Raises:
            NotGrantedError: no prefix in `allowed_urls` covers it.
        """
        if any(_covers(prefix, url) for prefix in self.allowed_urls):
            return url
        raise NotGrantedError(
            f"Addresses of scheme {urlsplit(url).scheme[:20]!r} at this host and path are not granted. "
            "The operator can allow a prefix with allowed_urls=('https://host/folder/',).",
            code="path_not_granted",
        )


NO_GRANTS = Grants()


def is_url(reference: str) -> bool:
    """Whether a reference is an address rather than a path."""
    return "://" in reference or reference.startswith(("file:", "data:"))


def _covers(prefix: str, url: str) -> bool:
    allowed, asked = urlsplit(prefix), urlsplit(url)
    if (allowed.scheme.lower(), allowed.netloc) != (asked.scheme.lower(), asked.netloc):
        return False
    segments = asked.path.split("/")
    if ".." in segments or "%" in asked.path or "\\" in asked.path:
        return False
    base = allowed.path.rstrip("/").split("/")
    return segments[: len(base)] == base


def _resolve(folder: Path | None, reference: str, name: str) -> Path:
    if folder is None:
        raise NotGrantedError(
            f"The data refers to a file, but no {name} is granted here. Send the array inline "
            f"(base64 or frames), or start the component with {name}.",
            code="path_not_granted",
        )
    if len(reference) > _MAX_LENGTH:
        raise _refused("is too long", name)
    pure = PurePosixPath(reference)
    if not reference or "\0" in reference or pure.is_absolute() or is_url(reference):
        raise _refused("is not a relative path", name)
    if ".." in pure.parts:
        raise _refused("contains '..'", name)
    try:
        root = Path(folder).resolve(strict=False)
        resolved = _without_links(root / pure)
    except (OSError, RuntimeError):
        raise _refused("cannot be resolved", name) from None
    if resolved != root and root not in resolved.parents:
        raise _refused("leads out of the folder through a link", name)
    return resolved


def _without_links(path: Path) -> Path:
    """A path with all links resolved; it need not exist.

    Links in a circle are an error on every version of Python: from 3.13 on only if `strict` is set.
    """
    try:
        return path.resolve(strict=True)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        return path.resolve(strict=False)


def _existing_file(folder: Path | None, reference: str, name: str) -> Path:
    path = _resolve(folder, reference, name)
    try:
        mode = path.stat().st_mode
    except OSError:
        raise _missing(name) from None
    if not stat.S_ISREG(mode):
        raise _refused("is not a regular file", name)
    return path


def _missing(name: str) -> DecodeError:
    return DecodeError(
        f"The data refers to a file that does not exist below {name}, or cannot be read.",
        code="file_missing",
    )


def _refused(reason: str, name: str) -> NotGrantedError:
    return NotGrantedError(
        f"Expected a relative path to a regular file below {name}; found a reference that {reason}.",
        code="path_not_granted",
    )
