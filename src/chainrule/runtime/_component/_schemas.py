"""The two schemas of a component and everything that is derived from them once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from chainrule._errors import DefinitionError
from chainrule.runtime._component._models import (
    abstract_model,
    apply_model,
    is_model,
    is_model_class,
    shows_caller,
)
from chainrule.runtime._component._problems import bad_input, bad_output
from chainrule.runtime._own_arrays import own_copy
from chainrule.runtime._schema import ArraySpec, differentiable_leaves

if TYPE_CHECKING:
    from chainrule.runtime._derivatives._kinds import Side

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
        names = model.model_fields
        raise bad_input(error, value, names=names, endpoint=endpoint, prefix=("inputs",)) from error


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
