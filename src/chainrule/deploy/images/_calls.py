"""Calls of an image: a transport to a container that stays, or a container for one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chainrule._errors import ComponentError, TransportError
from chainrule.client import Ticket
from chainrule.client.internal import HttpTransport
from chainrule.deploy.images._container import Container, list_containers, start_container
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._image import ComponentImage, RunOptions

_SHOWN_LINES = 40


class ImageTransport(HttpTransport):
    """Requests to a container.

    Args:
        container: the container; it is closed with the transport.
        timeout: seconds after which a request that gets no data fails.
    """

    def __init__(self, container: Container, timeout: float | None = None) -> None:
        super().__init__(container.url, token=container.token, timeout=timeout)
        self.container = container

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
