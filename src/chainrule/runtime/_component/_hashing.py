"""The content hash: two components with the same hash compute the same thing.

It covers the source of the component itself: a module file and the neighbours it imported, a function's
code with its defaults and what it closes over, a command with its executable. It does not cover installed
packages or data files; an author who changes those changes the version.
"""

from __future__ import annotations

import hashlib
import pickle
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any


def hash_parts(parts: Iterable[tuple[str, bytes]]) -> str:
    """A hash over named pieces of content; lengths are hashed too, so that pieces cannot run together."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in parts:
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """A hash over files under the names that matter, in the order of these names."""
    return hash_parts((name, path.read_bytes()) for name, path in sorted(files))


def hash_function(function: Callable[..., Any]) -> str:
    """A hash over a function's code, its defaults and the values it closes over.

    A captured value that cannot be pickled makes the hash unique: better never equal than equal by
    mistake.
    """
    code = getattr(function, "__code__", None)
    parts = [("name", getattr(function, "__qualname__", repr(function)).encode())]
    if code is None:
        return hash_parts([*parts, ("object", _freeze(function))])
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    state = (function.__defaults__, function.__kwdefaults__, captured)
    return hash_parts([*parts, ("code", _code_bytes(code)), ("state", _freeze(state))])


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts
    ]
    return b"\0".join([code.co_code, *constants, " ".join(code.co_names).encode()])


def _freeze(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        return uuid.uuid4().bytes
