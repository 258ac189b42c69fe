"""The worker's side of merged calls: inputs that fit together make one call of `apply`.

A component says how it batches. `elementwise`: any extra leading axis may be added to all arrays, so inputs
of equal shapes are stacked. `leading`: the first axis of every array is a batch of independent cases, so
inputs that agree in everything but that axis are joined along it. Whatever is not an array has to be equal.

Every caller is answered on its own: inputs that are refused are refused alone, and when a merged call fails,
each of its callers is asked for alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._errors import ChainruleError, InputError
from chainrule._trees import flatten_with_paths, set_at_path
from chainrule.runtime.internal import LocalComponent, content_name
from chainrule.serve._calls import Call, Reply


@dataclass(frozen=True)
class _Part:
    """One caller's input, read and validated."""

    index: int
    tree: Any
    arrays: dict[str, np.ndarray]
    key: Any


class MergedCalls:
    """Answers several calls of `apply` with as few calls of the component as possible.

    Args:
        component: of the calls.
        decode: the payload of a call.
        encode: the reply to a call, from its result.
        answer: answers one call alone, whatever is wrong with it.
    """

    def __init__(
        self,
        component: LocalComponent,
        *,
        decode: Callable[[Call], Any],
        encode: Callable[[Call, Any], Reply],
        answer: Callable[[Call], Reply],
    ) -> None:
        self._component = component
        self._decode, self._encode, self._answer = decode, encode, answer
        # Shapes that the component's own schema or outputs do not allow to merge; asked for once.
        self._hopeless: set[Any] = set()

    def answer(self, calls: Sequence[Call]) -> list[Reply]:
        """One reply for each call, in their order."""
        replies: dict[int, Reply] = {}
        for parts in self._groups(calls) if len(calls) > 1 else ():
            results = self._together(parts) or []
            for part, result in zip(parts, results, strict=bool(results)):
                replies[part.index] = self._encode(calls[part.index], result)
        return [replies.get(i) or self._answer(call) for i, call in enumerate(calls)]

    def _groups(self, calls: Sequence[Call]) -> list[list[_Part]]:
        """The inputs that fit together; what is refused, or cannot be compared, is in no group."""
        groups: dict[Any, list[_Part]] = {}
        for index, call in enumerate(calls):
            try:
                part = _read(self._component, index, self._decode(call))
            except ChainruleError:
                continue
            if part is not None and part.key not in self._hopeless:
                groups.setdefault(part.key, []).append(part)
        return [parts for parts in groups.values() if len(parts) > 1]

    def _together(self, parts: Sequence[_Part]) -> list[Any] | None:
        """The result of each part from one call, or `None` when that is not possible."""
        is_leading = self._component.batching == "leading"
        join = np.concatenate if is_leading else np.stack
        merged = {path: join([part.arrays[path] for part in parts]) for path in parts[0].arrays}
        lengths = [len(next(iter(part.arrays.values()))) if is_leading else 1 for part in parts]
        try:
            inputs = set_at_path(parts[0].tree, merged)
            outputs = self._component.call("apply", {"inputs": inputs})
        except InputError:
            self._hopeless.add(parts[0].key)
            return None
        except ChainruleError:
            return None
        results = _split(outputs, lengths, is_leading=is_leading)
        if results is None:
            self._hopeless.add(parts[0].key)
        return results


def _split(outputs: Any, lengths: Sequence[int], *, is_leading: bool) -> list[Any] | None:
    leaves = flatten_with_paths(outputs)
    total = sum(lengths)
    if not all(isinstance(a, np.ndarray) and a.shape[:1] == (total,) for a in leaves.values()):
        return None
    results = []
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        chosen = slice(end - length, end) if is_leading else end - 1
        results.append(set_at_path(outputs, {path: a[chosen] for path, a in leaves.items()}))
    return results


def _read(component: LocalComponent, index: int, payload: Any) -> _Part | None:
    """A caller's input, validated; `None` when nothing can be merged with it."""
    tree = component.read_inputs(payload)
    leaves = flatten_with_paths(tree)
    arrays = {p: np.asarray(a) for p, a in leaves.items() if isinstance(a, np.ndarray | np.generic)}
    rest = content_name({p: leaf for p, leaf in leaves.items() if p not in arrays})
    if not arrays or rest is None:
        return None
    shapes = [array.shape for array in arrays.values()]
    if component.batching == "leading":
        if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
            return None
        shapes = [shape[1:] for shape in shapes]
    elif len({len(shape) for shape in shapes}) != 1:
        return None  # broadcasting aligns from the right: the new axis would meet the wrong ones
    dtypes = [array.dtype.str for array in arrays.values()]
    return _Part(index, tree, arrays, (rest, tuple(arrays), tuple(shapes), tuple(dtypes)))
