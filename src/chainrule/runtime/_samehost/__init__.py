"""Memory and messages shared by processes of one host: server and workers, clients and servers.

Large bodies lie in *segments* (anonymous shared memory without a name: when the last process that knows
one ends, it is gone), small ones travel inside the messages. A message is one packet on a Unix socket of
type `SOCK_SEQPACKET`: a JSON header, then an inline body, and the file descriptors of segments that the
receiver has not seen yet. A body is the same bytes as over HTTP, in any format; frames are read in place.

The protocol between a client and a server on the same host
    1. `GET /same-host` over HTTP (with the token, if there is one) answers
       `{"address": "<hex>", "secret": "<hex>", "inline_bytes": 32768}`, or 404 where this is not offered.
    2. The client connects to the abstract Unix address `"\\0chainrule-" + address` and sends
       `{"op": "hello", "secret": …}`; the server answers `{"status": 200}`. That the connection is made is
       the proof of the same host, and of the same user. If anything here fails, stay with HTTP.
    3. A call is `{"path": "/apply", "content_type": …, "accept": …, "run_id": …}` with the body inline, or
       with `"segment": [key, nbytes]` and the segment's descriptor, every time. Keys are texts that the
       sender chooses and never uses twice. One call at a time per connection; callers open as many as they
       need. A call may have a number, `"number": 7`, larger than that of the call before.
    4. The reply is `{"status": 200, "content_type": …, "held": false}` with the body inline or in a segment
       of the server's. `"held": true` says that the component still uses the request's segment: do not
       write to it again, forget it. `"retry_after"` may be there with status 503. The reply to a call with
       a number repeats it, and the client ignores replies with the number of an earlier call. Who numbers
       its calls may be answered by a worker itself, without the server in between, and notices nothing.
    5. A segment of a reply belongs to the reader until a later call names its key in `"release": [key]`.
       Closing the connection releases everything and cancels the call that is under way.

Use `connect`, `send_message`, `receive_message`, `Segment`, `SegmentPool` and `SegmentCache`; nothing here
imports a web framework.
"""

from chainrule.runtime._samehost._endings import ending_facts, ending_words
from chainrule.runtime._samehost._messages import (
    INLINE_BYTES,
    Message,
    connect,
    is_well_formed,
    limit_waiting,
    listen,
    receive_message,
    send_message,
    socket_pair,
)
from chainrule.runtime._samehost._pools import SegmentCache, SegmentPool
from chainrule.runtime._samehost._segments import Segment, is_supported
from chainrule.runtime._samehost._worker_memory import with_memory_settings

__all__ = [
    "INLINE_BYTES",
    "Message",
    "Segment",
    "SegmentCache",
    "SegmentPool",
    "connect",
    "ending_facts",
    "ending_words",
    "is_supported",
    "is_well_formed",
    "limit_waiting",
    "listen",
    "receive_message",
    "send_message",
    "socket_pair",
    "with_memory_settings",
]
