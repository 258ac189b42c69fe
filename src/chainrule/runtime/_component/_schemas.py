"""The models that validate the data of a component, and what they imply for shapes.

A component's schemas are rewritten once: every model of the tree becomes `<Prefix>_<Name>`, and every
array annotation may be exchanged. Two rewritings exist:

    Apply_…         subclasses of the author's models, so that `isinstance` holds and their validators
                    run; unknown fields are refused unless the author says otherwise; defaults are
                    validated, so that a default array is an array.
    AbstractEval_…  the same tree with a `ShapeDType` where an array was; a default array stands for its
                    shape. Not subclasses: validators written for arrays mean nothing here.

A model that contains itself has no finite set of array paths and is refused.

When every output is an array whose sizes are fixed, or named and thus known from the inputs, the schemas
alone say what comes out (`with_abstract_eval`). `complete_abstract` and `fit_abstract` hold shapes and dtypes
to the schemas for callers that trace a component themselves.
"""

from __future__ import annotations

import enum
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import date, time, timedelta
from functools import cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    RootModel,
    ValidationError,
    WrapValidator,
    create_model,
)
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from chainrule._codec import dtype_generality
from chainrule._device import own_copy
from chainrule._errors import DefinitionError, InputError
from chainrule.runtime._component._definition import Implementation, derived
from chainrule.runtime._component._failures import bad_input, bad_output
from chainrule.runtime._schema import (
    ArraySpec,
    ShapeDType,
    array_leaves,
    bounded,
    differentiable_leaves,
    is_array_type,
    with_dimension_check,
)
from chainrule.runtime._schema._leaves import (
    DimensionTable,
    decorators_of,
    enter_sizes,
    is_model_class,
    named_sizes,
    spec_of,
    unwrap,
)
from chainrule.runtime._schema._plain import opened, to_plain
from chainrule.runtime._schema._problems import dtype_mismatch
from chainrule.runtime._schema._spec import numpy_dtype
from chainrule.runtime._schema._validation import check_shape

if TYPE_CHECKING:
    from chainrule._endpoints import Side

Context = dict[str, Any]


class Schemas:
    """The author's schemas and the models that validate with them.

    Args:
        input_schema: the author's model of the inputs.
        output_schema: the author's model of the outputs.

    Raises:
        DefinitionError: one of them is not a model, contains itself, or has fields that cannot be
            validated.
    """

    def __init__(self, input_schema: type[BaseModel], output_schema: type[BaseModel]) -> None:
        self.input_schema = _require_model("InputSchema", input_schema)
        self.output_schema = _require_model("OutputSchema", output_schema)
        self.inputs = apply_model(input_schema, "InputSchema")
        self.outputs = apply_model(output_schema, "OutputSchema")

    @cached_property
    def abstract_inputs(self) -> type[BaseModel]:
        """The inputs with shapes instead of arrays."""
        return abstract_model(self.input_schema, "InputSchema")

    @cached_property
    def abstract_outputs(self) -> type[BaseModel]:
        """The outputs with shapes instead of arrays."""
        return abstract_model(self.output_schema, "OutputSchema")

    @cached_property
    def differentiable(self) -> Mapping[Side, Mapping[str, ArraySpec]]:
        """The path patterns of the differentiable arrays on each side."""
        return {
            "inputs": differentiable_leaves(self.input_schema),
            "outputs": differentiable_leaves(self.output_schema),
        }

    @cached_property
    def are_known_by_types(self) -> bool:
        """Whether inputs and outputs of the types of valid ones are valid: no author's validator is asked."""
        return _is_known_by_types(self.input_schema) and _is_known_by_types(self.output_schema)

    @cached_property
    def _shows_caller(self) -> bool:
        return shows_caller(self.input_schema)

    def read_inputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """Validated inputs for the author's function."""
        if context.get("own") and self._shows_caller:
            value = own_copy(opened(value))
        return _validate_input(self.inputs, value, endpoint, context)

    def read_abstract_inputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """Validated abstract inputs for the author's function."""
        return _validate_input(self.abstract_inputs, value, endpoint, context)

    def read_given_outputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """Outputs of an earlier call that a caller gives back, validated."""
        return _validate_input(self.outputs, value, endpoint, context, side="outputs")

    def read_outputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """The author's outputs, validated."""
        return _validate_output(self.outputs, value, endpoint, context)

    def read_abstract_outputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """The author's abstract outputs, validated."""
        return _validate_output(self.abstract_outputs, value, endpoint, context)


