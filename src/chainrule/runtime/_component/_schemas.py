"""The two schemas of a component: validation, plain trees, and abstract evaluation from schemas alone.

`to_plain` makes of a validated model the plain tree that callers get: mappings with text keys, lists, NumPy
arrays and scalars, and JSON values, the same from every transport. Most models hold nothing else and are
walked directly, so that an array is passed on and never touched; models with serializers, paths, dates or
other rich values are dumped by pydantic first.

When every output is an array whose sizes are fixed, or named and thus known from the inputs, the schemas
alone say what comes out (`with_abstract_eval`). `complete_abstract` and `fit_abstract` hold shapes and dtypes
to the schemas for callers that trace a component themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from chainrule._codec import dtype_generality
from chainrule._errors import DefinitionError, InputError
from chainrule._own_arrays import own_copy
from chainrule._trees import is_arraylike
from chainrule.runtime._component._definition import Implementation, derived
from chainrule.runtime._component._failures import bad_input, bad_output
from chainrule.runtime._component._models import (
    abstract_model,
    apply_model,
    array_spec,
    is_known_by_types,
    is_model,
    is_model_class,
    shows_caller,
)
from chainrule.runtime._schema import (
    ArraySpec,
    ShapeDType,
    array_leaves,
    differentiable_leaves,
)
from chainrule.runtime._schema._leaves import DimensionTable, enter_sizes, named_sizes, unwrap
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
        return is_known_by_types(self.input_schema) and is_known_by_types(self.output_schema)

    @cached_property
    def _shows_caller(self) -> bool:
        return shows_caller(self.input_schema)

    def read_inputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """Validated inputs for the author's function."""
        if context.get("own") and self._shows_caller:
            value = own_copy(_opened(value))
        return _validate_input(self.inputs, value, endpoint, context)

    def read_abstract_inputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """Validated abstract inputs for the author's function."""
        return _validate_input(self.abstract_inputs, value, endpoint, context)

    def read_outputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """The author's outputs, validated."""
        return _validate_output(self.outputs, value, endpoint, context)

    def read_abstract_outputs(self, value: Any, endpoint: str, context: Context) -> BaseModel:
        """The author's abstract outputs, validated."""
        return _validate_output(self.abstract_outputs, value, endpoint, context)


def _validate_input(
    model: type[BaseModel], value: Any, endpoint: str, context: Context
) -> BaseModel:
    try:
        return _validate(model, value, context)
    except ValidationError as error:
        raise bad_input(error, value, model=model, endpoint=endpoint, prefix=("inputs",)) from error


def _validate_output(
    model: type[BaseModel], value: Any, endpoint: str, context: Context
) -> BaseModel:
    try:
        # What the author returns stays where it is: `LocalComponent.call` copies the whole result.
        return _validate(model, value, {**context, "own": False})
    except ValidationError as error:
        raise bad_output(error, value, endpoint=endpoint) from error


def _validate(model: type[BaseModel], value: Any, context: Context) -> BaseModel:
    # What `model_validate` does once it has looked at its arguments, which a small call would notice.
    # Models inside containers are read by their attributes.
    return model.__pydantic_validator__.validate_python(
        _opened(value), context=context, from_attributes=True, by_name=True
    )


def _opened(value: Any) -> Any:
    """A model as the data it holds, extra fields and roots included: ours is another class."""
    kind = type(value)
    if not is_model(kind):  # type: ignore[arg-type]
        return value
    if kind.__pydantic_root_model__:
        return _opened(value.root)
    extra = value.__pydantic_extra__
    fields = {**value.__dict__, **extra} if extra else value.__dict__
    return {name: _opened(field) for name, field in fields.items()}


def _require_model(name: str, schema: Any) -> Any:
    if is_model_class(schema):
        return schema
    found = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    raise DefinitionError(
        f"{name} has to be a subclass of pydantic.BaseModel; found {found}. Write "
        f"`class {name}(BaseModel): …` with annotated fields.",
        code="bad_schema",
    )


_ATOMS = frozenset((str, int, float, bool, NoneType, np.ndarray))
_PLAIN_CONTAINERS = (list, tuple, dict, Union, UnionType, Sequence, Mapping)


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
    if annotation in (*_ATOMS, None, Any) or array_spec(annotation) is not None:
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
