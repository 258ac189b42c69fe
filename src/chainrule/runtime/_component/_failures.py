"""Errors of a call: which of them are the caller's, and which the component's.

`bad_input` and `bad_output` make one Chainrule error from pydantic's list of problems. The error names the
first problem in full (code, path, reason) and carries the first twenty in `details["problems"]` in the form
that the peer's clients read. It never contains the data.

`failure_of` makes one of an exception of the author's.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from chainrule._describe import closest, describe_value
from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    InputError,
)
from chainrule._paths import loc_to_path
from chainrule.runtime._component._isolation import (
    author_line,
    install_advice,
    without_package,
)
from chainrule.runtime._schema._leaves import is_model_class

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_CLASSES = 10


def failure_of(endpoint: str, error: BaseException) -> ComponentError:
    """The error that stands for an exception of the author's."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as reason:
        text = f"(its text cannot be made: {type(reason).__name__})"
    failure = ComponentError(
        f"{endpoint} raised {name}: {_why_untraceable(error) or text + author_line(error)}"
        f"{install_advice(error)}",
        details={
            "exception": name,
            "exception_message": text,
            "exception_classes": _class_names(type(error)),
        },
    )
    failure.__cause__ = error
    return failure


_VALUES_OF_TRACERS = (
    "ConcretizationTypeError",
    "NonConcreteBooleanIndexError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
)


