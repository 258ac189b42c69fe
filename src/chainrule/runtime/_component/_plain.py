"""From a validated model to the plain tree that callers get.

A plain tree has mappings with text keys, lists, NumPy arrays and scalars, and JSON values: the same from
every transport. Most models hold nothing else and are walked directly, so that an array is passed on and
never touched; models with serializers, paths, dates or other rich values take pydantic's road first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from chainrule._trees import is_arraylike
from chainrule.runtime._component._models import is_model, is_model_class, spec_of

_ATOMS = frozenset((str, int, float, bool, NoneType, np.ndarray))
_CONTAINERS = (list, tuple, dict, Union, UnionType, Sequence, Mapping)


def to_plain(node: Any) -> Any:
    """The plain tree of a model, or of nested data that may contain models."""
    kind = type(node)
    if kind in _ATOMS or isinstance(node, np.generic):
        return node
    if is_model(kind):  # type: ignore[arg-type]
        return _model_to_plain(node)
    if kind is dict or isinstance(node, Mapping):
        return {str(key): to_plain(value) for key, value in node.items()}
    if isinstance(node, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in node]
    return node if is_arraylike(node) else to_jsonable_python(node)


def _model_to_plain(model: BaseModel) -> Any:
    kind = type(model)
    if not _is_direct(kind):
        return to_plain(model.model_dump())
    if kind.__pydantic_root_model__:
        return to_plain(model.root)  # type: ignore[attr-defined]
    fields = {name: to_plain(value) for name, value in model.__dict__.items()}
    if model.__pydantic_extra__:
        fields.update({name: to_plain(v) for name, v in model.__pydantic_extra__.items()})
    return fields


@cache
def _is_direct(model: type[BaseModel]) -> bool:
    """Whether the fields as they stand are the plain tree, with nothing for pydantic to convert."""
    decorators = model.__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers or decorators.computed_fields:
        return False
    return all(
        _is_direct_annotation(info.annotation)
        and not info.exclude
        and not any(_is_serializer(entry) for entry in info.metadata)
        for info in model.model_fields.values()
    )


def _is_direct_annotation(annotation: Any) -> bool:
    if annotation in (*_ATOMS, None, Any) or spec_of(annotation) is not None:
        return True
    if is_model_class(annotation):
        return _is_direct(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(argument) in _ATOMS for argument in arguments)
    if origin is Annotated:
        inner, *metadata = arguments
        return _is_direct_annotation(inner) and not any(map(_is_serializer, metadata))
    return origin in _CONTAINERS and all(
        argument is Ellipsis or _is_direct_annotation(argument) for argument in arguments
    )


def _is_serializer(metadata: Any) -> bool:
    return "Serializer" in type(metadata).__name__ or hasattr(
        metadata, "__get_pydantic_core_schema__"
    )
