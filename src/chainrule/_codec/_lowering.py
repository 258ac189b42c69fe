"""The one walk over nested data on its way out: plain values stay, the rest is a format's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from chainrule._codec._dtypes import dtype_name, to_wire
from chainrule._codec._tables import MANY
from chainrule._errors import DefinitionError
from chainrule._paths import join_path
from chainrule._trees import iterate_leaves

_PLAIN = frozenset((str, bool, type(None)))
_NUMBERS = frozenset((int, float, bool))
_INT64 = range(-(2**63), 2**64)
_TEXT = frozenset((str,))
_KEYS = (str, int, float, bool, type(None), Enum, UUID, date, time)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 254
"""Of orjson; Python's own stack ends later."""


class Writer(Protocol):
    """What a format does with what JSON has no form for."""

    def leaf(self, value: Any) -> Any:
        """The node of an array, of NaN, an infinity or an integer beyond 64 bits, or of any other object."""

    def mapping(self, lowered: dict[Any, Any]) -> dict[Any, Any]:
        """A lowered mapping, for formats in which some mappings have a meaning."""

    def together(self, values: list[Any]) -> list[Any] | None:
        """The nodes of `MANY` or more values at once; `None` when they have to be taken one by one."""


def write_json(tree: Any, writer: Writer, options: int) -> bytes:
    """Nested data, lowered, as JSON text.

    Raises:
        DefinitionError: something that no JSON text can say (`not_encodable`); its path says where.
    """
    try:
        lowered = lower(tree, writer)
    except RecursionError:
        raise _not_encodable(f"Data nested deeper than {_MAX_DEPTH} levels") from None
    except DefinitionError as error:
        error.path = error.path or _first(tree, _is_unfit)
        raise
    try:
        return orjson.dumps(lowered, option=options)
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


def lower(node: Any, writer: Writer) -> Any:
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
        return writer.mapping(
            dict(zip(node, _lower_items(list(node.values()), writer), strict=True))
        )
    if kind is list or kind is tuple:
        return node if _is_plain_numbers(node) else _lower_items(node, writer)
    return _lower_other(node, writer)


def _check_keys(node: dict[Any, Any]) -> None:
    """JSON keys are text: others have to become different texts."""
    texts: dict[str, Any] = {}
    for key in node:
        if not isinstance(key, _KEYS):
            raise _not_encodable(f"A mapping with a key of type {type(key).__name__}")
        if texts.setdefault(str(key), key) is not key:
            raise _not_encodable(f"A mapping with two keys that read {str(key)[:60]!r}")


def _lower_items(values: Any, writer: Writer) -> list[Any]:
    together = writer.together(values) if len(values) >= MANY else None
    if together is not None:
        return together
    leaf = writer.leaf
    return [leaf(item) if type(item) is np.ndarray else lower(item, writer) for item in values]


def _lower_other(node: Any, writer: Writer) -> Any:
    if is_array(node):
        return writer.leaf(node)
    if isinstance(node, BaseModel):
        return lower(node.model_dump(mode="python"), writer)
    if isinstance(node, Mapping):
        return lower(dict(node), writer)
    if isinstance(node, (list, tuple)):
        return lower(list(node), writer)
    return writer.leaf(node)


def _is_plain_numbers(values: Any) -> bool:
    """Whether a list can be kept as it is: small finite numbers only. Long lists of floats are common."""
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
