"""How long calls of a target took, for plans of Jacobians that are priced by measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Running means, in seconds per evaluation or per vector. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, tuple[float, int]] = {}

    @contextmanager
    def of(self, request: str, count: int = 1) -> Iterator[None]:
        """Measure a request of so many vectors. One that fails does not count."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        with self._lock:
            total, number = self._totals.get(request, (0.0, 0))
            self._totals[request] = total + seconds, number + count

    def means(self) -> dict[str, float]:
        """Request → mean."""
        with self._lock:
            return {name: total / number for name, (total, number) in self._totals.items()}
