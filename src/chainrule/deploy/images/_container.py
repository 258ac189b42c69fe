"""A running container: started on a free port of loopback, waited for, and removed whatever happens.

A container that is *owned* ends with its owner, the object or the process: see `_watchdog`. One that is not
stays until somebody stops it. Every container of an image of ours has a token of its own, in a folder that
only the user can enter, so that a later process of the same user can find the container and call it.
"""

from __future__ import annotations

import http.client
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule import _folders
from chainrule._errors import CapabilityError, InputError, StorageError, TransportError
from chainrule.deploy.images._engine import Engine
from chainrule.deploy.images._image import ComponentImage, RunOptions
from chainrule.deploy.images._plan import TOKEN_FILE

_WATCHDOG = Path(__file__).with_name("_watchdog.py")
_ATTEMPTS = 5


class Container:
    """A container that answers calls.

    Attributes:
        name: by which the engine knows it.
        image: that it was started from.
        url: where it answers.
        token: that it asks for; `None` for a Tesseract's image, which knows no tokens.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        image: str,
        *,
        port: int,
        token: str | None,
        watchdog: subprocess.Popen[bytes] | None,
    ) -> None:
        self.engine, self.name, self.image, self.token = engine, name, image, token
        self.url = f"http://127.0.0.1:{port}"
        self._finalizer = None if watchdog is None else weakref.finalize(self, _release, watchdog)

    def __repr__(self) -> str:
        return f"<Container {self.name} of {self.image} at {self.url}>"

    @property
    def is_running(self) -> bool:
        """Whether it is still there and running."""
        facts = inspect_container(self.engine, self.name)
        return facts is not None and facts["State"]["Running"]

    def log(self, lines: int | None = None) -> str:
        """What it has written."""
        return self.engine.log(self.name, lines)

    def close(self) -> None:
        """Remove it if it is owned; leave it otherwise."""
        if self._finalizer is not None:
            self._finalizer()

    def stop(self) -> None:
        """Remove it, owned or not."""
        if self._finalizer is not None:
            self._finalizer()
        else:
            remove_container(self.engine, self.name)


def start_container(
    image: str,
    options: RunOptions,
    *,
    engine: Engine,
    owned: bool = True,
    port: int | None = None,
    startup_timeout: float = 120.0,
) -> Container:
    """Start a container and wait until it answers.

    Args:
        image: its name.
        options: what the container is given.
        engine: podman or docker.
        owned: whether it ends with the returned object and with this process.
        port: of loopback; a free one when not given.
        startup_timeout: seconds that it may take to answer.

    Raises:
        CapabilityError: there is no such image, or no devices for it (`image_missing`,
            `gpus_unavailable`).
        TransportError: it did not start, ended, or did not answer in time; with its log.
    """
    found = ComponentImage.find(engine, image)
    for _ in range(_ATTEMPTS if port is None else 0):
        chosen = free_port()
        try:
            return _start(found, image, options, engine, chosen, owned, startup_timeout)
        except TransportError:
            # Between the choice of a port and its use somebody else may have taken it.
            if is_free(chosen):
                raise
    return _start(found, image, options, engine, port or free_port(), owned, startup_timeout)


def _start(
    found: ComponentImage,
    image: str,
    options: RunOptions,
    engine: Engine,
    port: int,
    owned: bool,
    startup_timeout: float,
) -> Container:
    name = f"chainrule-{secrets.token_hex(6)}"
    folder = state_folder() / name
    token = _write_token(folder, is_asked_for=found.is_native)
    # First the one that cleans up, then what is to be cleaned up.
    watchdog = _watch(engine, name, folder) if owned else None
    container = Container(engine, name, image, port=port, token=token, watchdog=watchdog)
    host = "127.0.0.1" if options.network == "host" else "0.0.0.0"
    publish = [] if options.network == "host" else ["--publish", f"127.0.0.1:{port}:{port}"]
    labels = {"chainrule.container": found.component, "chainrule.port": str(port)}
    labels |= {"chainrule.image": found.id, "chainrule.owned": str(owned).lower()}
    try:
        _run(
            engine, options,
            "run", "--detach", "--name", name, *_labels(labels), *publish, *_protection(found, folder),
            "--env", f"CHAINRULE_PORT={port}",
            *options.arguments(engine, **found.folders), image,
            *found.serve_command(host, port, options.workers),
        )  # fmt: skip
        wait_until_ready(engine, name, port, startup_timeout)
    except BaseException:
        container.stop()
        raise
    return container


def _run(engine: Engine, options: RunOptions, *arguments: str) -> None:
    try:
        engine.ask(*arguments)
    except TransportError as error:
        if not options.gpus:
            raise
        is_here = "is" if Path("/dev/nvidiactl").exists() else "is not"
        raise CapabilityError(
            f"{error.message}\nIt was asked for gpus={options.gpus!r}. That needs the NVIDIA driver "
            f"(/dev/nvidiactl {is_here} here) and the NVIDIA container toolkit; podman needs its CDI files, "
            "made by `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`. Without gpus the component "
            "runs on the CPU.",
            code="gpus_unavailable",
        ) from error


def _labels(labels: Mapping[str, str]) -> list[str]:
    return [part for key, value in labels.items() for part in ("--label", f"{key}={value}")]


def _protection(image: ComponentImage, folder: Path) -> list[str]:
    """What our own images do without; others may rely on it. The readiness is asked for from outside."""
    if not image.is_native:
        return []
    token = ["--volume", f"{folder / 'token'}:{TOKEN_FILE}:ro"]
    return [*token, "--cap-drop", "all", "--security-opt", "no-new-privileges"]


def _write_token(folder: Path, *, is_asked_for: bool) -> str | None:
    """A new token. The folder is closed to others; the file is open, for the container's user to read."""
    try:
        folder.mkdir(mode=0o700, parents=True)
        if not is_asked_for:
            return None
        token = secrets.token_urlsafe(32)
        file = folder / "token"
        file.write_text(token)
        file.chmod(0o444)
    except OSError as error:
        raise StorageError(
            f"Cannot keep the container's token in {folder}: {error.strerror}. XDG_STATE_HOME can name "
            "another place."
        ) from error
    return token


