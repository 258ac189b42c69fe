"""What is known of a job, as one immutable row."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
FINAL = frozenset(("succeeded", "failed", "cancelled"))


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A call that was taken on.

    Attributes:
        id: random, part of the job's address.
        component, endpoint: what is called.
        run_id: what its files and log lines are known by.
        content_type, content_encoding, accept: of the request.
        traceparent: the caller's place in its trace.
        idempotency_key: by which a caller asks again for the same job.
        body_digest: tells whether a second request with the key is the same request.
        state: where it stands. It moves forward only.
        fraction, message: what the component last said of its progress; what has succeeded is at 1.
        submitted_at, started_at, finished_at: seconds since the epoch.
        error_code, error_message: why it failed.
        result_status, result_type: of the stored answer.
        result_bytes: its size; `None` when there is none (any more).
        result_digest: tells whether what is read later is what was stored.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    component: str
    endpoint: str
    run_id: str
    content_type: str
    content_encoding: str = ""
    accept: str | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None
    body_digest: str = ""
    state: State = "queued"
    fraction: float | None = None
    message: str | None = None
    submitted_at: float = field(default_factory=time.time)
    started_at: float | None = None
    finished_at: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    result_status: int | None = None
    result_type: str | None = None
    result_bytes: int | None = None
    result_digest: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in FINAL

    def to_json(self, queue_position: int | None = None) -> dict[str, Any]:
        """The job object that callers see."""
        error = None
        if self.error_code is not None:
            error = {"code": self.error_code, "message": self.error_message}
        return {
            "id": self.id,
            "component": self.component,
            "endpoint": self.endpoint,
            "run_id": self.run_id,
            "state": self.state,
            "fraction": self.fraction,
            "message": self.message,
            "queue_position": queue_position,
            "submitted_at": _iso(self.submitted_at),
            "started_at": _iso(self.started_at),
            "finished_at": _iso(self.finished_at),
            "error": error,
        }


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
