"""Our sources in C, built on first use where there is a compiler."""

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
from pathlib import Path

from chainrule._folders import cache_folder
from chainrule._whole_files import whole_file

_LOG = logging.getLogger(__name__)
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-pthread")


@functools.cache
def load_c_library(source: Path) -> ctypes.CDLL | None:
    """The library, built once per source and kept in the user's cache; `None` when it cannot be."""
    compiler = (
        shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        return None
    facts = " ".join((*_FLAGS, platform.machine()))  # a home may be shared by different machines
    try:
        identity = hashlib.sha256(source.read_bytes() + facts.encode()).hexdigest()[:24]
        library = cache_folder("engines", f"{identity}.so")
        with contextlib.suppress(OSError):  # not there, or damaged
            return ctypes.CDLL(str(library))
        _compile(compiler, source, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.info("%s could not be built: Python does its work (%s)", source.name, error)
        return None


def _compile(compiler: str, source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(library) as target:
        command = [compiler, *_FLAGS, str(source), "-o", str(target), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
