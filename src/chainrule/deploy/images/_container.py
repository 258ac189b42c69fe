"""A running container: started on a free port of loopback, waited for, and removed whatever happens.

A container that is *owned* ends with its owner, the object or the process: see `_watchdog`. One that is not
stays until somebody stops it. Every container of an image of ours has a token of its own, in a folder that
only the user can enter, so that a later process of the same user can find the container and call it.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path

from chainrule._errors import CapabilityError, StorageError, TransportError
from chainrule.deploy.images._engine import Engine
from chainrule.deploy.images._image import ComponentImage
from chainrule.deploy.images._options import RunOptions
from chainrule.deploy.images._plan import TOKEN_FILE
from chainrule.deploy.images._ready import free_port, is_free, wait_until_ready
from chainrule.deploy.images._running import inspect_container, remove_container, state_folder

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
