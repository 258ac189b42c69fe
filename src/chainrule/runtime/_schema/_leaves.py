"""The arrays of a model: their patterns, and agreement of their named dimensions.

A pattern has `[]` for a list element, `{}` for a mapping value, and its own `[0]` for a position of a fixed
tuple. Members of a union share a pattern; their declarations are merged.

A name of a dimension means one size everywhere in one call. That concerns a whole tree, and pydantic shows an
annotation only its own value. So components check it where they validate a whole tree: `with_dimension_check`
gives their outermost model a validator that runs last, on final values, so members of a union that were tried
and dropped leave no trace. An author's model that is made by hand, outside of a call, is not checked. The
table maps a name to the size and the path where it was first seen; one table is passed through the validation
of inputs and of outputs, in the context key `dims`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import is_dataclass, replace
from functools import cache, lru_cache, partial
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    RootModel,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from chainrule._errors import DefinitionError
from chainrule._paths import Key, add_segment, join_path
from chainrule._trees import dtype_name
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._array import array_type, is_array_type
from chainrule.runtime._schema._spec import ArraySpec, Bounds, check_bounds

Leaf = tuple[str, ArraySpec]


def array_leaves(model: Any) -> dict[str, ArraySpec]:
    """Every array of a model (or of any annotation) by pattern, in declaration order.

    Raises:
        DefinitionError: arrays inside a model that contains itself have no finite set of patterns
            (`recursive_schema`), or a differentiable one stands where no path leads (`bad_schema`).
    """
    return _collect(model, lambda spec: True)


def differentiable_leaves(model: Any) -> dict[str, ArraySpec]:
    """The differentiable arrays of a model by pattern, in declaration order."""
    return _collect(model, lambda spec: spec.differentiable)


def _collect(model: Any, keep: Callable[[ArraySpec], bool]) -> dict[str, ArraySpec]:
    leaves: dict[str, ArraySpec] = {}
    for pattern, spec in _walk(model, "", ()):
        if keep(spec):
            leaves[pattern] = leaves[pattern].merge(spec) if pattern in leaves else spec
    return leaves


def _walk(annotation: Any, prefix: str, parents: tuple[type, ...]) -> Iterator[Leaf]:
    annotation = _unwrap_bounded(annotation)
    spec = spec_of(annotation)
    if spec is not None:
        yield prefix, spec
    elif is_model_class(annotation):
        yield from _walk_model(annotation, prefix, parents)
    elif _is_record(annotation):
        _refuse_hidden_arrays(annotation, prefix, parents)
    else:
        for segment, child in parts_of(annotation):
            yield from _walk(child, add_segment(prefix, segment), parents)


def _walk_model(model: type[BaseModel], prefix: str, parents: tuple[type, ...]) -> Iterator[Leaf]:
    if model in parents:
        if _has_arrays(model):
            raise DefinitionError(
                f"Model {model.__name__} contains itself at {prefix!r} and holds arrays, so their paths "
                "cannot be listed. Use a list of a model that does not contain itself.",
                code="recursive_schema",
                path=prefix,
            )
        return
    is_root = issubclass(model, RootModel)
    for name, field in model.model_fields.items():
        segment = "" if is_root else name
        annotation, _ = bounded(field.annotation, field.metadata)
        yield from _walk(annotation, add_segment(prefix, segment), (*parents, model))


def _is_record(annotation: Any) -> bool:
    """Whether an annotation is a dataclass, named tuple or typed dictionary: fields, but no model."""
    return isinstance(annotation, type) and (
        is_dataclass(annotation) or is_typeddict(annotation) or hasattr(annotation, "_fields")
    )


def _refuse_hidden_arrays(record: type, prefix: str, parents: tuple[type, ...]) -> None:
    """Say that no path leads to a differentiable array, rather than leave it out in silence."""
    if record in parents:
        return
    for name, annotation in get_type_hints(record, include_extras=True).items():
        for pattern, spec in _walk(annotation, add_segment(prefix, name), (*parents, record)):
            if spec.differentiable:
                raise DefinitionError(
                    f"The array at {pattern!r} cannot be differentiable inside {record.__name__}, "
                    f"which is not a pydantic model: declare `class {record.__name__}(BaseModel)`.",
                    code="bad_schema",
                    path=pattern,
                )


def _has_arrays(model: type[BaseModel], seen: frozenset[type] = frozenset()) -> bool:
    def found(annotation: Any) -> bool:
        annotation = unwrap(annotation)
        if is_model_class(annotation):
            return annotation not in seen and _has_arrays(annotation, seen | {model})
        return spec_of(annotation) is not None or any(
            found(child) for _, child in parts_of(annotation)
        )

    return any(found(field.annotation) for field in model.model_fields.values())


def is_model_class(annotation: Any) -> bool:
    """Whether an annotation is a pydantic model."""
    return isinstance(annotation, type) and is_model(annotation)


@lru_cache(maxsize=1024)
def is_model(kind: type) -> bool:
    """Whether a type is a pydantic model. Remembered: asking takes longer than reading a small array."""
    return issubclass(kind, BaseModel)


def decorators_of(model: type[BaseModel]) -> Any:
    """The validators and serializers that the author of a model declared in it, by their kinds.

    pydantic names this attribute in the documentation of `BaseModel` and has no function for it. Without it
    every model would count as one with validators: its inputs would be copied twice, its results dumped.
    """
    return model.__pydantic_decorators__


def parts_of(annotation: Any) -> list[tuple[str, Any]]:
    """The segment and annotation of everything directly inside a container or union."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        return [("", member) for member in arguments]
    if origin is tuple:
        return tuple_positions(arguments)
    if not (isinstance(origin, type) and arguments):
        return []
    if issubclass(origin, Mapping):
        return [("{}", arguments[-1])]
    if issubclass(origin, AbstractSet):
        return []
    return [("[]", arguments[0])] if hasattr(origin, "__getitem__") else []


