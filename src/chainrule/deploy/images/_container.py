"""Running containers: started on a free port of loopback, waited for, called, listed and removed.

A container that is *owned* ends with its owner, the object or the process: see `_watchdog`. One that is not
owned stays until it is stopped. Every container of an image of ours has a token of its own, in a folder
that only the user can enter, so that a later process of the same user can find the container and call it.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import (
    CapabilityError,
    ComponentError,
    InputError,
    StorageError,
    TransportError,
)
from chainrule._files import state_folder
from chainrule.client import Ticket
from chainrule.client.internal import HttpTransport
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._image import ComponentImage, RunOptions
from chainrule.deploy.images._plan import TOKEN_FILE

_WATCHDOG = Path(__file__).with_name("_watchdog.py")
# Free ports to try: another process may take one between its choice and its use.
_ATTEMPTS = 5
# While a container starts: between two requests to it, and between two questions whether it still runs.
_PAUSE_S = 0.05
_LOOK_EVERY_S = 0.5
_SHOWN_LINES = 40


class Container:
    """A container that answers calls.

    Attributes:
        name: its name in the engine.
        image: the image it was started from.
        url: its URL.
        token: the token that callers send; `None` for a Tesseract's image, which has no tokens.
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
        """Whether it exists and runs."""
        facts = inspect_container(self.engine, self.name)
        return facts is not None and facts["State"]["Running"]

    def log(self, lines: int | None = None) -> str:
        """Its output."""
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
        options: options of the container.
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
            # Another process may have taken the port between its choice and its use; then try another one.
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
    folder = state_folder("containers") / name
    token = _write_token(folder, is_asked_for=found.is_native)
    # The watchdog is started before the container, so that no container is ever without one.
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
    """Restrictions for our own images, which need no privileges; other images may need them."""
    if not image.is_native:
        return []
    token = ["--volume", f"{folder / 'token'}:{TOKEN_FILE}:ro"]
    return [*token, "--cap-drop", "all", "--security-opt", "no-new-privileges"]


def _write_token(folder: Path, *, is_asked_for: bool) -> str | None:
    """Write a new token. Only the user may enter the folder; the container's user may read the file."""
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
    # A session of its own, so that Ctrl-C in the terminal does not reach the watchdog.
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


def free_port() -> int:
    """A port of loopback that is free at the moment."""
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
    _check_running(engine, name)  # otherwise another server answers on its port


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


@dataclass(frozen=True)
class ContainerFacts:
    """A container as a listing shows it.

    Attributes:
        name: its name in the engine.
        component: name of its component.
        image_id: id of the image it was started from.
        state: `running`, `exited`, ….
        url: its URL.
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
        file = state_folder("containers") / self.name / "token"
        return file.read_text() if file.is_file() else None


def list_containers(engine: Engine) -> list[ContainerFacts]:
    """Every container that was started by Chainrule, those that have ended included."""
    template = "{{.Names}}"
    asked = ("ps", "--all", "--filter", "label=chainrule.container", "--format", template)
    found = {name: inspect_container(engine, name) for name in engine.ask(*asked).split()}
    # A container may have been removed since the list was made.
    return [_facts(name, facts) for name, facts in found.items() if facts is not None]


def inspect_container(engine: Engine, name: str) -> dict[str, Any] | None:
    """Everything that the engine tells about a container; `None` when it does not exist."""
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
    """Stop and remove a container that Chainrule started.

    Raises:
        InputError: there is no such container (`container_missing`).
    """
    _check_container(engine, name)
    remove_container(engine, name)


def container_log(engine: Engine, name: str, lines: int | None = None) -> str:
    """The output of a container, errors included; its last lines where a number is given.

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
    """Stop and remove a container, if it exists, and its token."""
    engine.run(["stop", "--time", "5", name])
    engine.run(["rm", "--force", name])
    shutil.rmtree(state_folder("containers") / name, ignore_errors=True)


class ImageTransport(HttpTransport):
    """Requests to a container.

    Args:
        container: the container; it is closed with the transport.
        timeout: seconds after which a request that gets no data fails.
    """

    def __init__(self, container: Container, timeout: float | None = None) -> None:
        super().__init__(container.url, token=container.token, timeout=timeout)
        self.container = container
        self.place = f"{container.url} (image {container.image})"

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Call an endpoint. If the container ends, the error has its last lines as a note."""
        try:
            return super().call(endpoint, payload, run_id=run_id, ticket=ticket)
        except TransportError as error:
            if not self.container.is_running:
                error.add_note(
                    f"The container has ended. Its log:\n{self.container.log(_SHOWN_LINES)}"
                )
            raise

    def close(self) -> None:
        """Close the connections, and the container if it is owned."""
        super().close()
        self.container.close()


def open_image(
    image: str,
    *,
    engine: str | None = None,
    reuse: bool = False,
    startup_timeout: float = 120.0,
    timeout: float | None = None,
    **options: Any,
) -> ImageTransport:
    """Start an image, or find it running. See `Component.from_image`."""
    chosen = find_engine(engine)
    container = _running(chosen, image) if reuse else None
    if container is None:
        container = start_container(
            image,
            RunOptions(**options),
            engine=chosen,
            owned=not reuse,
            startup_timeout=startup_timeout,
        )
    return ImageTransport(container, timeout)


def _running(engine: Engine, image: str) -> Container | None:
    """A running container of the image that no process owns."""
    wanted = ComponentImage.find(engine, image)
    for facts in list_containers(engine):
        is_ours = facts.image_id == wanted.id and facts.state == "running" and not facts.owned
        if is_ours and (facts.token is not None or not wanted.is_native):
            port = int(facts.url.rpartition(":")[2])
            return Container(engine, facts.name, image, port=port, token=facts.token, watchdog=None)
    return None


def call_image(image: str, call: Sequence[str], options: RunOptions, *, engine: Engine) -> int:
    """Make one call, `["apply", "{…}"]`, in a new container, on the streams of this process.

    Returns:
        The exit code of the call.
    """
    return engine.pass_through(*_one_call(image, call, options, engine))


def ask_image(
    image: str, call: Sequence[str], options: RunOptions, *, engine: Engine
) -> tuple[str, str]:
    """Make one call in a new container.

    Returns:
        Its standard output and its standard error.

    Raises:
        ComponentError: the call failed (`container_call_failed`).
    """
    done = engine.run(_one_call(image, call, options, engine))
    if done.returncode:
        raise ComponentError(
            f"`{call[0]}` failed in a container of {image} with status {done.returncode}:\n"
            f"{done.stderr.strip()[-2000:]}",
            code="container_call_failed",
            details={"exit_code": done.returncode},
        )
    return done.stdout, done.stderr


def _one_call(image: str, call: Sequence[str], options: RunOptions, engine: Engine) -> list[str]:
    found = ComponentImage.find(engine, image)
    arguments = options.arguments(engine, **found.folders)
    with_files = options.input_path is not None or options.output_path is not None
    command = found.one_call_command(list(call), with_files=with_files)
    return ["run", "--rm", "--no-healthcheck", *arguments, image, *command]
