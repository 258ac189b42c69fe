"""TLS connections before their handshake: they count, wait and give way like all others.

A server that leaves handshakes to its event loop hears of a connection only afterwards; callers that connect
and say nothing would use up its descriptors unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from chainrule.serve._protocol import LimitedHttpProtocol


class TlsDoor(asyncio.Protocol):
    """Takes a connection, and has it handed to the HTTP protocol when it is secure.

    Args:
        behind: the protocol for what comes then.
        context: certificate and key.
    """

    def __init__(self, behind: LimitedHttpProtocol, context: ssl.SSLContext) -> None:
        self._behind = behind
        self._context = context

    @property
    def waits_since(self) -> float | None:
        """Since when the caller has been here."""
        return self._since

    def give_way(self) -> None:
        """Close the connection at once."""
        with contextlib.suppress(OSError):  # the caller was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    shutdown = give_way

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, over a transport that begins with it: this one has read nothing yet."""
        behind = self._behind
        self._since = behind.loop.time()
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._socket = transport.get_extra_info("socket").dup()
        transport.abort()
        behind.connections.add(self)  # type: ignore[arg-type]
        behind.crowd.thin_out(behind.connections)  # type: ignore[arg-type]
        self._opening = behind.loop.create_task(self._open())

    async def _open(self) -> None:
        behind = self._behind
        try:
            await behind.loop.connect_accepted_socket(
                lambda: behind,
                self._socket,
                ssl=self._context,
                ssl_handshake_timeout=behind.read_timeout_s,
            )
        except OSError:  # no handshake, or none in time: there is nobody to tell
            self._socket.close()
        finally:
            behind.connections.discard(self)