def tuple_positions(arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """`[]` for `tuple[X, ...]`, one numbered position each otherwise."""
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return [("[]", arguments[0])]
    return [(f"[{position}]", argument) for position, argument in enumerate(arguments)]


def is_union(annotation: Any) -> bool:
    """Whether an annotation is `X | Y`, `Union` or `Optional`."""
    return get_origin(annotation) in (Union, types.UnionType)


def unwrap(annotation: Any) -> Any:
    """The annotation without `Annotated` and named aliases."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def bounded(annotation: Any, metadata: Iterable[Any]) -> tuple[Any, list[Any]]:
    """An annotation whose arrays have the bounds that stand in its metadata, and the metadata that is left.

    Bounds of anything else than an array, or a union with one, stay where they are.

    Args:
        annotation: of a field, or inside `Annotated`.
        metadata: what stands beside it.

    Raises:
        DefinitionError: a bound that no element can be compared with (`bad_array_type`).
    """
    entries = list(_expanded(metadata))
    plain = unwrap(annotation)
    members = get_args(plain) if is_union(plain) else (plain,)
    if not any(map(is_array_type, map(unwrap, members))):
        return annotation, list(metadata)
    bounds, rest = Bounds.from_metadata(entries)
    if bounds is None:
        return annotation, list(metadata)
    changed = tuple(_with_bounds(member, bounds, entries) for member in members)
    return (Union[changed] if is_union(plain) else changed[0]), rest  # noqa: UP007


def _expanded(metadata: Iterable[Any]) -> Iterator[Any]:
    """Metadata one by one: those of a `Field(…)` inside `Annotated`, and of groups such as `Interval`."""
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            yield from _expanded(entry.metadata)
            beside = copy(entry)
            beside.metadata = []
            yield beside
        elif isinstance(entry, GroupedMetadata):
            yield from _expanded(entry)
        else:
            yield entry


def _with_bounds(member: Any, bounds: Bounds, entries: list[Any]) -> Any:
    plain = unwrap(member)
    if plain is NoneType:
        return plain
    if not is_array_type(plain):
        # The other members of a union keep pydantic's own comparison.
        return Annotated[(member, *(e for e in entries if not isinstance(e, FieldInfo)))]
    spec = plain.spec
    check_bounds(spec.dtype, bounds)
    declared = {} if spec.bounds is None else spec.bounds.given
    return array_type(replace(spec, bounds=Bounds(**{**declared, **bounds.given})))


def _unwrap_bounded(annotation: Any) -> Any:
    """The same as `unwrap`, with bounds in the declaration of an array."""
    while get_origin(annotation) is Annotated or hasattr(annotation, "__value__"):
        if hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            inner, *metadata = get_args(annotation)
            annotation, _ = bounded(inner, metadata)
    return annotation


def spec_of(annotation: Any) -> ArraySpec | None:
    """The declaration of an `Array[...]` or `ShapeDType[...]` annotation; `None` for anything else."""
    spec = getattr(annotation, "spec", None) if isinstance(annotation, type) else None
    return spec if isinstance(spec, ArraySpec) else None


DimensionTable = dict[str, tuple[int, str]]
NamedArray = tuple[str, Any, ArraySpec]


def with_dimension_check(model: type[BaseModel]) -> type[BaseModel]:
    """A subclass whose values have one size for every name of a dimension; the model itself if it has none.

    Raises:
        DefinitionError: see `array_leaves`.
    """
    if not _has_names(model):
        return model
    check: Any = model_validator(mode="after")(_check_of(model))
    return create_model(
        model.__name__,
        __base__=model,
        __doc__=model.__doc__,
        __module__=model.__module__,
        __validators__={"check_named_dimensions": check},
    )


def _has_names(annotation: Any) -> bool:
    # Not of `array_leaves`: members of a union that are merged there may have different names.
    return any(spec.dimension_names for _, spec in _walk(annotation, "", ()))


def dimension_check(annotation: Any) -> AfterValidator:
    """The same for values of any annotation: `Annotated[annotation, dimension_check(annotation)]`."""
    return AfterValidator(_check_of(annotation))


def _check_of(annotation: Any) -> Callable[[Any, ValidationInfo], Any]:
    # Made for the first value: before, a model may refer to classes that are not defined yet.
    reader = cache(lambda: _size_reader(annotation, ""))

    def check(value: Any, info: ValidationInfo) -> Any:
        enter = reader()
        if enter is not None:
            enter(value, (info.context or {}).get("dims", {}))
        return value

    return check


def named_sizes(model: BaseModel) -> DimensionTable:
    """The sizes of the named dimensions that the arrays (or shapes) of a validated model have."""
    table: DimensionTable = {}
    _enter_sizes_of(model, type(model), "", table)
    return table


SizeReader = Callable[[Any, DimensionTable], None]


def _size_reader(annotation: Any, path: str) -> SizeReader | None:
    """What enters the named sizes of a value into a table; `None` where an annotation has no names.

    Where arrays are is known from the annotation, unions and containers aside, whose values are walked.
    """
    spec, plain = spec_of(unwrap(annotation)), unwrap(annotation)
    if spec is not None:
        return partial(_enter_array, path, spec) if spec.dimension_names else None
    if is_model_class(plain):
        return _size_reader_of_model(plain, path)
    if not _has_names(plain):
        return None
    return lambda value, table: _enter_sizes_of(value, plain, path, table)


def _size_reader_of_model(model: type[BaseModel], path: str) -> SizeReader | None:
    parts = []
    for name, field in model.model_fields.items():
        inner = path if issubclass(model, RootModel) else add_segment(path, name)
        enter = _size_reader(field.annotation, inner)
        if enter is not None:
            parts.append((name, enter))

    def enter_fields(value: Any, table: DimensionTable) -> None:
        for name, enter in parts:
            enter(getattr(value, name), table)

    return enter_fields if parts else None


def _enter_array(path: str, spec: ArraySpec, array: Any, table: DimensionTable) -> None:
    shape = getattr(array, "shape", ())
    if len(shape) == len(spec.dimension_names):
        enter_sizes(table, path, spec, shape)


def _enter_sizes_of(value: Any, annotation: Any, path: str, table: DimensionTable) -> None:
    for found, array, spec in _named_arrays(value, annotation, path):
        enter_sizes(table, found, spec, array.shape)


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


def _named_arrays(value: Any, annotation: Any, path: str) -> Iterator[NamedArray]:
    if isinstance(value, BaseModel) and spec_of(annotation) is None:
        is_root = isinstance(value, RootModel)
        for name, field in type(value).model_fields.items():
            child_path = path if is_root else add_segment(path, name)
            yield from _named_arrays(getattr(value, name), field.annotation, child_path)
        return
    annotation = _member_for(value, unwrap(annotation))
    spec = spec_of(annotation)
    if spec is not None:
        shape = getattr(value, "shape", ())
        if spec.dimension_names and len(shape) == len(spec.dimension_names):
            yield path, value, spec
        return
    for segment, child, child_annotation in _parts_of_value(value, annotation):
        yield from _named_arrays(child, child_annotation, add_segment(path, segment))


def _parts_of_value(value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
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
        and spec.dtype in (None, dtype_name(value))
    )
