"""One served component: its facts, its workers, its endpoints on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chainrule.serve._calls import Call, Facts, Reply
from chainrule.serve._pool import Counters, WorkerState
from chainrule.serve._traffic import Traffic

__all__ = ["Pool", "Service"]


class Pool(Protocol):
    """What answers calls: worker processes or a thread."""

    uses_segments: bool
    max_queue: int
    counters: Counters
    traffic: Traffic

    @property
    def queue_length(self) -> int: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def alive(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def workers(self) -> list[WorkerState]: ...
    async def start(self) -> Facts: ...
    async def call(self, call: Call) -> Reply: ...
    async def drain(self, grace_s: float) -> None: ...
    async def stop(self) -> None: ...
    def forget_segment(self, key: str) -> None: ...


@dataclass
class Service:
    """A component behind its pool.

    Attributes:
        name: of the component in URLs.
        pool: what answers.
        facts: known once the pool has started.
    """

    name: str
    pool: Pool
    facts: Facts
