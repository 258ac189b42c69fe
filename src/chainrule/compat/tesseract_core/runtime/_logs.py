"""The log folder of one call on the command line, laid out as the ancestor does.

logs/tesseract.log    what was printed, with profile and trace where they are asked for
logs/metrics.csv      metrics, a header at least
logs/artifacts/       files that the component keeps
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from chainrule._errors import InputError
from chainrule.compat.tesseract_core.runtime._settings import RuntimeConfig
from chainrule.runtime.internal import copied_to, new_logs

_OBSERVATIONS = ("chainrule.runtime.profile", "chainrule.runtime.trace")


@contextmanager
def logged(settings: RuntimeConfig) -> Iterator[None]:
    """Keep what is printed in the body. A call that is refused leaves no folder behind."""
    logs = settings.output_path / "logs"
    was_there = logs.exists()
    new_logs(settings.output_path)
    try:
        with copied_to(logs / "tesseract.log"), _observations_shown():
            yield
    except InputError:
        if not was_there:
            shutil.rmtree(logs)
        raise


@contextmanager
def _observations_shown() -> Iterator[None]:
    """Print profiles and traces, which are log records, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    loggers = [logging.getLogger(name) for name in _OBSERVATIONS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
