"""podman or docker, used through the command line, which both have, with and without a daemon.

`CHAINRULE_ENGINE` names the engine where a caller does not, and `CHAINRULE_BUILD_ARGS` and
`CHAINRULE_RUN_ARGS` are further arguments for its `build` and `run`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import CapabilityError, InputError, TransportError

_KNOWN = ("podman", "docker")
_TAIL = 60


@dataclass(frozen=True)
class Engine:
    """A container engine.

    Attributes:
        kind: `podman` or `docker`.
        command: how it is called.
        build_args: further arguments of its `build`.
        run_args: further arguments of its `run`.
    """

    kind: str
    command: tuple[str, ...]
    build_args: tuple[str, ...] = ()
    run_args: tuple[str, ...] = ()

    def ask(self, *arguments: str) -> str:
        """What a command of the engine writes on standard output.

        Raises:
            TransportError: it failed (`engine_failed`).
        """
        done = self.run(arguments)
        if done.returncode:
            raise self._failed(arguments, done.stderr)
        return done.stdout.strip()

    def succeeds(self, *arguments: str) -> bool:
        """Whether a command of the engine succeeds."""
        return self.run(arguments).returncode == 0

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        """Everything that the engine tells about a container or an image."""
        return json.loads(self.ask(kind, "inspect", name))[0]

    def log(self, container: str, lines: int | None = None) -> str:
        """The output of a container, errors included."""
        tail = [] if lines is None else ["--tail", str(lines)]
        done = self.run(["logs", *tail, container], merged=True)
        if done.returncode:
            raise self._failed(["logs", container], done.stdout)
        return done.stdout

    def stream(
        self, arguments: Sequence[str], on_line: Callable[[str], Any]
    ) -> tuple[int, list[str]]:
        """Run a command and pass on every line at once.

        Returns:
            The exit code, and the last lines.
        """
        tail: deque[str] = deque(maxlen=_TAIL)
        with subprocess.Popen(
            [*self.command, *arguments],
            # Selects, in older docker, the builder that supports mounts and secrets.
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tail.append(line.rstrip("\n"))
                on_line(tail[-1])
        return process.returncode, list(tail)

    def pass_through(self, *arguments: str) -> int:
        """Run a command on the streams of this process; return its exit code."""
        return subprocess.run([*self.command, *arguments], check=False).returncode

    def run(
        self, arguments: Sequence[str], *, merged: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine and keep its output; errors separately unless `merged`."""
        return subprocess.run(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )

    def _failed(self, arguments: Sequence[str], said: str) -> TransportError:
        return TransportError(
            f"`{self.kind} {' '.join(arguments[:2])}` failed: {said.strip()[-1000:]}",
            code="engine_failed",
            details={"engine": self.kind, "command": arguments[0]},
        )


def find_engine(name: str | None = None) -> Engine:
    """The engine to use.

    Args:
        name: `podman`, `docker`, or the path of one of them; `CHAINRULE_ENGINE`, or the first one that
            is installed, when not given.

    Raises:
        CapabilityError: no engine was found (`engine_missing`).
        InputError: it is neither podman nor docker (`unknown_engine`).
    """
    wanted = shlex.split(name or os.environ.get("CHAINRULE_ENGINE", ""))
    if not wanted:
        wanted = [found for found in _KNOWN if shutil.which(found)][:1]
    if not wanted or shutil.which(wanted[0]) is None:
        raise CapabilityError(
            f"Images need a container engine; {' '.join(wanted) or 'podman or docker'} is not "
            "installed. `chainrule image build --generate-only` writes the build files without one.",
            code="engine_missing",
        )
    kind = next((kind for kind in _KNOWN if Path(wanted[0]).name.startswith(kind)), None)
    if kind is None:
        raise InputError(f"Expected podman or docker; found {wanted[0]!r}.", code="unknown_engine")
    build_args, run_args = (
        tuple(shlex.split(os.environ.get(f"CHAINRULE_{verb}_ARGS", "")))
        for verb in ("BUILD", "RUN")
    )
    return Engine(kind, tuple(wanted), build_args, run_args)
