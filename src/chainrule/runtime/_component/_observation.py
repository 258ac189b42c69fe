"""What an operator can see of a component's calls: profiles, traces, and what the component prints.

    chainrule.runtime.profile    a profile of every call, by cumulative and by own time (a log record)
    chainrule.runtime.trace      the payload and the result of every call, arrays abbreviated (a log record)
    logs/tesseract.log           what is printed, kept with the run, beside `metrics.csv` and `artifacts/`

For the last one the streams of the whole process are redirected while a call runs, at the level of file
descriptors, so that output of C libraries and child processes is kept too. That is for processes that
answer one call at a time.
"""

from __future__ import annotations

import cProfile
import io
import json
import logging
import os
import pstats
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chainrule._trees import is_arraylike
from chainrule.runtime._component._handlers import Handler, Payload
from chainrule.runtime._component._schemas import Context
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import current_run

_profile_log = logging.getLogger("chainrule.runtime.profile")
_trace_log = logging.getLogger("chainrule.runtime.trace")
_ROWS = 30
_SHOWN = 10


def observed(name: str, handler: Handler, config: ComponentConfig) -> Handler:
    """The handler with the observations that its component's settings ask for."""
    if config.profiling:
        handler = _profiled(name, handler)
    if config.tracing:
        handler = _traced(name, handler)
    return _keeping_output(handler) if config.keep_output else handler


def _profiled(name: str, handler: Handler) -> Handler:
    def handle(payload: Payload, context: Context) -> Any:
        profile = cProfile.Profile()
        try:
            return profile.runcall(handler, payload, context)
        finally:
            _profile_log.info("%s\n%s", name, _profile_text(profile))

    return handle


def _profile_text(profile: cProfile.Profile) -> str:
    stream = io.StringIO()
    stream.write("--- Profiling Statistics ---\n")
    for order in ("cumulative", "tottime"):
        pstats.Stats(profile, stream=stream).sort_stats(order).print_stats(_ROWS)
    return stream.getvalue()


def _traced(name: str, handler: Handler) -> Handler:
    def handle(payload: Payload, context: Context) -> Any:
        _trace_log.info("%s called with %s", name, _abbreviated(payload))
        result = handler(payload, context)
        _trace_log.info("%s returned %s", name, _abbreviated(result))
        return result

    return handle


def _abbreviated(tree: Any) -> str:
    return json.dumps(_short(tree), default=str)


def _short(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _short(value) for key, value in node.items()}
    if isinstance(node, (list, tuple, set, frozenset)):
        return [_short(item) for item in list(node)[:_SHOWN]] + ["…"] * (len(node) > _SHOWN)
    if is_arraylike(node):
        flat = np.asarray(node).ravel()
        values = flat[:_SHOWN].tolist() + ["…"] * (flat.size > _SHOWN)
        return {"shape": list(node.shape), "dtype": str(node.dtype), "values": values}
    return node


# How long to wait for the rest of the output. A process that the author left running may keep the pipe open.
_LAST_WORDS_S = 2.0


def _keeping_output(handler: Handler) -> Handler:
    def handle(payload: Payload, context: Context) -> Any:
        run = current_run.get()
        assert run is not None, "an endpoint is called in a run"
        with keep_output(run.folder):
            return handler(payload, context)

    return handle


@contextmanager
def keep_output(folder: Path) -> Iterator[None]:
    """Copy what is written to standard output and standard error into `logs` of a folder, and pass it on."""
    logs = folder / "logs"
    (logs / "artifacts").mkdir(parents=True, exist_ok=True)
    (logs / "metrics.csv").write_text("timestamp,key,value,step\n", encoding="utf-8")
    file = logs / "tesseract.log"
    source, sink = os.pipe()
    real = os.dup(1), os.dup(2)
    # A daemon: a child process of the author's may keep the pipe open after the call.
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
