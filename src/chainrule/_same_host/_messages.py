"""Messages between two processes, one packet each, and how the other process ended."""

from __future__ import annotations

import array
import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from chainrule._errors import DecodeError

INLINE_BYTES = 32 * 1024
"""Bodies up to this size travel inside the message."""

CANCEL: Mapping[str, Any] = {"cancel": True}
"""Sent to a worker before the signal that breaks off its call; other processes may send that signal too."""

_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")
# Below the size from which malloc asks the system for fresh memory at every receive.
_MAX_PACKET = 64 * 1024
_ANCILLARY_SIZE = socket.CMSG_SPACE(4 * array.array("i").itemsize)
# Plain numbers: combining the flags of the socket module costs microseconds.
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED = int(socket.MSG_TRUNC)
_DESCRIPTORS_LOST = int(socket.MSG_CTRUNC)


class Message(NamedTuple):
    """A received packet.

    Attributes:
        header: the JSON object at its start.
        body: what follows.
        descriptors: open files that came along; the receiver owns them.
    """

    header: dict[str, Any]
    body: bytes
    descriptors: Sequence[int]

    def close(self) -> None:
        """Close the files that came along, if the receiver does not use them."""
        _close(self.descriptors)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets for messages between a process and its child."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def listen(address: str) -> socket.socket:
    """A listening socket at an abstract address, which is in no file system and ends with the process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0chainrule-{address}")
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def connect(address: str, *, timeout_s: float = 5.0) -> socket.socket:
    """A connection to `listen(address)` on the same host.

    Raises:
        OSError: nothing listens there; most likely the address is of another host.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        limit_waiting(connection, timeout_s)
        connection.connect(f"\0chainrule-{address}")
    except OSError:
        connection.close()
        raise
    return connection


def limit_waiting(connection: socket.socket, timeout_s: float | None) -> None:
    """Let sending and receiving fail with `BlockingIOError` after a while; `None` waits for ever.

    `settimeout` would do the same with a further system call before each of them.
    """
    seconds = 0.0 if timeout_s is None else max(timeout_s, 1e-6)
    limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def send_message(
    connection: socket.socket,
    header: Mapping[str, Any],
    body: Sequence[Any] = (),
    descriptors: Sequence[int] = (),
) -> None:
    """Send one message; `body` is given as pieces, at most `INLINE_BYTES` together.

    Raises:
        OSError: the other side is gone, or does not read.
    """
    text = orjson.dumps(header)
    # One piece: a small copy costs less than telling the system of several.
    packet = b"".join((_LENGTH.pack(len(text)), text, *body))
    if descriptors:
        socket.send_fds(connection, [packet], descriptors)
    else:
        connection.send(packet)


def receive_message(connection: socket.socket) -> Message | None:
    """Receive one message; `None` when the other side has closed.

    Raises:
        DecodeError: not a message (`bad_message`).
        OSError: the connection broke, nothing came in time, or this process has no room for the descriptors
            that came along (`EMFILE`).
    """
    # One packet is one message (`SOCK_SEQPACKET`): there is nothing to put together, and descriptors belong
    # to the message with which they came. A packet larger than the buffer is cut and marked (`MSG_TRUNC`).
    packet, ancillary, flags, _ = connection.recvmsg(_MAX_PACKET, _ANCILLARY_SIZE, _CLOSE_ON_EXEC)
    descriptors = _descriptors(ancillary) if ancillary else ()
    if not packet:  # closed, or an empty packet, which is not a message
        _close(descriptors)
        return None
    if flags & _DESCRIPTORS_LOST:
        _close(descriptors)
        raise OSError(errno.EMFILE, "no room for the descriptors of a message")
    try:
        (length,) = _LENGTH.unpack_from(packet)
        header = orjson.loads(packet[_LENGTH.size : _LENGTH.size + length])
        if flags & _TRUNCATED or not isinstance(header, dict):
            raise ValueError("truncated, or no header")
    except (struct.error, ValueError):
        _close(descriptors)
        raise DecodeError(
            "Expected a packet with a JSON header; found another one.", code="bad_message"
        ) from None
    return Message(header, packet[_LENGTH.size + length :], descriptors)


def has_message(connection: socket.socket) -> bool:
    """Whether a message can be received at once, or the other side has closed."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def ending_facts(status: int | None) -> dict[str, Any]:
    """`{"signal": name}` of a process that a signal ended, `{"exit_code": …}` of any other.

    Args:
        status: as `subprocess.Popen.returncode` has it.
    """
    if status is None or status >= 0:
        return {"exit_code": status}
    try:
        return {"signal": signal.Signals(-status).name}
    except ValueError:  # most real-time signals have no name
        return {"signal": f"signal {-status}"}


def ending_words(status: int | None) -> str:
    """The same as the end of a sentence: `by SIGKILL`, `with status 3`."""
    facts = ending_facts(status)
    return f"by {facts['signal']}" if "signal" in facts else f"with status {facts['exit_code']}"
