"""Several calls in one body, several replies in one body: a JSON list of what each is, then all bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import orjson

from chainrule.serve._calls import Call, Reply

_LENGTH = struct.Struct("<I")


def pack_calls(calls: Sequence[Call]) -> bytes:
    """The bodies of some calls of one endpoint, and their headers."""
    heads = [
        [call.content_type, call.content_encoding, call.accept, len(call.body)] for call in calls
    ]
    return _pack(heads, [call.body for call in calls])


def unpack_calls(endpoint: str, body: Any) -> list[Call]:
    """The calls that were packed."""
    return [
        Call(endpoint, part, content_type=kind, content_encoding=encoding, accept=accept)
        for (kind, encoding, accept, _), part in _unpack(body)
    ]


def pack_replies(replies: Sequence[Reply]) -> list[Any]:
    """The bodies of some replies, and their headers, as pieces."""
    heads = [[reply.status, reply.content_type, reply.nbytes] for reply in replies]
    return [_pack(heads, []), *(piece for reply in replies for piece in reply.pieces)]


def unpack_replies(body: Any) -> list[Reply]:
    """The replies that were packed."""
    return [Reply(status, kind, [part]) for (status, kind, _), part in _unpack(body)]


def _pack(heads: list[Any], bodies: list[Any]) -> bytes:
    text = orjson.dumps(heads)
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


def _unpack(body: Any) -> list[tuple[Any, Any]]:
    view = memoryview(body).cast("B")
    (length,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size + length
    found = []
    for head in orjson.loads(view[_LENGTH.size : position]):
        found.append((head, view[position : position + head[-1]]))
        position += head[-1]
    return found
