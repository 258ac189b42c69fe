"""Named dimensions: one name, one size, everywhere in one call.

The table maps a name to the size and the path where it was first seen. One table may be passed through
the validation of inputs and of outputs, in the context key `dims`. Sizes are read from final values, so
members of a union that were tried and dropped leave no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from chainrule._paths import Key, join_path
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._leaves import is_union, join, spec_of, tuple_positions, unwrap
from chainrule.runtime._schema._spec import ArraySpec

DimensionTable = dict[str, tuple[int, str]]
Found = tuple[str, Any, ArraySpec]


def agree_on_dimensions(model: BaseModel, table: DimensionTable | None = None) -> None:
    """Enter the named sizes of a validated model into a table.

    Raises:
        PydanticCustomError: `array_dimension_conflict`, when a name already has another size.
    """
    known: DimensionTable = {} if table is None else table
    for path, array, spec in _named_arrays(model, type(model), ""):
        enter_sizes(known, path, spec, array.shape)


def enter_sizes(table: DimensionTable, path: str, spec: ArraySpec, shape: Sequence[int]) -> None:
    """Enter the named sizes of one array into a table.

    Raises:
        PydanticCustomError: `array_dimension_conflict`, when a name already has another size.
    """
    for name, size in zip(spec.dimension_names, shape, strict=False):
        if name is None:
            continue
        first_size, first_path = table.setdefault(name, (size, path))
        if first_size != size:
            raise _problems.dimension_conflict(name, (first_path, first_size), (path, size))


def _named_arrays(value: Any, annotation: Any, path: str) -> Iterator[Found]:
    if isinstance(value, BaseModel) and spec_of(annotation) is None:
        is_root = type(value).__pydantic_root_model__
        for name, field in type(value).model_fields.items():
            child_path = path if is_root else join(path, name)
            yield from _named_arrays(getattr(value, name), field.annotation, child_path)
        return
    annotation = _member_for(value, unwrap(annotation))
    spec = spec_of(annotation)
    if spec is not None:
        if spec.dimension_names and len(value.shape) == len(spec.dimension_names):
            yield path, value, spec
        return
    for segment, child, child_annotation in _children(value, annotation):
        yield from _named_arrays(child, child_annotation, join(path, segment))


def _children(value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
    arguments = get_args(annotation)
    if not arguments:
        return
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield join_path(Key(key)), child, arguments[-1]
    elif isinstance(value, list | tuple):
        positions = tuple_positions(arguments) if get_origin(annotation) is tuple else []
        fixed = [argument for segment, argument in positions if segment != "[]"]
        for index, child in enumerate(value):
            yield join_path(index), child, fixed[index] if fixed else arguments[0]


def _member_for(value: Any, annotation: Any) -> Any:
    """The member of a union that a validated value belongs to."""
    if not is_union(annotation):
        return annotation
    members = [unwrap(member) for member in get_args(annotation)]
    return next((member for member in members if _belongs(value, member)), None)


def _belongs(value: Any, member: Any) -> bool:
    spec = spec_of(member)
    if spec is None:
        origin = get_origin(member) or member
        return isinstance(origin, type) and isinstance(value, origin)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return False
    sizes = spec.shape if spec.shape is not None else value.shape
    return (
        len(sizes) == len(value.shape)
        and all(size in (None, actual) for size, actual in zip(sizes, value.shape, strict=True))
        and spec.dtype in (None, str(value.dtype))
    )
