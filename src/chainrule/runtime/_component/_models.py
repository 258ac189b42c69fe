"""Models that are made from the author's.

A component's schemas are rewritten once: every model of the tree becomes `<Prefix>_<Name>`, and every
array annotation may be exchanged. Two rewritings exist:

    Apply_…         subclasses of the author's models, so that `isinstance` holds and their validators
                    run; unknown fields are refused unless the author says otherwise; defaults are
                    validated, so that a default array is an array.
    AbstractEval_…  the same tree with a `ShapeDType` where an array was; a default array stands for its
                    shape. Not subclasses: validators written for arrays mean nothing here.

A model that contains itself has no finite set of array paths and is refused.
"""

from __future__ import annotations

import enum
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import date, time, timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    RootModel,
    WrapValidator,
    create_model,
)
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from chainrule._errors import DefinitionError
from chainrule.runtime._schema import (
    ArraySpec,
    ShapeDType,
    bounded,
    is_array_type,
    with_dimension_check,
)
from chainrule.runtime._schema._leaves import spec_of

_WITHOUT_ARRAYS = (
    bool, int, float, complex, str, bytes, NoneType, enum.Enum, pathlib.PurePath, date, time, timedelta,
    uuid.UUID,
)  # fmt: skip
_CONTAINERS = (list, tuple, dict, set, frozenset, Union, UnionType, Sequence, Mapping)
_EARLY_VALIDATORS = (BeforeValidator, PlainValidator, WrapValidator)
_VALIDATORS = (*_EARLY_VALIDATORS, AfterValidator)


def array_spec(annotation: Any) -> ArraySpec | None:
    """The declaration of an `Array[...]`, or `None` for any other annotation."""
    return annotation.spec if is_array_type(annotation) else None


def is_model_class(annotation: Any) -> bool:
    """Whether an annotation is a pydantic model."""
    return isinstance(annotation, type) and is_model(annotation)


@lru_cache(maxsize=1024)
def is_model(kind: type) -> bool:
    """Whether a type is a pydantic model. Remembered: asking takes longer than reading a small array."""
    return issubclass(kind, BaseModel)


def apply_model(model: type[BaseModel], root: str) -> type[BaseModel]:
    """The validating model that `apply` and the derivative endpoints use.

    Args:
        model: the author's.
        root: what the author's outermost model counts as, `InputSchema` or `OutputSchema`, instead of its
            own name: clients look for this one.
    """
    return with_dimension_check(_Rewriter(_strict_subclass, {model: root}).model(model))


def abstract_model(model: type[BaseModel], root: str) -> type[BaseModel]:
    """The model whose arrays are shapes and dtypes; arguments as in `apply_model`."""
    rewriter = _Rewriter(_abstract_twin, {model: root}, ShapeDType.__class_getitem__)
    return with_dimension_check(rewriter.model(model))


Build = Callable[[type[BaseModel], str, dict[str, FieldInfo]], type[BaseModel]]


class _Rewriter:
    """Rebuilds a tree of models from its leaves up, each shared model once."""

    def __init__(
        self,
        build: Build,
        names: Mapping[type[BaseModel], str],
        array: Callable[[Any], Any] = lambda annotation: annotation,
    ) -> None:
        self._build = build
        self._names = names
        self._array = array
        self._done: dict[type[BaseModel], type[BaseModel]] = {}
        self._open: list[type[BaseModel]] = []

    def model(self, model: type[BaseModel]) -> type[BaseModel]:
        if model in self._open:
            raise _recursive(model, self._open)
        if model not in self._done:
            self._open.append(model)
            fields = {name: self._field(info) for name, info in _complete(model).items()}
            self._done[model] = self._build(model, self._names.get(model, model.__name__), fields)
            self._open.pop()
        return self._done[model]

    def _field(self, info: FieldInfo) -> FieldInfo:
        changed = copy(info)
        annotation, changed.metadata = bounded(info.annotation, info.metadata)
        changed.annotation = self.annotation(annotation)
        if contains(info.annotation, lambda part: array_spec(part) is not None):
            changed.validate_default = True
        return changed

    def annotation(self, annotation: Any) -> Any:
        if array_spec(annotation) is not None:
            return self._array(annotation)
        if is_model_class(annotation):
            return self.model(annotation)
        if isinstance(annotation, TypeAliasType):
            return self.annotation(annotation.__value__)
        arguments = get_args(annotation)
        if not arguments:
            return annotation
        origin = get_origin(annotation)
        if origin is Annotated:
            given, *beside = arguments
            inner, metadata = bounded(given, beside)
            changed = self.annotation(inner)
            # Rules for an array mean nothing for its shape.
            is_exchanged = changed is not inner and array_spec(inner) is not None
            return changed if is_exchanged or not metadata else Annotated[(changed, *metadata)]
        rewritten = tuple(self.annotation(argument) for argument in arguments)
        if all(new is old for new, old in zip(rewritten, arguments, strict=True)):
            return annotation
        if origin in (Union, UnionType):
            return Union[rewritten]  # noqa: UP007  (members are only known here)
        return origin[rewritten]


