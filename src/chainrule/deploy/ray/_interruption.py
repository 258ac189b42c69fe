"""A replica breaks off the call under way when its caller has given it up.

Ray itself cannot: it takes back calls that wait in an actor, but lets one that runs go on. So callers leave
word with the pool's keeper, and every replica looks there while a call lasts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from chainrule.serve.internal import Cancelled

_LOOK_EVERY_S = 0.2
_GRACE_S = 1.0


class Interruption:
    """Watches over the calls of one replica. Made by the main thread, on which Ray runs an actor's calls.

    A signal is what breaks into Python code, even where it sleeps. Code that is not back in Python within
    the grace ends with its process; Ray starts another one.

    Args:
        replica: its id.
        keeper: of the pool, with whom callers leave word.
    """

    def __init__(self, replica: str, keeper: Any) -> None:
        self._replica, self._keeper = replica, keeper
        self._current: str | None = None
        self._unwanted: str | None = None
        signal.signal(signal.SIGUSR1, self._on_signal)
        threading.Thread(target=self._watch, name="chainrule-interruption", daemon=True).start()

    @contextmanager
    def watching(self, call: str | None) -> Iterator[None]:
        """Let a call be given up while the block runs; it then ends with `Cancelled`.

        Args:
            call: by which its caller would name it; `None` when nobody would.
        """
        self._current = call
        try:
            yield
        finally:
            self._current = None

    def _on_signal(self, *_: Any) -> None:
        # Meanwhile the call may have ended, and another one begun.
        if self._current is not None and self._current == self._unwanted:
            self._current = None
            raise Cancelled

    def _watch(self) -> None:
        before = None
        while True:
            time.sleep(_LOOK_EVERY_S)
            call = self._current
            # A call that has just begun will be over soon: only the others are worth a message.
            if call is not None and call == before and self._is_given_up(call):
                self._break_off(call)
            before = call

    def _is_given_up(self, call: str) -> bool:
        try:
            return ray.get(self._keeper.look.remote(self._replica, call), timeout=5.0)
        except RayError:
            return False  # the keeper is being started again; the next look finds it

    def _break_off(self, call: str) -> None:
        self._unwanted = call
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        deadline = time.monotonic() + _GRACE_S
        while self._current == call:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.01)
