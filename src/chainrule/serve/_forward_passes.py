"""Forward passes that a worker keeps under a token, so that a derivative need not bring the inputs again.

    POST /apply                     Chainrule-Forward-Pass: keep        the inputs are in the body
    200                             Chainrule-Forward-Pass: <token>     of this pass, where it was kept
    POST /vector_jacobian_product   Chainrule-Forward-Pass: <token>     no `inputs` in the body
    412 forward_pass_gone           the token is not known here: send the call with its inputs

A token is random and known to one worker process only: that of the server, or its replacement, does not know
it. A worker keeps a bounded number of passes and bytes, and forgets the one that was not used for longest. So
a caller must expect the refusal at any time, and nothing has run then.

The inputs are kept, and not only what the derivative makes of them: residuals are found by the content of the
inputs (`runtime._residuals`). One call may evaluate the component at several points, as differences do, and
what belongs to which point must not be taken from the token.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from chainrule._device import own_copy
from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import ChainruleError
from chainrule._lru_cache import LRUCache
from chainrule._trees import iterate_leaves
from chainrule.serve._calls import Call

FORWARD_PASS_HEADER = b"chainrule-forward-pass"
KEEP_PASS = "keep"
_MAX_PASSES = 64


class ForwardPassGoneError(ChainruleError):
    """A call names a forward pass that its worker does not know (any more): HTTP 412. Nothing was run."""

    default_code = "forward_pass_gone"
    http_status = 412
    exit_code = 1


class KeptPasses:
    """The inputs of forward passes, by token.

    Args:
        max_bytes: of all of them; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._inputs: LRUCache[str, Any] = LRUCache(
            _MAX_PASSES if max_bytes else 0, max_bytes=max_bytes, size_of=_size
        )
        self._max_bytes = max_bytes

    def inputs_to_keep(self, call: Call, payload: Mapping[str, Any]) -> Any:
        """A copy of the inputs of a forward pass that its caller wants to be kept; `None` of any other call.

        Made before the author's code runs, to which the inputs belong then.
        """
        is_wanted = call.endpoint == "apply" and call.forward_pass == KEEP_PASS
        return own_copy(payload.get("inputs")) if is_wanted and self._max_bytes else None

    def keep(self, inputs: Any) -> str | None:
        """The token of a forward pass; `None` where its inputs are too large."""
        token = secrets.token_hex(16)
        self._inputs.put(token, inputs)
        return token if token in self._inputs else None

    def complete(self, call: Call, payload: dict[str, Any]) -> None:
        """Put the inputs into the request for a derivative that has a token in their place.

        Raises:
            ForwardPassGoneError: no such pass is known.
        """
        if (
            call.endpoint not in DERIVATIVE_ENDPOINTS
            or call.forward_pass is None
            or "inputs" in payload
        ):
            return
        inputs = self._inputs.get(call.forward_pass)
        if inputs is None:
            raise ForwardPassGoneError(
                "This worker does not know the forward pass that Chainrule-Forward-Pass names. Send the call "
                "with its inputs."
            )
        payload["inputs"] = own_copy(inputs)  # the author may overwrite them


def _size(inputs: Any) -> int:
    return sum(_size_of_leaf(leaf) for _, leaf in iterate_leaves(inputs))


def _size_of_leaf(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, (str, bytes)) else getattr(leaf, "nbytes", 64)