def _why_untraceable(error: BaseException) -> str | None:
    """What to do about a function that needs the numbers of an array that JAX traces; JAX's own text names a
    function of ours that it compiles."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(
        error, tuple(getattr(jax.errors, name) for name in _VALUES_OF_TRACERS)
    ):
        return None
    return (
        f"the function needs the value of an array{author_line(error)}, but JAX traces it: arrays have no "
        "values while a program is compiled. Use `jnp.where` or `jax.lax.cond` in place of `if`, "
        "`jax.lax.fori_loop` in place of a loop of computed length, and `jnp` in place of `np`. An input "
        "that is declared as a plain `int`, `float` or `bool` is a constant of the compiled program, and has "
        'a value. Or leave out framework="jax": then the function runs as it is, and derivatives="finite" '
        "gives it derivatives."
    )


def is_of_another_component(error: ChainruleError) -> bool:
    """Whether a refusal comes from a component that the author called; from elsewhere it has a status."""
    is_refusal = isinstance(error, (InputError, CapabilityError))
    return is_refusal and (
        not {"refused_by", "status"}.isdisjoint(error.details) or error.code == "endpoint_missing"
    )


def _class_names(cls: type[BaseException]) -> list[str]:
    """A class and its bases by their full names, which distinguish it from others of the same short name."""
    return [class_name(base) for base in cls.__mro__[:-1][:_MAX_CLASSES]]


def class_name(cls: type) -> str:
    """The full name of a class, for people and for test files."""
    return without_package(f"{cls.__module__}.{cls.__qualname__}")


_SHOWN = 20
_NAMED = 8


def bad_input(
    error: ValidationError,
    value: Any,
    *,
    model: type[BaseModel],
    endpoint: str,
    prefix: tuple[str, ...],
) -> InputError:
    """What the caller gets for inputs that do not fit the schema.

    Args:
        error: pydantic's report.
        value: what was validated.
        model: that it was validated against.
        endpoint: the endpoint that was called.
        prefix: where in the request the validated part stands, for example `("inputs",)`.
    """
    problems, count = _problems(error, value, prefix)
    names = model.model_fields
    _suggest_names(problems, model)
    first, cause = problems[0], _first_cause(error)
    reason = _sentence(first["msg"]) if cause is None else cause.message
    if _has_level(value, names):
        message = (
            f"{endpoint}: the inputs are given with the level 'inputs' of a request around them. Drop it: "
            f"pass {_shown_names(names)}."
        )
    elif _is_bare(value, names):
        message = f"{endpoint}: {_told_the_names(value, names)}"
    else:
        message = f"{endpoint}: {_place(first)}{reason}{_more(problems, count)}"
    cls = type(cause) if isinstance(cause, InputError) else InputError
    return cls(
        message,
        code=_code(first, cause),
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def _suggest_names(problems: list[dict[str, Any]], model: type[BaseModel]) -> None:
    """Add the name that was probably meant to what is said of a field that does not exist."""
    for problem in problems:
        if problem["type"] != "extra_forbidden":
            continue
        *above, name = problem["loc"][1:]
        known = sorted({field for each in _models_at(model, above) for field in each.model_fields})
        close = closest(name, known)
        hint = f"did you mean {close!r}?" if close else f"the fields are {_listed(known)}"
        problem["msg"] = f"{problem['msg']}; {hint}"


def _models_at(annotation: Any, loc: list[str | int]) -> Iterator[type[BaseModel]]:
    """The models that may stand at a place of a model; members of unions, lists and dictionaries count."""
    if not is_model_class(annotation):
        for part in get_args(annotation):
            yield from _models_at(part, loc)
    elif not loc:
        yield annotation
    elif loc[0] in annotation.model_fields:
        inner = annotation.model_fields[str(loc[0])].annotation
        # Indices and keys lie between a field and the models in its list or dictionary.
        for skipped in range(len(loc)):
            yield from _models_at(inner, loc[1 + skipped :])


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in islice(names, _NAMED))
    return f"{shown}, …" if len(names) > _NAMED else shown


def _has_level(value: Any, names: Collection[str]) -> bool:
    """Whether the body of a request stands where its inputs are expected."""
    return isinstance(value, Mapping) and set(value) == {"inputs"} and "inputs" not in names


def _shown_names(names: Collection[str]) -> str:
    shown = ", ".join(f"{name!r}: …" for name in islice(names, _NAMED))
    return f"{{{shown}{', …' if len(names) > _NAMED else ''}}}"


def _is_bare(value: Any, names: Collection[str]) -> bool:
    """Whether a value stands where a dictionary, a model or an object with the fields is expected."""
    return not isinstance(value, (Mapping, BaseModel)) and not any(
        hasattr(value, name) for name in names
    )


def _told_the_names(value: Any, names: Collection[str]) -> str:
    return (
        f"the inputs are a dictionary by name; found {describe_value(value)}. "
        f"Pass {_shown_names(names)}."
    )


def bad_output(
    error: ValidationError, value: Any, *, endpoint: str, where: str = ""
) -> ComponentError:
    """What the caller gets when the author's result does not fit the author's schema.

    Args:
        error: pydantic's report.
        value: what was validated; `None` when it is not known.
        endpoint: the endpoint that was called.
        where: the author's line, after a space.
    """
    problems, count = _problems(error, value, ())
    first = problems[0]
    message = (
        f"The component returned something from {endpoint} that its own OutputSchema forbids: "
        f"{_place(first)}{_sentence(first['msg']).rstrip('.')}{_more(problems, count)}{where}"
    )
    if isinstance(value, Mapping) and value and all(part is None for part in value.values()):
        message = f"{endpoint} returned None. Does its function end with `return`?"
    return ComponentError(
        message,
        code="bad_output",
        path=first["path"],
        details={"problems": problems, "count": count},
    )


def _problems(
    error: ValidationError, value: Any, prefix: tuple[str, ...]
) -> tuple[list[dict[str, Any]], int]:
    listed = error.errors(include_url=False, include_input=False)
    shown = [
        {
            "type": entry["type"],
            "loc": [*prefix, *place],
            "path": loc_to_path(place),
            "msg": entry["msg"],
            "ctx": _plain_context(entry.get("ctx") or {}),
        }
        for entry in listed[:_SHOWN]
        for place in [_place_in_data(entry, value)]
    ]
    return shown, len(listed)


def _place_in_data(entry: ErrorDetails, value: Any) -> list[str | int]:
    """A location without the labels that pydantic puts in for members of unions: no keys of the data.

    What is not in the data is a label, unless it comes last: inside an object, or because it is missing.
    Without data (`None`) the location is taken as it is.
    """
    loc, is_missing = entry["loc"], entry["type"] == "missing"
    if value is None:
        return list(loc)
    place: list[str | int] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        if _has(value, part):
            value = value[part] if not isinstance(value, BaseModel) else getattr(value, str(part))
        elif not is_last or not (is_missing or isinstance(value, (Mapping, BaseModel))):
            continue
        place.append(part)
    return place


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    if isinstance(value, BaseModel):
        return part in type(value).model_fields
    return isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)


def _plain_context(context: dict[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, BaseException) else value
        for key, value in context.items()
    }


def _first_cause(error: ValidationError) -> ChainruleError | None:
    context = error.errors(include_url=False, include_input=False)[0].get("ctx") or {}
    cause = context.get("error")
    return cause if isinstance(cause, ChainruleError) else None


def _code(problem: dict[str, Any], cause: ChainruleError | None) -> str:
    if cause is not None:
        return cause.code
    if "code" in problem["ctx"]:
        return str(problem["ctx"]["code"])
    return problem["type"] if problem["type"].startswith("array_") else "invalid_input"


def _place(problem: dict[str, Any]) -> str:
    return f"at {problem['path']!r}: " if problem["path"] else ""


def _sentence(text: str) -> str:
    return text.removeprefix("Value error, ")


def _more(problems: list[dict[str, Any]], count: int) -> str:
    """That there are further problems; a name that is not a field is often the cause of the first."""
    if count == 1:
        return ""
    unknown = [
        f"{p['path']!r} ({p['msg'].rpartition('; ')[2]})"
        for p in problems[1:]
        if p["type"] == "extra_forbidden"
    ]
    return f" (and {count - 1} more{': no such field as ' if unknown else ''}{', '.join(unknown)})"
