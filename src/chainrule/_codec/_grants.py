"""Which files and addresses a caller may name.

A reference is a relative path below a granted folder, or an address below an allowed prefix. Everything
else is refused before anything is opened: absolute paths, `..`, links that lead out, devices, pipes,
unknown schemes.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from chainrule._errors import DecodeError, NotGrantedError

# The longest path that Linux opens; resolving a longer one costs a look at the disk per segment.
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
        resolved = (root / pure).resolve(strict=False)
    except (OSError, RuntimeError):
        raise _refused("cannot be resolved", name) from None
    if resolved != root and root not in resolved.parents:
        raise _refused("leads out of the folder through a link", name)
    return resolved


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
