"""Nested data as JSON text, and back.

JSON has no form for arrays, NaN or long integers. On the way out, `write_json` walks the tree and a format's
`Writer` replaces such leaves by nodes of its own. On the way in, `parse_json` reads the text strictly and
`restore_leaves` walks the result, where the format's `Reader` says which nodes stand for other values,
within a `Budget`. An error gets the path of its node while it is passed up, so that no path is built on the
way down.

`jiter`, the parser inside pydantic, is the one fast parser that finds duplicate keys; it also reads the
tokens `NaN`, `Infinity` and `-Infinity`, which Python clients send, and integers of any size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

import jiter
import numpy as np
import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from chainrule._codec._declared import Budget, Limits, dtype_name, to_wire
from chainrule._errors import ChainruleError, DecodeError, DefinitionError, LimitError
from chainrule._paths import Key, join_path
from chainrule._trees import iterate_leaves

_PLAIN = frozenset((str, bool, type(None)))
_NUMBERS = frozenset((int, float, bool))
_INT64 = range(-(2**63), 2**64)
_TEXT = frozenset((str,))
_KEYS = (str, int, float, bool, type(None), Enum, UUID, date, time)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 254
"""The limit of orjson; that of Python's stack is higher."""


class Writer(Protocol):
    """What a format does with what JSON has no form for."""

    def leaf(self, value: Any) -> Any:
        """The node of an array, of NaN, an infinity or an integer beyond 64 bits, or of any other object."""

    def mapping(self, replaced: dict[Any, Any]) -> dict[Any, Any]:
        """A mapping whose leaves are replaced, for formats in which some mappings have a meaning."""


def write_json(tree: Any, writer: Writer, options: int) -> bytes:
    """Nested data as JSON text.

    Raises:
        DefinitionError: something that no JSON text can say (`not_encodable`); its path says where.
    """
    try:
        replaced = replace_leaves(tree, writer)
    except RecursionError:
        raise _not_encodable(f"Data nested deeper than {_MAX_DEPTH} levels") from None
    except DefinitionError as error:
        error.path = error.path or _first(tree, _is_unfit)
        raise
    try:
        return orjson.dumps(replaced, option=options)
    except TypeError:
        path = _first(tree, _is_no_text)
        if path is not None:
            shown = path.encode(errors="backslashreplace").decode()
            raise _not_encodable("Text with half a surrogate pair", shown) from None
        raise _not_encodable(f"Data nested deeper than {_MAX_DEPTH} levels") from None


def _first(tree: Any, is_bad: Callable[[Any], bool]) -> str | None:
    """The path of the first leaf, or of the first leaf below a key, that is bad."""
    for segments, leaf in iterate_leaves(tree):
        if is_bad(leaf) or any(map(is_bad, segments)):
            return join_path(*segments)
    return None


def _is_unfit(leaf: Any) -> bool:
    try:
        dtype_name(to_wire(leaf).dtype) if is_array(leaf) else to_plain(leaf)
    except DefinitionError:
        return True
    return False


def _is_no_text(leaf: Any) -> bool:
    return isinstance(leaf, str) and not leaf.isascii() and bool(_SURROGATE.search(leaf))


def _not_encodable(what: str, path: str | None = None) -> DefinitionError:
    return DefinitionError(
        f"{what} cannot be encoded; arrays, numbers, text, and mappings or lists of them can.",
        code="not_encodable",
        path=path,
    )


def replace_leaves(node: Any, writer: Writer) -> Any:
    """A copy of nested data, of mappings, sequences, models and leaves, made of what JSON can carry."""
    kind = type(node)
    if kind in _PLAIN:
        return node
    if kind is np.ndarray:
        return writer.leaf(node)
    if kind is float:
        return node if math.isfinite(node) else writer.leaf(node)
    if kind is int:
        return node if node in _INT64 else writer.leaf(node)
    if kind is dict:
        if not _TEXT.issuperset(map(type, node)):
            _check_keys(node)
        return writer.mapping({key: replace_leaves(item, writer) for key, item in node.items()})
    if kind is list or kind is tuple:
        return node if _is_plain_numbers(node) else [replace_leaves(i, writer) for i in node]
    return _replace_other(node, writer)


def _check_keys(node: dict[Any, Any]) -> None:
    """JSON keys are text: others have to become different texts."""
    texts: dict[str, Any] = {}
    for key in node:
        if not isinstance(key, _KEYS):
            raise _not_encodable(f"A mapping with a key of type {type(key).__name__}")
        if texts.setdefault(str(key), key) is not key:
            raise _not_encodable(f"A mapping with two keys that read {str(key)[:60]!r}")


def _replace_other(node: Any, writer: Writer) -> Any:
    if is_array(node):
        return writer.leaf(node)
    if isinstance(node, BaseModel):
        return replace_leaves(node.model_dump(mode="python"), writer)
    if isinstance(node, Mapping):
        return replace_leaves(dict(node), writer)
    if isinstance(node, (list, tuple)):
        return replace_leaves(list(node), writer)
    return writer.leaf(node)


def _is_plain_numbers(values: Any) -> bool:
    """Whether a list has only finite numbers that JSON can hold. Long lists of floats are common."""
    if not values or not _NUMBERS.issuperset(map(type, values)):
        return False
    try:
        # A sum is finite only if all its terms are; beyond this bound an integer may be too long.
        return math.isfinite(sum(values)) and max(values) < 2**63 and min(values) >= -(2**63)
    except OverflowError:
        return False


