"""What a component prints, kept with its run: `logs/tesseract.log`, `logs/metrics.csv` and `logs/artifacts/`.

The streams of the whole process are redirected while a call runs, at the level of file descriptors, so that C
libraries and child processes are heard too. That is for processes that answer one call at a time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chainrule.runtime._component._endpoints import Endpoint, Payload
from chainrule.runtime._component._schemas import Context
from chainrule.runtime._runs import current_run

_LAST_WORDS_S = 2.0


def keeping_output(endpoint: Endpoint) -> Endpoint:
    """The endpoint that keeps what is printed while it runs."""
    return _Kept(endpoint)


class _Kept:
    def __init__(self, endpoint: Endpoint) -> None:
        self.can_batch = endpoint.can_batch
        self._endpoint = endpoint

    def __call__(self, payload: Payload, context: Context) -> Any:
        run = current_run.get()
        assert run is not None, "an endpoint is called in a run"
        with copied_to(new_logs(run.folder) / "tesseract.log"):
            return self._endpoint(payload, context)


def new_logs(folder: Path) -> Path:
    """The folder `logs` in a folder, with everything that is always there."""
    logs = folder / "logs"
    (logs / "artifacts").mkdir(parents=True, exist_ok=True)
    (logs / "metrics.csv").write_text("timestamp,key,value,step\n", encoding="utf-8")
    return logs


@contextmanager
def copied_to(file: Path) -> Iterator[None]:
    """Copy what is written to standard output and standard error into a file, and pass it on."""
    source, sink = os.pipe()
    real = os.dup(1), os.dup(2)
    # A child process that lives on may hold the pipe open; nobody waits for it.
    copier = threading.Thread(target=_copy, args=(source, os.dup(2), file), daemon=True)
    copier.start()
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in zip((1, 2), real, strict=True):
            os.dup2(original, descriptor)
            os.close(original)
        copier.join(_LAST_WORDS_S)


def _copy(source: int, terminal: int, file: Path) -> None:
    with file.open("wb", buffering=0) as log:
        while piece := os.read(source, 1 << 16):
            log.write(piece)
            os.write(terminal, piece)
    os.close(source)
    os.close(terminal)
