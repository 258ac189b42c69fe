"""Log lines for machines: one JSON object each, with the run and the trace they belong to."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson

from chainrule._tracing import current_traceparent, is_traced
from chainrule.runtime._runs import current_run


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", "run_id", "trace_id", …}`.

    Fields of a record's `facts` (`log.info(…, extra={"facts": {…}})`) become fields of the object. What
    is not known is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        run = current_run.get()
        if run is not None:
            content["run_id"] = run.run_id
        traceparent = current_traceparent() if is_traced() else None
        if traceparent is not None:
            content["trace_id"] = traceparent.split("-")[1]
        content |= getattr(record, "facts", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(content, default=str).decode()


def log_handler(log_format: str) -> logging.Handler:
    """A handler that writes to standard error.

    Args:
        log_format: `text` or `json`.
    """
    handler = logging.StreamHandler()
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(_TEXT))
    return handler


_TEXT = "%(levelname)s %(message)s"
