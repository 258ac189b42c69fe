"""`open_image`: from the name of an image to a transport, for `Component.from_image`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule._errors import TransportError
from chainrule.client import Ticket
from chainrule.client.internal import HttpTransport
from chainrule.deploy.images._container import Container, start_container
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._image import ComponentImage
from chainrule.deploy.images._options import RunOptions
from chainrule.deploy.images._running import list_containers

_SHOWN = 40


class ImageTransport(HttpTransport):
    """Requests to a container.

    Args:
        container: that answers; it is closed with the transport.
        timeout: seconds that any one wait may last.
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
        """Ask an endpoint; a container that died of it is said to have died, with its last lines."""
        try:
            return super().call(endpoint, payload, run_id=run_id, ticket=ticket)
        except TransportError as error:
            if not self.container.is_running:
                error.add_note(f"The container has ended. Its log:\n{self.container.log(_SHOWN)}")
            raise

    def close(self) -> None:
        """Close the connections, and the container where it is owned."""
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
    """A running container of the image that belongs to nobody in particular."""
    wanted = ComponentImage.find(engine, image)
    for facts in list_containers(engine):
        is_ours = facts.image_id == wanted.id and facts.state == "running" and not facts.owned
        if is_ours and (facts.token is not None or not wanted.is_native):
            port = int(facts.url.rpartition(":")[2])
            return Container(engine, facts.name, image, port=port, token=facts.token, watchdog=None)
    return None
