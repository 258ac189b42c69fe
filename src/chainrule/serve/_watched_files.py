"""Files that a running server reads again when they change: tokens, certificate and key.

A changed file is noticed by its inode, time and size, through symbolic links: this is how Kubernetes replaces
the files of a Secret. A file that cannot be used leaves what was read before in force.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from chainrule._errors import ChainruleError

_log = logging.getLogger(__name__)

_EVERY_S = 2.0

_State = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """Files that belong together and are read together.

    Args:
        name: how logs and metrics call them, in one word.
        files: their paths.
        load: reads them and puts what they say into force, all of it or nothing. It is called once here, and
            its exceptions are raised; later they are logged.

    Attributes:
        name: see above.
        loaded: how often they were read again.
        failed: how often a change could not be used.
        is_current: whether what is in force is what the files say.
    """

    def __init__(self, name: str, files: Sequence[Path], load: Callable[[], None]) -> None:
        self.name = name
        self.loaded = 0
        self.failed = 0
        self.is_current = True
        self._files = files
        self._load = load
        self._seen = self._state()
        load()

    def look(self) -> bool:
        """Read the files again if they have changed; whether something new is in force.

        Called on the event loop: the files are small, and most often only `stat` is called.
        """
        # The state is taken before the content. A change while they are read is seen by the next look.
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self._load()
        except ChainruleError as error:
            self.failed += 1
            self.is_current = False
            _log.error(
                "The %s files have changed and cannot be used. What was read before stays in force. %s",
                self.name,
                error.message,
            )
            return False
        self.loaded += 1
        self.is_current = True
        _log.info("The %s files have changed and were read again.", self.name)
        return True

    def _state(self) -> _State:
        return tuple(map(_state_of, self._files))


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


async def keep_looking(watched: Sequence[WatchedFiles]) -> None:
    """Look at files every few seconds, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        for files in watched:
            files.look()