def _watch(engine: Engine, name: str, folder: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for the owner, not for the one that cleans up.
    return subprocess.Popen(
        [sys.executable, "-I", str(_WATCHDOG), str(folder), name, *engine.command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _release(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait()


_PAUSE_S = 0.05
_LOOK_EVERY_S = 0.5
_SHOWN_LINES = 40


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a port of loopback can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_until_ready(engine: Engine, name: str, port: int, timeout_s: float) -> None:
    """Wait until a container answers.

    Raises:
        TransportError: it ended (`container_failed`) or took too long (`startup_timeout`); its last lines
            are in the message.
    """
    start = looked = time.monotonic()
    while not _answers(port):
        now = time.monotonic()
        if now - looked > _LOOK_EVERY_S:
            looked = now
            _check_running(engine, name)
        if now - start > timeout_s:
            raise TransportError(
                f"The container did not answer within {timeout_s:g} s. "
                f"Its log:\n{_last_lines(engine, name)}",
                code="startup_timeout",
            )
        time.sleep(_PAUSE_S)
    _check_running(engine, name)  # or another one answers on its port


def _check_running(engine: Engine, name: str) -> None:
    state = engine.inspect("container", name)["State"]
    if not state["Running"]:
        raise TransportError(
            f"The container ended with status {state['ExitCode']}. "
            f"Its log:\n{_last_lines(engine, name)}",
            code="container_failed",
        )


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _last_lines(engine: Engine, name: str) -> str:
    return engine.log(name, _SHOWN_LINES).strip() or "(nothing)"


def state_folder() -> Path:
    """Where the tokens of this user's containers are."""
    return _folders.state_folder("containers")


@dataclass(frozen=True)
class ContainerFacts:
    """A container as a listing shows it.

    Attributes:
        name: by which the engine knows it.
        component: what it serves.
        image_id: that it was started from.
        state: `running`, `exited`, ….
        url: where it answers.
        owned: whether a process will remove it when it ends.
    """

    name: str
    component: str
    image_id: str
    state: str
    url: str
    owned: bool

    @property
    def token(self) -> str | None:
        """Its token, where this user started it."""
        file = state_folder() / self.name / "token"
        return file.read_text() if file.is_file() else None


def list_containers(engine: Engine) -> list[ContainerFacts]:
    """Every container that was started here, dead ones included."""
    template = "{{.Names}}"
    asked = ("ps", "--all", "--filter", "label=chainrule.container", "--format", template)
    found = {name: inspect_container(engine, name) for name in engine.ask(*asked).split()}
    # One that has just been removed is none any more.
    return [_facts(name, facts) for name, facts in found.items() if facts is not None]


def inspect_container(engine: Engine, name: str) -> dict[str, Any] | None:
    """What the engine knows of a container; `None` when there is none of this name."""
    done = engine.run(["container", "inspect", name])
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


def _facts(name: str, facts: Mapping[str, Any]) -> ContainerFacts:
    labels = facts["Config"]["Labels"]
    return ContainerFacts(
        name=name,
        component=labels["chainrule.container"],
        image_id=labels["chainrule.image"],
        state=facts["State"]["Status"],
        url=f"http://127.0.0.1:{labels['chainrule.port']}",
        owned=labels["chainrule.owned"] == "true",
    )


def stop_container(engine: Engine, name: str) -> None:
    """Stop and remove a container of ours.

    Raises:
        InputError: there is no such container (`container_missing`).
    """
    _check_container(engine, name)
    remove_container(engine, name)


def container_log(engine: Engine, name: str, lines: int | None = None) -> str:
    """What a container has written, errors included; its last lines where a number is given.

    Raises:
        InputError: there is no such container (`container_missing`).
    """
    _check_container(engine, name)
    return engine.log(name, lines)


def _check_container(engine: Engine, name: str) -> None:
    if inspect_container(engine, name) is None:
        raise InputError(
            f"There is no container {name!r}. `chainrule image ps` shows those of components.",
            code="container_missing",
        )


def remove_container(engine: Engine, name: str) -> None:
    """Stop and remove a container, if it is there, and its token."""
    engine.run(["stop", "--time", "5", name])
    engine.run(["rm", "--force", name])
    shutil.rmtree(state_folder() / name, ignore_errors=True)
