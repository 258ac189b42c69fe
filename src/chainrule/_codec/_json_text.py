"""JSON text, read strictly.

`jiter`, the parser inside pydantic, is the one fast parser that finds duplicate keys; it also reads the
tokens `NaN`, `Infinity` and `-Infinity`, which Python clients send, and integers of any size.
"""

from __future__ import annotations

from typing import Any

import jiter

from chainrule._codec._limits import Limits
from chainrule._errors import DecodeError, LimitError

# A list or object of three bytes takes about seventy in memory; this bounds what parsing may allocate.
_MAX_CONTAINERS = 4_000_000


def parse_json(text: bytes, limits: Limits) -> Any:
    """The value of a JSON text.

    Raises:
        DecodeError: not JSON (`json_invalid`), or an object has a key twice (`duplicate_key`).
        LimitError: nested too deeply, or with too many lists and objects.
    """
    if len(text) > _MAX_CONTAINERS and text.count(b"[") + text.count(b"{") > _MAX_CONTAINERS:
        raise LimitError(
            f"The JSON text has more than {_MAX_CONTAINERS} lists and objects. Send numbers as arrays.",
            code="too_many_fields",
        )
    try:
        return jiter.from_json(text, catch_duplicate_keys=True)
    except ValueError as error:
        raise _explain(limits, str(error)) from None


def _explain(limits: Limits, reason: str) -> DecodeError | LimitError:
    # jiter tells its reasons apart by text only; the tests hold these two.
    if reason.startswith("Detected duplicate key"):
        return DecodeError(
            f"An object has the same key twice: {reason[:200]}.", code="duplicate_key"
        )
    if reason.startswith("recursion limit exceeded"):
        return LimitError(
            f"The data is nested deeper than {limits.max_depth} levels.",
            code="too_deep",
            details={"limit": limits.max_depth},
        )
    return DecodeError(f"The body is not valid JSON: {reason[:200]}.", code="json_invalid")
