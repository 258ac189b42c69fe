"""What of the inputs is an operand and what is part of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainrule._trees import get_at_path, is_arraylike, iterate_leaves, join_path, set_at_path
from chainrule.bridge._skeleton import Skeleton, take_apart
from chainrule.bridge._target import Target

__all__ = ["take_inputs_apart"]


def take_inputs_apart(
    target: Target, inputs: Any, to_array: Callable[[Any], Any]
) -> tuple[Skeleton, list[Any]]:
    """The operands and the rest.

    Operands are arrays of any framework, and plain numbers and lists of numbers where the target declares
    an array.
    """
    inputs = _with_arrays(target, inputs, to_array)
    return take_apart(inputs, lambda path, leaf: is_arraylike(leaf))


def _with_arrays(target: Target, inputs: Any, to_array: Callable[[Any], Any]) -> Any:
    found: dict[str, None] = {}
    for segments, leaf in iterate_leaves(inputs):
        if is_arraylike(leaf) and target.is_array_input(join_path(*segments)):
            continue
        ends = range(len(segments), -1, -1)
        paths = (join_path(*segments[:end]) for end in ends)
        path = next((path for path in paths if target.is_array_input(path)), None)
        if path is not None and leaf is not None:
            found[path] = None
    return set_at_path(inputs, {path: to_array(get_at_path(inputs, path)) for path in found})
