"""What an array field asks of the model around it: validated defaults, and named dimensions that agree.

A pydantic annotation sees only its own value, yet two promises concern the whole model: a default is held
to the declaration like any other value, and a dimension's name means one size. So, while pydantic builds
a model, its array fields register here and the model gets what they need. This is the only file that
reaches behind pydantic's public surface (the stack of models being built, and its table of decorators);
where a future pydantic hides them, models keep working and lose these two checks, and our tests fail.

Invariant: every model whose tree holds named dimensions has the wrapping validator, and the outermost of
them checks the whole tree once, on the final values.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema

from chainrule.runtime._schema._leaves import agree_on_dimensions

try:
    from pydantic._internal._decorators import Decorator, ModelValidatorDecoratorInfo
except ImportError:  # a future pydantic: see above
    Decorator = None  # type: ignore[assignment,misc]

_VALIDATOR_NAME = "_chainrule_dimensions"
_is_checking: ContextVar[bool] = ContextVar("chainrule_dimensions", default=False)


def validate_default_of_field(handler: GetCoreSchemaHandler) -> None:
    """Let the default of the field that is being built pass through validation, unless it says otherwise."""
    fields = getattr(_model_being_built(handler), "__pydantic_fields__", {})
    field = fields.get(handler.field_name)
    if field is not None and field.validate_default is None:
        field.validate_default = True


def check_dimensions_of_model(handler: GetCoreSchemaHandler) -> None:
    """Let the model that is being built, and every model it becomes part of, check named dimensions."""
    model = _model_being_built(handler)
    if model is None or Decorator is None:
        return
    if _VALIDATOR_NAME in model.__pydantic_decorators__.model_validators:
        return
    model._chainrule_dimensions = classmethod(_validate_model)  # type: ignore[attr-defined]
    model.__pydantic_decorators__.model_validators[_VALIDATOR_NAME] = Decorator.build(
        model,
        cls_var_name=_VALIDATOR_NAME,
        shim=None,
        info=ModelValidatorDecoratorInfo(mode="wrap"),
    )
    _tell_enclosing_models(model)


def _model_being_built(handler: GetCoreSchemaHandler) -> type[BaseModel] | None:
    stack = getattr(getattr(handler, "_generate_schema", None), "model_type_stack", None)
    model = None if stack is None else stack.get()
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _tell_enclosing_models(model: type[BaseModel]) -> None:
    inherited = model.__get_pydantic_core_schema__
    is_own = inherited.__func__ is not BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined]

    def get_core_schema(
        cls: type[BaseModel], source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        check_dimensions_of_model(handler)
        return inherited.__func__(cls, source, handler) if is_own else handler(source)  # type: ignore[attr-defined]

    model.__get_pydantic_core_schema__ = classmethod(get_core_schema)  # type: ignore[assignment,method-assign]


def _validate_model(
    cls: type[BaseModel], value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> Any:
    if _is_checking.get():
        return handler(value)
    token = _is_checking.set(True)
    try:
        model = handler(value)
    finally:
        _is_checking.reset(token)
    context = info.context or {}
    agree_on_dimensions(model, context.get("dims"))
    return model
