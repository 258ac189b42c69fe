"""From a user's inputs to a call: what of them is an operand, and what is part of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

from chainrule._describe import describe_array, describe_value
from chainrule._errors import InputError
from chainrule._paths import join_path
from chainrule._trees import get_at_path, is_arraylike, iterate_leaves, set_at_path
from chainrule.bridge._component_target import as_target
from chainrule.bridge._requests import Call
from chainrule.bridge._site import Canonicalize, find_site
from chainrule.bridge._target import Options, Target
from chainrule.bridge._types import ArrayType, Skeleton, take_apart, warn_if_narrowed


@dataclasses.dataclass(frozen=True)
class Framework:
    """What the bridge has to know about the arrays of a framework other than JAX.

    Attributes:
        to_array: an array of the framework from a number, nested lists or an array of any framework.
        dtype_of: the NumPy dtype of such an array; its path is for messages.
        canonicalize: see `chainrule.bridge._site`.
    """

    to_array: Callable[[Any], Any]
    dtype_of: Callable[[Any, str], np.dtype[Any]]
    canonicalize: Canonicalize


def prepare_call(
    component: Any, inputs: Any, options: Options, framework: Framework
) -> tuple[Call, list[Any], Skeleton]:
    """The call of a component, its operands, and what builds the tree of outputs from its results."""
    target = as_target(component)
    skeleton, leaves = take_inputs_apart(target, inputs, framework.to_array)
    operands = [framework.to_array(leaf) for leaf in leaves]
    types = [
        ArrayType(tuple(operand.shape), framework.dtype_of(operand, path))
        for path, operand in zip(skeleton.paths, operands, strict=True)
    ]
    site = find_site(target, options, skeleton, types, framework.canonicalize)
    if target.runs_jax:
        warn_if_narrowed(target.name, {port.path: port.type.dtype for port in site.outputs})
    return Call.apply(site), operands, site.output_skeleton


def take_inputs_apart(
    target: Target,
    inputs: Any,
    to_array: Callable[[Any], Any],
    is_traced: Callable[[Any], bool] = lambda leaf: False,
) -> tuple[Skeleton, list[Any]]:
    """The operands and the rest.

    Operands are arrays of any framework, and plain numbers and lists of numbers where the target declares
    an array. Where it declares a plain number, an array scalar is that number. A dataclass (those of JAX,
    Equinox and Flax are) or named tuple stands for its fields where the target declares arrays in them.

    Raises:
        InputError: inputs without names, a traced value where the target declares a plain one, or something
            else where it declares an array.
    """
    leaves = list(iterate_leaves(inputs, _is_record))
    if any(_is_record(leaf) for _, leaf in leaves):
        inputs = _opened(target, inputs)
        leaves = list(iterate_leaves(inputs))
    _check_has_names(target, inputs)
    updates: dict[str, Any] = {}
    for segments, leaf in leaves:
        path = join_path(*segments)
        if target.is_array_input(path):
            if leaf is not None and not is_arraylike(leaf):
                updates[path] = _converted(target, path, leaf, to_array)
            continue
        enclosing = _enclosing_array(target, segments)
        if enclosing is not None:
            updates[enclosing] = _converted(
                target, enclosing, get_at_path(inputs, enclosing), to_array
            )
        elif is_arraylike(leaf) and target.is_plain_input(path):
            updates[path] = _as_number(target, path, leaf, is_traced)
    return take_apart(set_at_path(inputs, updates), lambda path, leaf: is_arraylike(leaf))


def _opened(target: Target, inputs: Any, at: tuple[Any, ...] = ()) -> Any:
    """The inputs with their parts in the place of records in which the target declares arrays."""
    updates = {}
    for segments, leaf in iterate_leaves(inputs, _is_record):
        where = (*at, *segments)
        for parts in _parts(leaf) if _is_record(leaf) else ():
            names = parts if isinstance(parts, dict) else range(len(parts))
            if target.has_arrays_in(join_path(*where), names):
                updates[join_path(*segments)] = _opened(target, parts, where)
                break
    return set_at_path(inputs, updates) if updates else inputs


def _is_record(node: Any) -> bool:
    kind = type(node)
    return hasattr(kind, "__dataclass_fields__") or (
        issubclass(kind, tuple) and hasattr(kind, "_asdict")
    )


def _parts(record: Any) -> Iterator[dict[str, Any] | tuple[Any, ...]]:
    """A record as a dictionary; a named tuple is a tuple, too."""
    if isinstance(record, tuple):
        yield record._asdict()  # type: ignore[attr-defined]
        yield tuple(record)
    else:
        yield {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _check_has_names(target: Target, inputs: Any) -> None:
    """Refuse a bare value, in which there are no fields."""
    names = target.input_names
    is_bare = inputs is None or is_arraylike(inputs) or isinstance(inputs, (Sequence, Number))
    if names and is_bare:
        raise InputError(
            f"The inputs of {target.name} are a dictionary by name; found {describe_value(inputs)}. Pass "
            f"{{{', '.join(f'{name!r}: …' for name in names)}}}.",
            code="invalid_input",
        )


def _converted(target: Target, path: str, value: Any, to_array: Callable[[Any], Any]) -> Any:
    try:
        return to_array(value)
    except OverflowError as error:
        raise InputError(
            f"`{path}` of {target.name} is an integer that does not fit: {error}.",
            code="array_value_out_of_range",
            path=path,
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`{path}` of {target.name} has to be an array; found {describe_value(value)}. "
            "Pass an array, a number, or nested lists of numbers of equal lengths.",
            code="not_an_array",
            path=path,
        ) from error


def _enclosing_array(target: Target, segments: tuple[Any, ...]) -> str | None:
    """The array that a list of numbers, of which the leaf is one, stands for."""
    paths = (join_path(*segments[:end]) for end in range(len(segments) - 1, 0, -1))
    return next((path for path in paths if target.is_array_input(path)), None)


def _check_known(target: Target, path: str) -> None:
    """Refuse a name that the target does not have, before anything is said about its kind."""
    names, name = target.input_names, path.partition(".")[0]
    if names is not None and name not in names:
        raise InputError(
            f"{target.name} has no input `{name}`; it has {', '.join(names)}.",
            code="unknown_field",
            path=name,
        )


def _as_number(target: Target, path: str, leaf: Any, is_traced: Callable[[Any], bool]) -> Any:
    if is_traced(leaf):
        _check_known(target, path)
        raise InputError(
            f"`{path}` of {target.name} is a plain value in its schema, which has to be known when a "
            f"program is traced; found a traced {describe_array(leaf)}. Pass a Python number "
            "(`static_argnames` of `jax.jit`), or declare an array, for example `Array[(), Float64]`.",
            code="traced_plain_input",
            path=path,
        )
    return leaf.item() if getattr(leaf, "ndim", None) == 0 else leaf
