"""Servers that start in no time: one process has everything imported, and forks a server when it is asked to.

Run as a program it reads lines of JSON: `{"source": …, "port": …, "options": {…}}`, and answers each with the
pid and the URL of a new server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("served_component.py")


@dataclass
class Served:
    """A server in a process of its own."""

    pid: int
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


class Farm:
    """Starts servers; all of them end with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()

    def start(self, source: object = SOURCE, port: int = 0, **options: object) -> Served:
        """A new server, once it answers."""
        line = json.dumps({"source": str(source), "port": port, "options": options})
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            return Served(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(300)


def _serve(request: dict[str, object], pipe: int) -> None:
    from chainrule.serve import serve

    def tell(url: str) -> None:
        os.write(pipe, json.dumps({"pid": os.getpid(), "url": url}).encode() + b"\n")
        os.close(pipe)

    settings = {"workers": 0, "grace_s": 1, "same_host": False} | request["options"]
    serve(request["source"], port=request["port"], on_ready=tell, **settings)


def _main() -> None:
    from chainrule.runtime import load_component

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for a server that is killed
    load_component(SOURCE)
    pids = []
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(reading)
            os.close(0)
            _serve(json.loads(line), writing)
            os._exit(0)
        pids.append(pid)
        os.close(writing)
        with os.fdopen(reading) as answers:
            sys.stdout.write(answers.readline())
            sys.stdout.flush()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main()
