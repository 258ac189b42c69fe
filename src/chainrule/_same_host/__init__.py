"""Memory and messages shared by processes of one host: server and workers, clients and servers.

A *message* is one packet on a Unix socket of type `SOCK_SEQPACKET`: a JSON header, an inline body of up to 32
kB, and descriptors. Larger bodies lie in *segments*, shared memory without a name that travels as a
descriptor; `_segments` says to whom a segment belongs and when it is used again. A body is the same bytes as
over HTTP, in any format.

Between a server (or a client that has started a worker of its own) and a worker
    The first message has the component, pickled, as its body, and the reply says what the component is. A
    call is `{"call": {"endpoint": …, "content_type": …, …}}` with the body inline, or `"body": nbytes` and
    the segment with it. `"room": true` says that another segment comes along for the answer. The reply is
    `{"status": 200, "content_type": …}` with the answer inline; with `"room": nbytes` when it lies in the
    segment that was offered; or with `"segment": nbytes` and the descriptor of a new one. One call at a time.

Between a client and a server on the same host
    Calls are HTTP requests. Large bodies may lie in segments, whose descriptors travel beside the request:

    1. `GET /same-host` answers `{"address": "<hex>", "secret": "<hex>"}`, or 404 where this is not offered.
    2. The client connects to the abstract Unix address `"\\0chainrule-" + address` and sends
       `{"secret": …}`; the server answers `{"channel": "<hex>"}`. That the connection is made is the proof of
       the same host, the credentials that the system attaches to it are the proof of the same user.
    3. For a call the client sends `{"number": n, "body": true, "room": true}` over the channel, with the
       descriptors of the segment that holds the body and of one for the answer; either may be left out. Then
       it sends the HTTP request with the header `Chainrule-Memory: <channel> <n> <nbytes>` and, where
       `nbytes` is not 0, no body of its own.
    4. The response has the header `Chainrule-Memory: inline` when its body is in the response, `room
       <nbytes>` when it lies in the segment that was offered, or `segment <nbytes>` when the descriptor of a
       new one was sent over the channel before. Without the header the response comes from the server and a
       worker may still use the segments: the client closes them.
    5. A request that names an unknown channel or number is answered with 421 and the code `unknown_memory`:
       it reached another server. The client sends it again without shared memory.

    One call at a time per channel. Closing the channel closes what was sent over it.

Nothing here imports a web framework. In reading order:

    _messages   packets with a JSON header, and how the process at the other end ended
    _segments   shared memory: its rules, the caller's pool, the worker's maps, the worker's own memory
"""

from chainrule._same_host._messages import (
    CANCEL,
    INLINE_BYTES,
    Message,
    connect,
    ending_facts,
    ending_words,
    has_message,
    limit_waiting,
    listen,
    receive_message,
    send_message,
    socket_pair,
)
from chainrule._same_host._segments import (
    CallMemory,
    MappedSegments,
    Segment,
    SegmentPool,
    is_supported,
    stored,
    with_memory_settings,
)

__all__ = [
    "CANCEL",
    "INLINE_BYTES",
    "CallMemory",
    "MappedSegments",
    "Message",
    "Segment",
    "SegmentPool",
    "connect",
    "ending_facts",
    "ending_words",
    "has_message",
    "is_supported",
    "limit_waiting",
    "listen",
    "receive_message",
    "send_message",
    "socket_pair",
    "stored",
    "with_memory_settings",
]
