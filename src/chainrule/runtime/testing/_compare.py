"""Comparing a result with what was expected: every difference, with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from chainrule._paths import Key, Segment, join_path
from chainrule.runtime._schema import describe_array, number_kind

Where = tuple[Segment, ...]


def compare(
    result: Any, expected: Any, *, rtol: float, atol: float, skip_paths: bool = False
) -> list[str]:
    """All differences between two trees, one line each.

    Args:
        result: what came.
        expected: what was expected. An array fixes shape and dtype; a plain list or number in place of
            an array fixes the shape only.
        rtol: allowed relative difference of inexact values.
        atol: allowed absolute difference of inexact values.
        skip_paths: let file paths be anything.
    """
    return list(_differences(result, expected, (), _Tolerance(rtol, atol, skip_paths)))


class _Tolerance:
    def __init__(self, rtol: float, atol: float, skip_paths: bool) -> None:
        self.rtol, self.atol, self.skip_paths = rtol, atol, skip_paths


def _differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if hasattr(result, "todense"):
        result = result.todense()
    if isinstance(result, (np.ndarray, np.generic)) or isinstance(expected, np.ndarray):
        yield from _array_differences(result, expected, at, allowed)
    elif isinstance(expected, Mapping) and isinstance(result, Mapping):
        yield from _mapping_differences(result, expected, at, allowed)
    elif isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)):
        if len(result) != len(expected):
            yield _line(at, f"has {len(result)} items, expected {len(expected)}")
            return
        for index, pair in enumerate(zip(result, expected, strict=True)):
            yield from _differences(*pair, (*at, index), allowed)
    else:
        yield from _plain_differences(result, expected, at, allowed)


def _mapping_differences(
    result: Mapping[str, Any], expected: Mapping[str, Any], at: Where, allowed: _Tolerance
) -> Iterator[str]:
    for key in expected:
        here = (*at, key if str(key).isidentifier() else Key(key))
        if key in result:
            yield from _differences(result[key], expected[key], here, allowed)
        else:
            yield _line(here, "is missing")
    for key in result:
        if key not in expected:
            yield _line((*at, key if str(key).isidentifier() else Key(key)), "was not expected")


def _array_differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    try:
        found, wanted = np.asarray(result), np.asarray(expected)
    except ValueError:
        yield _line(at, f"is {type(result).__name__}, expected an array")
        return
    kinds = {number_kind(found.dtype), number_kind(wanted.dtype)}
    if not kinds <= set("biufc"):
        yield _line(at, f"is {type(result).__name__}, expected {type(expected).__name__}")
    elif found.shape != wanted.shape or (
        isinstance(expected, np.ndarray) and found.dtype != wanted.dtype
    ):
        yield _line(at, f"is {describe_array(found)}, expected {describe_array(wanted)}")
    else:
        yield from _value_differences(found, wanted, at, allowed)


def _value_differences(
    found: np.ndarray, wanted: np.ndarray, at: Where, allowed: _Tolerance
) -> Iterator[str]:
    if {number_kind(found.dtype), number_kind(wanted.dtype)} & set("fc"):
        close = np.isclose(found, wanted, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    else:
        close = found == wanted
    if not close.all():
        with np.errstate(invalid="ignore"):
            worst = np.max(np.abs(found[~close].astype(complex) - wanted[~close]))
        first = tuple(int(i) for i in np.argwhere(~close)[0])
        yield _line(
            at,
            f"differs in {int((~close).sum())} of {close.size} values, first at {list(first)}; "
            f"largest difference {worst:.3g}",
        )


def _plain_differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    if isinstance(result, PurePath):
        result = str(result)
        expected = result if allowed.skip_paths else expected
    numbers = (int, float)
    if (
        isinstance(result, float)
        and isinstance(expected, numbers)
        and not isinstance(expected, bool)
    ):
        if not np.isclose(result, expected, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True):
            yield _line(at, f"is {result!r}, expected {expected!r}")
    elif type(result) is not type(expected) or result != expected:
        yield _line(at, f"is {result!r:.80}, expected {expected!r:.80}")


def _line(at: Where, text: str) -> str:
    return f"{join_path(*at) or 'the result'} {text}"
