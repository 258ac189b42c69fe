"""Where a worker answers one call after the other: bodies are read where they lie, replies written once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from chainrule._errors import ChainruleError, DecodeError
from chainrule.runtime._copying import write_pieces
from chainrule.runtime._samehost import INLINE_BYTES, Message, SegmentCache, SegmentPool
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, Cancelled, Reply
from chainrule.serve._problems import problem_reply

__all__ = ["Cancelled", "Desk", "StoredReply"]


class StoredReply(NamedTuple):
    """A reply as it goes into a message; nothing of the component's memory is needed after.

    Attributes:
        header: status, content type, and where the body lies if it is large.
        inline: the body if it is small.
        descriptors: of the segment with the body.
    """

    header: dict[str, Any]
    inline: bytes
    descriptors: tuple[int, ...]


class Desk:
    """Answers calls of one component. One thread only.

    Args:
        prefix: start of the keys of our segments, unique in the server.

    Attributes:
        received: segments of others.
        own: segments of ours.
    """

    def __init__(self, prefix: str) -> None:
        self.received = SegmentCache()
        self.own = SegmentPool(prefix)
        self._is_running = False

    def cancel(self) -> None:
        """Called by a signal handler: break off the call under way, if there is one."""
        if self._is_running:
            self._is_running = False
            raise Cancelled

    def answer(
        self, answerer: Answerer, call: Call, message: Message, key: str | None
    ) -> StoredReply:
        """Answer a call.

        Args:
            answerer: of the component.
            call: as it is when its body is inline.
            message: by which it came.
            key: of the segment with the body, unique among all clients; `None` when it is inline.
        """
        try:
            self._is_running = True
            if key is not None:
                call = replace(call, body=self._body(message, key))
            reply = answerer.answer(call)
            self._is_running = False
            stored = self.store(reply)
        except Cancelled:
            stored = StoredReply({"status": 499, "content_type": "text/plain"}, b"", ())
        except ChainruleError as error:  # the body's segment is not what it should be
            self._is_running = False
            stored = self.refuse(error)
        stored.header["held"] = False
        return stored

    def refuse(self, error: ChainruleError) -> StoredReply:
        """The reply to a call that cannot be answered."""
        stored = self.store(problem_reply(error))
        stored.header["held"] = False
        return stored

    def _body(self, message: Message, key: str) -> Any:
        descriptor = message.descriptors[0] if message.descriptors else None
        segment = self.received.get(key, descriptor)
        if segment is None:
            raise DecodeError(
                "The segment is not known here; send its descriptor.", code="bad_segment"
            )
        # The author may keep, and write to, what it is given; the sender uses the segment again.
        return segment.array(message.header["segment"][1]).copy()

    def store(self, reply: Reply) -> StoredReply:
        """Bring a reply's body to where the reader can see it."""
        header: dict[str, Any] = {"status": reply.status, "content_type": reply.content_type}
        nbytes = sum(map(len, reply.pieces))
        if nbytes <= INLINE_BYTES:
            return StoredReply(header, b"".join(reply.pieces), ())
        segment = self.own.take(nbytes)
        write_pieces(segment.array(nbytes), reply.pieces)
        header["segment"] = [segment.key, nbytes]
        return StoredReply(header, b"", (segment.descriptor,))
