"""Arrays in files: `<path>[:<offset>[:<stored size>]]` stands for the bytes of one array.

    Reference      the text above, parsed
    Grants         the folders and addresses that data may refer to
    read_binref    the array that a reference names, from a granted folder or an allowed address
    BinrefArray    an array that is known by its reference and read when its values are needed
    BinrefWriter   appends arrays to files of an output folder

A reference is a relative path below a granted folder, or an address below an allowed prefix. Absolute paths,
`..`, links that lead out of the folder, devices, pipes and unknown schemes are refused before anything is
opened.

The writer appends to one temporary file, `.<uuid>.bin.part`, which gets its final name when the writer is
closed. A process that dies in between leaves no file under a final name.

Addresses: http and https go through the standard library, with a byte range and without redirects, because a
redirect could lead anywhere; other schemes (`s3://`, `gs://`, …) go through fsspec when it is installed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np

from chainrule._codec._compression import compress, decompress
from chainrule._codec._declared import (
    dtype_from_name,
    dtype_name,
    expected_bytes,
    from_wire,
    raw_bytes,
    to_wire,
)
from chainrule._errors import (
    DecodeError,
    NotGrantedError,
    StorageError,
    TransportError,
    missing_dependency,
)

_REFERENCE = re.compile(
    r"(?P<path>.+?)(?::(?P<offset>\d{1,18})(?::(?P<size>\d{1,18}))?)?", re.DOTALL
)


@dataclass(frozen=True)
class Reference:
    """Where the bytes of an array lie: a path or address, an offset, and a size when compressed."""

    path: str
    offset: int = 0
    stored_nbytes: int | None = None

    @classmethod
    def parse(cls, text: Any) -> Reference:
        """Read the text form; the shortest path that leaves only numbers behind it wins."""
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DecodeError(
                "Expected a file reference like 'folder/name.bin:0'; found "
                f"{'other text' if isinstance(text, str) else type(text).__name__}.",
                code="array_decode_error",
            )
        size = match["size"]
        return cls(match["path"], int(match["offset"] or 0), None if size is None else int(size))

    def __str__(self) -> str:
        size = "" if self.stored_nbytes is None else f":{self.stored_nbytes}"
        return f"{self.path}:{self.offset}{size}"


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
        # O_NONBLOCK is for a pipe in its place, whose opening would wait for a writer.
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


def read_binref(
    reference: Reference,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    compression: Any,
    grants: Grants,
) -> np.ndarray[Any, Any]:
    """Read exactly the bytes of one array.

    Raises:
        NotGrantedError: the reference lies outside the grants.
        DecodeError: no such file, or it is too short.
    """
    nbytes = expected_bytes(shape, dtype)
    stored = nbytes if compression is None else reference.stored_nbytes
    if stored is None:
        raise DecodeError(
            "A compressed file reference needs its stored size: '<path>:<offset>:<size>'.",
            code="array_decode_error",
        )
    content = _read(reference, stored, grants)
    if compression is not None:
        content = decompress(content, compression, nbytes)
    return from_wire(content, shape, dtype)


def _read(reference: Reference, nbytes: int, grants: Grants) -> Any:
    if is_url(reference.path):
        return _read_remote(grants.check_url(reference.path), reference.offset, nbytes)
    descriptor = grants.open_input(reference.path)
    try:
        available = os.fstat(descriptor).st_size - reference.offset
        if available < nbytes:
            raise _too_short(nbytes, available)
        # Read, not mapped: a file that shrinks under a mapping kills the process.
        content = np.empty(nbytes, np.uint8)
        if _read_into(descriptor, content.data, reference.offset) != nbytes:
            raise _too_short(nbytes, available)
        return content
    finally:
        os.close(descriptor)


def _read_into(descriptor: int, target: memoryview, offset: int) -> int:
    filled = 0
    while filled < len(target):
        count = os.preadv(descriptor, [target[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def _too_short(nbytes: int, available: int) -> DecodeError:
    return DecodeError(
        f"The referenced file has {max(available, 0)} bytes from the offset on, {nbytes} are needed.",
        code="array_decode_error",
        details={"expected_nbytes": nbytes, "nbytes": max(available, 0)},
    )


@dataclass(frozen=True)
class BinrefArray:
    """A reference to an array in a file below the output folder.

    It can be returned for any array field. With the format `json+binref` the reference itself is sent;
    other formats load the array first.

    Attributes:
        reference: path below `folder`, offset, and stored size when compressed.
        shape: shape of the array.
        dtype: wire name of its dtype.
        compression: `"lz4"`, `"zstd"` or `None`.
        folder: the folder that the path is relative to.
    """

    reference: Reference
    shape: tuple[int, ...]
    dtype: str
    compression: str | None
    folder: Path

    @classmethod
    def from_file(
        cls,
        path: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        folder: str | os.PathLike[str],
        offset: int = 0,
        compression: str | None = None,
        compressed_size: int | None = None,
    ) -> BinrefArray:
        """Refer to bytes that are already in a file below `folder`.

        Raises:
            NotGrantedError: the path leads out of the folder.
            DecodeError: the file is missing or too short.
        """
        array = cls(
            Reference(path, offset, compressed_size), tuple(shape), dtype, compression, Path(folder)
        )
        needed = compressed_size
        if needed is None:
            needed = expected_bytes(array.shape, dtype_from_name(dtype))
        size = Grants(input_dir=array.folder).input_file(path).stat().st_size
        if size < offset + needed:
            array.load()  # raises, with the sizes
        return array

    @property
    def buffer(self) -> str:
        """The reference as text, as it stands in `data.buffer` of an encoded array."""
        return str(self.reference)

    def load(self) -> np.ndarray[Any, Any]:
        """Read the array; the result is read-only."""
        return read_binref(
            self.reference,
            self.shape,
            dtype_from_name(self.dtype),
            self.compression,
            Grants(input_dir=self.folder),
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.load(), dtype=dtype, copy=copy)


_MAX_FILE_BYTES = 100 * (1 << 20)
_STORAGE_CODES = {
    errno.ENOSPC: "storage_full",
    errno.EDQUOT: "storage_full",
    errno.EROFS: "storage_read_only",
    errno.EACCES: "storage_read_only",
    errno.EPERM: "storage_read_only",
}


class BinrefWriter:
    """Writes arrays below an output folder and returns references to them.

    The folder is created at the first write. Leaving the `with` block gives the files their final
    names; leaving it by an exception removes them.

    Args:
        folder: the granted output folder; references are relative to it.
        run: name of the subfolder for this run (`run_<id>` over HTTP), or empty for the folder itself.
        max_file_size: a new file is started once the current one is larger than this.
        compression: `"lz4"`, `"zstd"` or `None`.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with BinrefWriter(folder) as writer:
        ...         reference = writer.write(np.arange(3.0))
        ...     reference.load().tolist()
        [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        run: str = "",
        max_file_size: int = _MAX_FILE_BYTES,
        compression: str | None = None,
    ) -> None:
        self._root = Path(folder)
        self._run = run
        self._max_file_size = max_file_size
        self._compression = compression
        self._file: IO[bytes] | None = None
        self._offset = 0
        self._pending: list[tuple[Path, Path]] = []

    def write(self, array: Any, *, compression: str | None = None) -> BinrefArray:
        """Append one array.

        Raises:
            StorageError: the folder is full, read-only or gone; what was written so far is removed.
        """
        wire = to_wire(array)
        name = dtype_name(wire.dtype)
        compression = compression or self._compression
        content: Any = raw_bytes(wire)
        if compression is not None:
            content = compress(content, compression)
        try:
            reference = self._append(content, stored=compression is not None)
        except OSError as error:
            self.abort()
            raise _storage_error(error) from error
        return BinrefArray(reference, wire.shape, name, compression, self._root)

    def close(self) -> None:
        """Give every file its final name. Closing twice is fine."""
        try:
            self._finish_file()
            while self._pending:
                temporary, final = self._pending[-1]
                os.replace(temporary, final)
                self._pending.pop()
        except OSError as error:
            self.abort()
            raise _storage_error(error) from error

    def abort(self) -> None:
        """Remove what has not been given its final name."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        for temporary, _ in self._pending:
            with contextlib.suppress(OSError):  # the folder is gone or has become read-only
                temporary.unlink()
        self._pending.clear()

    def __enter__(self) -> BinrefWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _append(self, content: Any, *, stored: bool) -> Reference:
        if self._file is not None and self._offset > self._max_file_size:
            self._finish_file()
        file = self._file or self._start_file()
        offset = self._offset
        _write_all(file, memoryview(content))
        self._offset += len(content)
        name = self._pending[-1][1].name
        path = f"{self._run}/{name}" if self._run else name
        return Reference(path, offset, len(content) if stored else None)

    def _start_file(self) -> IO[bytes]:
        folder = self._root / self._run
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4()}.bin"
        temporary = folder / f".{name}.part"
        self._pending.append((temporary, folder / name))
        self._file = open(temporary, "xb", buffering=0)  # noqa: SIM115 - lives as long as the writer
        self._offset = 0
        return self._file

    def _finish_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _write_all(file: IO[bytes], content: memoryview) -> None:
    while content.nbytes:
        content = content[file.write(content) :]


def _storage_error(error: OSError) -> StorageError:
    code = _STORAGE_CODES.get(error.errno or 0, "storage_failed")
    return StorageError(
        f"Results could not be written to the output folder ({os.strerror(error.errno or 0)}). Nothing "
        "was left behind. Make room, or ask for an inline format such as json+base64.",
        code=code,
    )


_TIMEOUT_S = 30.0


def _read_remote(url: str, offset: int, nbytes: int) -> bytes:
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
    # Imported here: these bring in TLS and HTTP, which few components need.
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any, **kwargs: Any) -> None:
            return None

    opener = urllib.request.build_opener(NoRedirect)
    # Both ends of a range belong to it, so that none has no bytes: of an empty array one is asked for, and
    # not read.
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
        raise missing_dependency("Addresses other than http(s) need", "fsspec", "fsspec") from None
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
