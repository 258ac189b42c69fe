"""`chainrule serve --reload`: a server that starts again when a file of its components changes.

The server is a process of its own, so that it begins with fresh modules. A server that does not start, for
example because a file is not Python, waits for the next change.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._output import write_error
from chainrule.cli._sources import check_exists, component_file

_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".json", ".so", ".c")
_MOST_FILES = 5000
_EVERY_S = 0.5
_STOP_S = 30.0

Times = Mapping[Path, int]
"""File → when it was changed last."""


def serve_again(components: Sequence[str], words: Sequence[str]) -> int:
    """Run `chainrule serve` with these words until a signal; start it again after every change."""
    for component in components:
        if component.startswith("pool:"):
            raise InputError(
                f"--reload watches files of components; {component} has none.", code="bad_option"
            )
        check_exists(component)
    folders = [_folder(component_file(component)) for component in components]
    again = [word for word in words if word != "--reload"]
    with _terminations_as_interrupts(), suppress(KeyboardInterrupt):
        while True:
            seen = change_times(folders)
            with _running([sys.executable, "-m", "chainrule", "serve", *again]):
                changed = _wait_for_change(folders, seen)
            write_error(f"{changed} changed; starting again\n")
            again = [word for word in again if word != "--open"]  # the page is open already
    return 0


def _folder(file: Path) -> Path:
    return file if file.is_dir() else file.parent


def change_times(folders: Iterable[Path]) -> Times:
    """When the files in some folders were changed last; hidden and very many files are left out."""
    found = {}
    for folder in folders:
        files = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
        shown = (path for path in files if not any(p.startswith(".") for p in path.parts[1:]))
        for path in islice(shown, _MOST_FILES):
            with suppress(OSError):
                found[path] = path.stat().st_mtime_ns
    return found


def _wait_for_change(folders: Sequence[Path], seen: Times) -> Path:
    while True:
        sleep(_EVERY_S)
        now = change_times(folders)
        changed = [path for path in {**seen, **now} if seen.get(path) != now.get(path)]
        if changed:
            return changed[0]


@contextmanager
def _running(command: Sequence[str]) -> Any:
    """A process that is stopped at the end, in order."""
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _terminations_as_interrupts() -> Any:
    """Let SIGTERM end this process as Ctrl-C does, so that the server ends with it."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