def _validate_input(
    model: type[BaseModel], value: Any, endpoint: str, context: Context, *, side: str = "inputs"
) -> BaseModel:
    try:
        return _validate(model, value, context)
    except ValidationError as error:
        raise bad_input(error, value, model=model, endpoint=endpoint, prefix=(side,)) from None


def _validate_output(
    model: type[BaseModel], value: Any, endpoint: str, context: Context
) -> BaseModel:
    try:
        # What the author returns stays where it is: `LocalComponent.call` copies the whole result.
        return _validate(model, value, {**context, "own": False})
    except ValidationError as error:
        raise bad_output(error, value, endpoint=endpoint) from error


def _validate(model: type[BaseModel], value: Any, context: Context) -> BaseModel:
    # Models inside containers are read by their attributes.
    return model.model_validate(opened(value), context=context, from_attributes=True, by_name=True)


def _require_model(name: str, schema: Any) -> Any:
    if is_model_class(schema):
        return schema
    found = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    raise DefinitionError(
        f"{name} has to be a subclass of pydantic.BaseModel; found {found}. Write "
        f"`class {name}(BaseModel): …` with annotated fields.",
        code="bad_schema",
    )


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
    try:
        model.model_rebuild()  # nothing to do where the model is complete
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
    decorators = decorators_of(model)
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


def _hides_arrays(annotation: Any) -> bool:
    """Whether a value of an annotation may hold arrays that no validator of ours has copied."""
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


def _is_known_by_types(model: type[BaseModel]) -> bool:
    """Whether a value that has the types of a valid one is valid: no validator of the author's is asked."""
    decorators = decorators_of(model)
    return not (
        shows_caller(model)
        or decorators.field_validators
        or decorators.model_validators
        or any(
            _has_validator(info.annotation)
            or any(isinstance(entry, _VALIDATORS) for entry in info.metadata)
            for info in model.model_fields.values()
        )
    )


def _has_validator(annotation: Any) -> bool:
    """Whether a validator of the author's is asked about a value of an annotation."""
    if array_spec(annotation) is not None:
        return False
    if is_model_class(annotation):
        return not _is_known_by_types(annotation)
    if isinstance(annotation, TypeAliasType):
        return _has_validator(annotation.__value__)
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts, metadata = parts[:1], parts[1:]
        if any(isinstance(entry, _VALIDATORS) for entry in metadata):
            return True
    return any(map(_has_validator, parts))


def _recursive(model: type[BaseModel], open_models: list[type[BaseModel]]) -> DefinitionError:
    chain = " → ".join(m.__name__ for m in [*open_models[open_models.index(model) :], model])
    return DefinitionError(
        f"The schema contains itself: {chain}. A component's arrays need a finite set of paths; use a "
        "list or a dict of a model that does not refer back.",
        code="recursive_schema",
    )


def with_abstract_eval(
    given: Mapping[str, Implementation], schemas: Schemas
) -> Mapping[str, Implementation]:
    """What was given, and abstract evaluation when the schemas imply it."""
    if "abstract_eval" in given:
        return given
    implied = shapes_from_schema(schemas)
    return given if implied is None else {**given, "abstract_eval": derived(implied, "schema")}


def shapes_from_schema(schemas: Schemas) -> Callable[[BaseModel], Any] | None:
    """The abstract evaluation that the schemas imply, or `None` when they leave something open."""
    inputs = array_leaves(schemas.input_schema)
    known = {name for spec in inputs.values() for name in spec.dimension_names if name}
    specs = _determined_specs(schemas.output_schema, known)
    if not specs:
        return None

    def abstract_eval(abstract_inputs: BaseModel) -> dict[str, Any]:
        sizes = named_sizes(abstract_inputs)
        return _shape_dtypes(specs, "", sizes, inputs)

    return abstract_eval


