"""Building the engine in C on first use, where there is a compiler."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from chainrule._folders import cache_folder

__all__ = ["load_library"]

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("_engine.c")
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library, built once per source and kept in the user's cache; `None` when it cannot be."""
    compiler = (
        shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        return None
    facts = " ".join((*_FLAGS, platform.machine()))  # a home may be shared by different machines
    identity = hashlib.sha256(_SOURCE.read_bytes() + facts.encode()).hexdigest()[:24]
    try:
        library = cache_folder("engines", f"{identity}.so")
        with contextlib.suppress(OSError):  # not there, or damaged
            return ctypes.CDLL(str(library))
        _compile(compiler, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.info("order search runs in Python: the engine in C could not be built (%s)", error)
        return None


def _compile(compiler: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        target = Path(folder) / library.name
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(target), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(target, library)