def _complete(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    if not model.__pydantic_complete__:
        try:
            model.model_rebuild()
        except Exception as error:
            raise DefinitionError(
                f"The schema {model.__name__} has annotations that cannot be resolved: {error}",
                code="bad_schema",
            ) from error
    return model.model_fields


def _strict_subclass(
    model: type[BaseModel], name: str, fields: Mapping[str, FieldInfo]
) -> type[BaseModel]:
    namespace: dict[str, Any] = {
        "__module__": model.__module__,
        "__qualname__": f"Apply_{name}",
        "__doc__": model.__doc__,
        "__annotations__": {name: info.annotation for name, info in fields.items()},
        **fields,
    }
    if not issubclass(model, RootModel) and "extra" not in model.model_config:
        namespace["model_config"] = ConfigDict(extra="forbid")
    metaclass: Any = type(model)
    return metaclass(f"Apply_{name}", (model,), namespace)


def _abstract_twin(
    model: type[BaseModel], name: str, fields: Mapping[str, FieldInfo]
) -> type[BaseModel]:
    definitions: dict[str, Any] = {
        field: (info.annotation, _without_array_rules(info)) for field, info in fields.items()
    }
    if issubclass(model, RootModel):
        return create_model(f"AbstractEval_{name}", __base__=_root_model(definitions["root"][0]))
    config = ConfigDict(
        extra=model.model_config.get("extra", "forbid"), arbitrary_types_allowed=True
    )
    return create_model(
        f"AbstractEval_{name}",
        __config__=config,
        __doc__=model.__doc__,
        __module__=model.__module__,
        **definitions,
    )


_KEPT = (
    "default_factory", "alias", "alias_priority", "validation_alias", "serialization_alias",
    "title", "description", "examples", "discriminator", "json_schema_extra",
)  # fmt: skip


def _without_array_rules(info: FieldInfo) -> FieldInfo:
    """A field without bounds such as `gt`, if its values are shapes."""
    if not contains(info.annotation, lambda part: spec_of(part) is not None):
        return info
    kept = {name: getattr(info, name) for name in _KEPT if getattr(info, name) is not None}
    return FieldInfo(
        annotation=info.annotation, default=info.default, validate_default=True, **kept
    )


def _root_model(annotation: Any) -> type[BaseModel]:
    return RootModel.__class_getitem__(annotation)  # type: ignore[return-value]


def contains(annotation: Any, predicate: Callable[[Any], bool]) -> bool:
    """Whether a part of an annotation, without looking into models, satisfies a predicate."""
    return predicate(annotation) or any(contains(part, predicate) for part in get_args(annotation))


def shows_caller(model: type[BaseModel]) -> bool:
    """Whether the author's code may see arrays that no validator of ours has copied.

    They are in fields that do not declare them (`Any`, `dict`, extra fields), or the author has a validator
    that runs before ours. Where this is hard to tell the answer is yes.
    """
    decorators = model.__pydantic_decorators__
    modes = {each.info.mode for each in decorators.field_validators.values()}
    modes |= {each.info.mode for each in decorators.model_validators.values()}
    return (
        bool(modes - {"after"})
        or bool(decorators.validators or decorators.root_validators)
        or model.model_config.get("extra") == "allow"
        or any(
            _hides_arrays(info.annotation)
            or any(isinstance(entry, _EARLY_VALIDATORS) for entry in info.metadata)
            for info in model.model_fields.values()
        )
    )


def is_known_by_types(model: type[BaseModel]) -> bool:
    """Whether a value that has the types of a valid one is valid: no validator of the author's is asked."""
    decorators = model.__pydantic_decorators__
    return not (
        shows_caller(model)
        or decorators.field_validators
        or decorators.model_validators
        or any(
            _has_validator(info.annotation, info.metadata) for info in model.model_fields.values()
        )
    )


def _has_validator(annotation: Any, metadata: Sequence[Any] = ()) -> bool:
    if array_spec(annotation) is not None:
        return any(isinstance(entry, _VALIDATORS) for entry in metadata)
    if is_model_class(annotation):
        return not is_known_by_types(annotation)
    if isinstance(annotation, TypeAliasType):
        return _has_validator(annotation.__value__)
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return _has_validator(inner, metadata)
    return any(isinstance(entry, _VALIDATORS) for entry in metadata) or any(
        map(_has_validator, get_args(annotation))
    )


def _hides_arrays(annotation: Any) -> bool:
    """The same for the values of one annotation."""
    if array_spec(annotation) is not None or annotation is None:
        return False
    if is_model_class(annotation):
        return shows_caller(annotation)
    if isinstance(annotation, type) and not get_args(annotation):
        return not issubclass(annotation, _WITHOUT_ARRAYS)
    if isinstance(annotation, TypeAliasType):
        return _hides_arrays(annotation.__value__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return False
    if origin is Annotated:
        inner, *metadata = arguments
        return _hides_arrays(inner) or any(isinstance(m, _EARLY_VALIDATORS) for m in metadata)
    parts = [part for part in arguments if part is not Ellipsis]
    return origin not in _CONTAINERS or any(map(_hides_arrays, parts))


def _recursive(model: type[BaseModel], open_models: list[type[BaseModel]]) -> DefinitionError:
    chain = " → ".join(m.__name__ for m in [*open_models[open_models.index(model) :], model])
    return DefinitionError(
        f"The schema contains itself: {chain}. A component's arrays need a finite set of paths; use a "
        "list or a dict of a model that does not refer back.",
        code="recursive_schema",
    )
