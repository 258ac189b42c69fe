"""Which forward passes a server has kept, so that a derivative at the same inputs can leave them out.

The protocol is described at `chainrule.serve._answering.KeptPasses`. A compiled program hands the
same numbers to `apply` and, later, to its derivative, and nothing else connects the two. So a pass is known
by the whole content of its inputs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import TransportError
from chainrule._lru_cache import LRUCache
from chainrule.client._bodies import NATIVE, Answer, as_body

_HEADER = "Chainrule-Forward-Pass"
# Smaller inputs take as long to look up as to send.
_LARGE_BYTES = 1 << 17
# Somewhat more than a worker keeps.
_REMEMBERED = 256

Send = Callable[[list[Any], Mapping[str, str]], Answer]
"""Sends a body, in pieces, with some more headers, and gives the answer."""


class PassTokens:
    """The tokens of the forward passes that a server has kept for one handle. Safe between threads.

    Args:
        read: the result that an answer carries; raises the exception that it stands for.
    """

    def __init__(self, read: Callable[[Answer], Any]) -> None:
        self._read = read
        self._tokens: LRUCache[bytes, str] = LRUCache(_REMEMBERED)
        self._seed = secrets.randbits(64)
        # Set by the first derivative, because a server copies what it keeps: callers that only evaluate do
        # not ask for it. A thread that reads it too early sends inputs once more than necessary.
        self._are_wanted = False

    def call(self, endpoint: str, payload: Mapping[str, Any], pieces: list[Any], send: Send) -> Any:
        """The result of a call; a derivative brings its inputs only where the server does not have them.

        Args:
            endpoint: its name.
            payload: the whole request.
            pieces: its body.
            send: sends it.
        """
        is_large = sum(map(len, pieces)) >= _LARGE_BYTES
        if is_large and endpoint == "apply" and self._are_wanted:
            return self._evaluate(payload, pieces, send)
        if is_large and endpoint in DERIVATIVE_ENDPOINTS:
            self._are_wanted = True
            return self._differentiate(payload, pieces, send)
        return self._read(send(pieces, {}))

    def _evaluate(self, payload: Mapping[str, Any], pieces: list[Any], send: Send) -> Any:
        key = self._key(payload)
        answer = send(pieces, {_HEADER: "keep"})
        # Another thread may change the arrays while they are sent. The digest was taken before that; if it is
        # the same now, the server has kept what the digest stands for.
        if answer.forward_pass is not None and self._key(payload) == key:
            self._tokens.put(key, answer.forward_pass)
        return self._read(answer)

    def _differentiate(self, payload: Mapping[str, Any], pieces: list[Any], send: Send) -> Any:
        if not len(self._tokens):  # no digest is needed to know that
            return self._read(send(pieces, {}))
        key = self._key(payload)
        token = self._tokens.get(key)
        if token is not None:
            rest = {name: value for name, value in payload.items() if name != "inputs"}
            try:
                return self._read(send(as_body(rest, NATIVE.body_format), {_HEADER: token}))
            except TransportError as error:
                if error.code != "forward_pass_gone":
                    raise
            self._tokens.pop(key)
        return self._read(send(pieces, {}))

    def _key(self, payload: Mapping[str, Any]) -> bytes:
        """What stands for the content of inputs: a digest of the body that would carry them alone.

        Equal keys of different inputs are as likely as equal random numbers of 128 bits. The seed is this
        handle's own, so inputs cannot be made for equal keys beforehand.
        """
        digest = xxhash.xxh3_128(seed=self._seed)
        for piece in as_body({"inputs": payload.get("inputs")}, NATIVE.body_format):
            digest.update(piece)
        return digest.digest()
