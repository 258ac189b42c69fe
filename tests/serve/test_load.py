"""Many callers of every kind while workers are killed: no answer is wrong, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from chainrule._codec import decode_body, decode_frames, encode_body, encode_frames
from chainrule.client import Component
from chainrule.errors import ChainruleError

# The full proof is 20 000 requests: CHAINRULE_LOAD_REQUESTS=20000 make test. CI runs a shorter one.
REQUESTS = int(os.environ.get("CHAINRULE_LOAD_REQUESTS", "2000"))
CALLERS = 8
FRAMES = "application/vnd.chainrule.frames"


class Caller(threading.Thread):
    """Sends requests whose right answers it knows."""

    def __init__(self, served, seed: int, count: int) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._random = random.Random(seed)
        self._count = count
        self._number = seed * 1_000_000.0
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        with (
            contextlib.closing(self._served.connect()) as self._http,
            Component.from_url(self._served.url, retries=0, timeout=60) as self._component,
        ):
            kinds = [self._json, self._frames, self._refused, *[self._shared] * 4]
            for _ in range(self._count):
                self._number += 1
                kind = self._random.choice(kinds)
                try:
                    self._ask(kind)
                except Exception as error:
                    self.wrong.append(f"{kind.__name__}: {error!r}")
                    return

    def _ask(self, kind) -> None:
        """Ask until there is an answer: a caller that was turned away is told so, and asks again."""
        status, is_right = kind()
        while status in (502, 503):
            time.sleep(0.2)
            status, is_right = kind()
        if is_right:
            self.outcomes[kind.__name__] += 1
        else:
            self.wrong.append(f"{kind.__name__}: status {status}")

    def _post(self, body, content_type, accept):
        headers = {"Content-Type": content_type, "Accept": accept}
        self._http.request("POST", "/apply", body, headers)
        answer = self._http.getresponse()
        return answer.status, answer.read(), answer.headers["content-type"]

    def _json(self):
        body = b"".join(encode_body({"inputs": {"x": [self._number]}}))
        status, content, kind = self._post(body, "application/json", "application/json+base64")
        return status, status == 200 and self._fits(decode_body(content, media_type=kind), 1)

    def _frames(self):
        size = self._random.choice([1, 1000, 20_000])
        body = bytes(encode_frames({"inputs": {"x": np.full(size, self._number)}}))
        status, content, _ = self._post(body, FRAMES, FRAMES)
        return status, status == 200 and self._fits(decode_frames(content), size)

    def _refused(self):
        body = self._random.choice([b"{", b"{}", b'{"inputs": {"x": "?"}}', b"[" * 500])
        status, _, _ = self._post(body, "application/json", "*/*")
        return status, status in (413, 422)

    def _fits(self, tree, size: int) -> bool:
        return np.array_equal(tree["y"], np.full(size, 2 * self._number))

    def _shared(self):
        x = np.full(20_000, self._number)  # 160 kB: through shared memory
        try:
            answer = self._component.apply({"x": x})
        except ChainruleError as error:
            return error.details.get("status"), False
        return 200, self._fits(answer, 20_000)


def shared_memory_files(pid: int) -> list[str]:
    """What a server keeps in shared memory under a name; other servers may run meanwhile."""
    return [path.name for path in Path("/dev/shm").glob(f"chainrule-{pid}-*")]


def test_killed_workers_lose_no_acknowledged_answer(start_server, tmp_path, wait_until):
    served = start_server(workers=2, max_queue=64, config={"output_path": str(tmp_path / "out")})
    process = psutil.Process(served.process.pid)
    callers = [Caller(served, seed, REQUESTS // CALLERS) for seed in range(1, CALLERS + 1)]
    for caller in callers:
        caller.start()
    kills = 0
    while any(caller.is_alive() for caller in callers):
        time.sleep(0.01)
        workers = process.children()
        # By what was answered, not by the clock: the callers are at it whenever a worker is killed.
        is_due = sum(caller.outcomes.total() for caller in callers) > (kills + 1) * REQUESTS // 10
        if is_due and len(workers) == 2 and kills < 8:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(workers).pid, signal.SIGKILL)
                kills += 1
    outcomes = sum((caller.outcomes for caller in callers), Counter())
    assert [problem for caller in callers for problem in caller.wrong] == []
    assert outcomes.total() == REQUESTS
    assert set(outcomes) >= {"_json", "_frames", "_refused", "_shared"}
    assert kills > 0
    wait_until(lambda: served.apply().status == 200)
    everyone = [process, *process.children()]
    assert process.num_fds() < 100
    served.stop()
    assert not any(each.is_running() for each in everyone[1:])
    assert shared_memory_files(process.pid) == []
    assert not (tmp_path / "out").exists()
