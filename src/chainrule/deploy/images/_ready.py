"""Free ports, and waiting for a container to answer on one."""

from __future__ import annotations

import http.client
import socket
import time

from chainrule._errors import TransportError
from chainrule.deploy.images._engine import Engine

_PAUSE_S = 0.05
_LOOK_EVERY_S = 0.5
_SHOWN = 40


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
    return engine.log(name, _SHOWN).strip() or "(nothing)"
