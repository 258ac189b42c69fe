"""Models as plain data.

    to_plain    the tree that callers get: mappings with text keys, lists, NumPy arrays and scalars, and JSON
                values, the same from every transport
    dumped      what `model_dump` returns, for functions of an author that take nested data
    opened      what a model holds, for another model to validate

Most models hold arrays and JSON values only. They are read directly, so that an array is passed on and never
touched. Models with serializers, paths, dates or other rich values are dumped by pydantic first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

from chainrule._trees import is_arraylike
from chainrule.runtime._schema._array import is_array_type
from chainrule.runtime._schema._leaves import decorators_of, is_model, is_model_class

_ATOMS = frozenset((str, int, float, bool, NoneType, np.ndarray))
# Looked up where a walk meets a child: a call for each would take longer than all else that is done with it.
_PLAIN_LEAVES = _ATOMS | set(np.sctypeDict.values())
_PLAIN_CONTAINERS = (list, tuple, dict, Union, UnionType, Sequence, Mapping)


def to_plain(node: Any) -> Any:
    """The plain tree of a model, or of nested data that may contain models."""
    kind: Any = type(node)
    if kind in _PLAIN_LEAVES or isinstance(node, np.generic):
        return node
    if is_model(kind):
        return _model_to_plain(node)
    if kind is dict or isinstance(node, Mapping):
        return _plain_values((str(key), value) for key, value in node.items())
    if isinstance(node, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in node]
    return node if is_arraylike(node) else to_jsonable_python(node)


def _model_to_plain(model: BaseModel) -> Any:
    kind = type(model)
    if not _is_direct(kind):
        return to_plain(model.model_dump())
    if isinstance(model, RootModel):
        return to_plain(model.root)
    return _plain_values(_items(model))


def _plain_values(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: value if type(value) in _PLAIN_LEAVES else to_plain(value) for name, value in items
    }


def _items(model: BaseModel) -> Iterable[tuple[str, Any]]:
    """The fields of a model and those beyond its declaration, by name."""
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    return (fields | model.model_extra if model.model_extra else fields).items()


@cache
def _is_direct(model: type[BaseModel]) -> bool:
    """Whether the fields as they stand are the plain tree, with nothing for pydantic to convert."""
    decorators = decorators_of(model)
    if decorators.field_serializers or decorators.model_serializers or decorators.computed_fields:
        return False
    return all(
        _is_direct_annotation(info.annotation)
        and not info.exclude
        and not any(_is_serializer(entry) for entry in info.metadata)
        for info in model.model_fields.values()
    )


def _is_direct_annotation(annotation: Any) -> bool:
    if annotation in (*_ATOMS, None, Any) or is_array_type(annotation):
        return True
    if is_model_class(annotation):
        return _is_direct(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(argument) in _ATOMS for argument in arguments)
    if origin is Annotated:
        inner, *metadata = arguments
        return _is_direct_annotation(inner) and not any(map(_is_serializer, metadata))
    return origin in _PLAIN_CONTAINERS and all(
        argument is Ellipsis or _is_direct_annotation(argument) for argument in arguments
    )


def _is_serializer(metadata: Any) -> bool:
    return "Serializer" in type(metadata).__name__ or hasattr(
        metadata, "__get_pydantic_core_schema__"
    )


def dumped(inputs: Any) -> Any:
    """A model as pydantic dumps it; nested data as they are."""
    kind: Any = type(inputs)
    if not is_model(kind):
        return inputs
    fields = dict(_items(inputs)) if _is_dumped_as_it_is(kind) else {}
    is_flat = fields and all(type(value) in _PLAIN_LEAVES for value in fields.values())
    return fields if is_flat else inputs.model_dump()


@cache
def _is_dumped_as_it_is(model: type[BaseModel]) -> bool:
    has_other_names = model.model_config.get("serialize_by_alias", False)
    return _is_direct(model) and not issubclass(model, RootModel) and not has_other_names


def opened(value: Any) -> Any:
    """A model as the data it holds, extra fields and roots included: ours is another class."""
    kind: Any = type(value)
    if not is_model(kind):
        return value
    if isinstance(value, RootModel):
        return opened(value.root)
    return {
        name: field if type(field) in _PLAIN_LEAVES else opened(field)
        for name, field in _items(value)
    }