def is_array(value: Any) -> bool:
    """Whether a leaf holds array data: NumPy arrays and scalars, JAX and torch arrays, references."""
    return hasattr(value, "__array__") or isinstance(value, complex)


def to_plain(value: Any) -> Any:
    """What JSON can say about a leaf that is neither plain nor an array (dates, paths, enums, sets).

    Raises:
        DefinitionError: nothing (`not_encodable`).
    """
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError):
        raise _not_encodable(f"A value of type {type(value).__name__}") from None


# What `jiter` allocates, by the character that announces it: the most that was measured over numbers, text,
# lists and objects of one and of many items. A value is a pointer in a list, one in the parser's buffer, and
# an object of 32 bytes; a member of an object has a key and a place in its table as well.
_MEMORY = {b",": 48, b"[": 64, b":": 64, b"{": 96}
_MOST = 100
"""Bytes of memory that one byte of text can take: that of an object, and four of text."""
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BETWEEN_BRACKETS = re.compile(rb"[^\[\]{}]+")


def parse_json(text: bytes, limits: Limits) -> Any:
    """The value of a JSON text.

    Raises:
        DecodeError: not JSON (`json_invalid`), or an object has a key twice (`duplicate_key`).
        LimitError: nested too deeply, or its values take too much memory (`too_many_values`).
    """
    is_small = len(text) * _MOST <= limits.max_parsed_bytes
    if not is_small and (nbytes := _parsed_bytes(text)) > limits.max_parsed_bytes:
        raise LimitError(
            f"The values of this JSON text take up to {nbytes} bytes of memory; at most "
            f"{limits.max_parsed_bytes} are allowed here. Send arrays as base64 or frames, uncompressed, or "
            "ask the operator to raise --max-parsed-bytes (for a compressed body, --max-expanded-bytes and "
            "--max-inflight-bytes).",
            code="too_many_values",
            details={"nbytes": nbytes, "limit": limits.max_parsed_bytes},
        )
    try:
        return jiter.from_json(text, catch_duplicate_keys=True)
    except ValueError as error:
        raise _explain(text, limits, str(error)) from None


def _parsed_bytes(text: bytes) -> int:
    """A bound on the memory that parsing takes, from what can be counted without parsing.

    Characters inside strings are counted too, which matters for prose only: base64 has none of them. Text
    takes up to four bytes per character, if one of its characters needs them.
    """
    is_narrow = text.isascii() and b"\\u" not in text
    values = sum(text.count(mark) * nbytes for mark, nbytes in _MEMORY.items())
    return len(text) * (1 if is_narrow else 4) + values


def _explain(text: bytes, limits: Limits, reason: str) -> DecodeError | LimitError:
    """Why a text was refused. `jiter` has one exception for all reasons, so the text is looked at again."""
    if _nesting(text) > limits.max_depth:
        return LimitError(
            f"The data is nested deeper than {limits.max_depth} levels.",
            code="too_deep",
            details={"limit": limits.max_depth},
        )
    try:
        jiter.from_json(text)
    except ValueError:
        return DecodeError(f"The body is not valid JSON: {reason[:200]}.", code="json_invalid")
    return DecodeError(f"An object has the same key twice: {reason[:200]}.", code="duplicate_key")


def _nesting(text: bytes) -> int:
    """How deep lists and objects are nested, without those inside strings."""
    brackets = np.frombuffer(_BETWEEN_BRACKETS.sub(b"", _STRINGS.sub(b"", text)), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0))


NOT_SPECIAL = object()
"""Answer of a reader for an object that stands for itself."""

_CONTAINERS = frozenset((dict, list))


class Reader(Protocol):
    """Which objects of a format stand for other values."""

    def special(self, node: dict[str, Any], depth: int) -> Any:
        """What an object stands for, or `NOT_SPECIAL`."""


def restore_leaves(node: Any, reader: Reader, budget: Budget, depth: int = 0) -> Any:
    """Replace, in place, every object that stands for another value.

    Args:
        node: freshly parsed JSON; it is modified.
        reader: says what objects stand for.
        budget: bounds on depth and number of fields; lists of plain numbers are not counted.
        depth: nesting of `node`.

    Raises:
        ChainruleError: raised by the reader or the budget, with its path into the data.
    """
    if type(node) is dict:
        found = reader.special(node, depth)
        return restore_items(node, reader, budget, depth) if found is NOT_SPECIAL else found
    if type(node) is list:
        kinds = set(map(type, node))
        if not kinds.isdisjoint(_CONTAINERS):
            budget.enter(len(node) if dict in kinds else 0, depth)
            _restore_each(node, enumerate(node), reader, budget, depth + 1)
    return node


def restore_items(
    node: dict[str, Any], reader: Reader, budget: Budget, depth: int
) -> dict[str, Any]:
    """`restore_leaves` for a mapping that stands for itself."""
    budget.enter(len(node), depth)
    _restore_each(node, node.items(), reader, budget, depth + 1)
    return node


def _restore_each(
    node: Any, items: Iterable[tuple[Any, Any]], reader: Reader, budget: Budget, depth: int
) -> None:
    key: Any = None
    try:
        for key, value in items:
            if type(value) in _CONTAINERS:
                node[key] = restore_leaves(value, reader, budget, depth)
    except ChainruleError as error:
        segment = key if isinstance(key, int) or key.isidentifier() else Key(key)
        error.path = join_path(segment) + (f".{error.path}" if error.path else "")
        raise