def _determined_specs(model: type[BaseModel], known: set[str]) -> dict[str, Any] | None:
    """The declarations of a model's arrays, nested as its fields; `None` if it leaves something open."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind, spec = field.annotation, array_spec(field.annotation)
        if spec is not None and _is_determined(spec, known):
            found[name] = spec
        elif is_model_class(kind) and (nested := _determined_specs(kind, known)) is not None:  # type: ignore[arg-type]
            found[name] = nested
        else:
            return None
    return None if "root" in found else found


def _is_determined(spec: ArraySpec, known: set[str]) -> bool:
    return (
        spec.shape is not None
        and spec.dtype is not None
        and all(isinstance(d, int) or d in known for d in spec.labelled_shape)
    )


def _shape_dtypes(
    specs: Mapping[str, Any], where: str, sizes: DimensionTable, inputs: Mapping[str, ArraySpec]
) -> dict[str, Any]:
    return {
        name: _shape_dtypes(spec, f"{where}{name}.", sizes, inputs)
        if isinstance(spec, dict)
        else _shape_dtype(f"{where}{name}", spec, sizes, inputs)
        for name, spec in specs.items()
    }


def _shape_dtype(
    path: str, spec: ArraySpec, sizes: DimensionTable, inputs: Mapping[str, ArraySpec]
) -> ShapeDType:
    for name in spec.dimension_names:
        if name is not None and name not in sizes:
            homes = [pattern for pattern, each in inputs.items() if name in each.dimension_names]
            raise InputError(
                f"The size {name!r} of the output {path!r} is that of {', '.join(homes)} in the inputs, "
                "and these inputs have no such array. Give one, or ask `apply`.",
                code="size_unknown",
                path=path,
            )
    shape = tuple(d if isinstance(d, int) else sizes[str(d)][0] for d in spec.labelled_shape)
    return ShapeDType.model_validate({"shape": shape, "dtype": spec.dtype})


def complete_abstract(schemas: Schemas, abstract_inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Abstract inputs as a plain tree with the values of defaults, and the sizes of named dimensions."""
    sizes: dict[str, Any] = {}
    model = schemas.read_abstract_inputs(abstract_inputs, "abstract_eval", {"dims": sizes})
    return _with_defaults(to_plain(model), abstract_inputs, schemas.input_schema), sizes


def _with_defaults(completed: Any, given: Any, model: Any) -> Any:
    """Completed inputs with the author's defaults as arrays where the caller gave nothing.

    Below lists, dicts and unions defaults are not looked for: arrays there stay abstract.
    """
    fields = getattr(unwrap(model), "model_fields", None)
    if not isinstance(completed, Mapping) or not isinstance(given, Mapping) or not fields:
        return completed
    filled = {}
    for name, value in completed.items():
        if name not in fields:
            filled[name] = value
        elif name in given:
            filled[name] = _with_defaults(value, given[name], fields[name].annotation)
        else:
            default = fields[name].get_default(call_default_factory=True)
            filled[name] = _as_arrays(value, to_plain(default))
    return filled


def _as_arrays(completed: Any, default: Any) -> Any:
    if isinstance(completed, Mapping):
        if set(completed) == {"shape", "dtype"} and not isinstance(default, Mapping):
            dtype = numpy_dtype(completed["dtype"])
            return np.broadcast_to(np.asarray(default, dtype), completed["shape"])
        parts = default if isinstance(default, Mapping) else {}
        return {name: _as_arrays(value, parts.get(name)) for name, value in completed.items()}
    if isinstance(completed, list) and isinstance(default, (list, tuple)):
        return [_as_arrays(*pair) for pair in zip(completed, default, strict=True)]
    return completed


def fit_abstract(
    spec: ArraySpec, path: str, shape: tuple[int, ...], dtype: np.dtype[Any], sizes: dict[str, Any]
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype that a declaration gives to an array, by casting and broadcasting.

    Args:
        spec: the declaration.
        path: of the array.
        shape: that it has.
        dtype: that it has.
        sizes: of the named dimensions so far; those of the array are added.

    Raises:
        PydanticCustomError: it does not fit.
    """
    shape = check_shape(spec, shape, dtype, strict=False)
    wanted = dtype if spec.dtype is None else numpy_dtype(spec.dtype)
    if dtype_generality(dtype) > dtype_generality(wanted):
        raise dtype_mismatch(str(spec.dtype), dtype.name, shape)
    enter_sizes(sizes, path, spec, shape)
    return shape, wanted
