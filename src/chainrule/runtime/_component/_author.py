"""The border to the author's code: what goes wrong there comes out as one kind of error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    DefinitionError,
    InputError,
)
from chainrule.runtime._component._isolation import without_package
from chainrule.runtime._component._problems import bad_output

_MAX_CLASSES = 10


def call_author(function: Callable[..., Any], endpoint: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the author's function.

    Errors of Chainrule pass: an author raises `InputError` to say that the caller is at fault. Everything
    else, an exit included, becomes a `ComponentError` with the author's exception as its cause; so does what
    another component that the author called refused, for that is not the caller's mistake. A function that
    forgot its `return` is told so.
    """
    try:
        result = function(*args, **kwargs)
    except ChainruleError as error:
        if _is_of_another_component(error):
            called = error.details.get("refused_by", "another component")
            raise ComponentError(
                f"{endpoint} called {called}, which refused: {error.message}",
                code="inner_call_refused",
            ) from error
        raise
    except ValidationError as error:
        raise bad_output(error, None, endpoint=endpoint) from error
    except SystemExit as error:
        raise ComponentError(
            f"{endpoint} tried to exit the process with status {error.code!r}. A component returns "
            "or raises; it does not exit.",
            code="component_exited",
        ) from error
    except Exception as error:
        raise failure_of(endpoint, error) from error
    if result is None:
        raise ComponentError(
            f"{endpoint} returned None. Does its function end with `return`?", code="bad_output"
        )
    return result


def failure_of(endpoint: str, error: BaseException) -> ComponentError:
    """What stands for an exception of the author's, whatever that is."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as reason:
        text = f"(its text cannot be made: {type(reason).__name__})"
    failure = ComponentError(
        f"{endpoint} raised {name}: {text}",
        details={
            "exception": name,
            "exception_message": text,
            "exception_classes": _class_names(type(error)),
        },
    )
    failure.__cause__ = error
    return failure


def _is_of_another_component(error: ChainruleError) -> bool:
    """Whether a refusal comes from a component that the author called; from elsewhere it has a status."""
    is_refusal = isinstance(error, (InputError, CapabilityError))
    return is_refusal and (
        not {"refused_by", "status"}.isdisjoint(error.details) or error.code == "endpoint_missing"
    )


def _class_names(cls: type[BaseException]) -> list[str]:
    """A class and its bases by their full names, by which it is told from others of the same short name."""
    return [class_name(base) for base in cls.__mro__[:-1][:_MAX_CLASSES]]


def class_name(cls: type) -> str:
    """The full name of a class, for people and for test files."""
    return without_package(f"{cls.__module__}.{cls.__qualname__}")


def check_signature(function: Any, name: str, arguments: tuple[str, ...] | int) -> None:
    """Refuse a function that cannot be called the way its endpoint is called.

    Args:
        function: the author's.
        name: of the endpoint.
        arguments: names it is called with, or how many positional arguments.

    Raises:
        DefinitionError: not callable, asynchronous, or with other arguments (`bad_endpoint`).
    """
    if not callable(function):
        raise _bad(name, f"{name} has to be a function; found {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise _bad(name, f"{name} is an `async def`; endpoints are plain functions")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        if isinstance(arguments, int):
            signature.bind(*range(arguments))
        else:
            signature.bind(**dict.fromkeys(arguments))
    except TypeError as error:
        wanted = "one argument" if isinstance(arguments, int) else ", ".join(arguments)
        raise _bad(name, f"{name}{signature} cannot be called with {wanted}: {error}") from error


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def is_jitted(value: Any) -> bool:
    """Whether a value is a function that `jax.jit` or `equinox.filter_jit` compiled."""
    return callable(value) and hasattr(value, "lower")


def _bad(name: str, message: str) -> DefinitionError:
    return DefinitionError(f"{message}.", code="bad_endpoint", details={"endpoint": name})
