"""The ancestor's exceptions for ours.

`ComponentError` is a `RuntimeError`, `CapabilityError` a `NotImplementedError` and `TransportError` a
`ConnectionError` already, so they pass. Two have another class there: a refused input, which is pydantic's,
and a file that is not a component, which is a `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from chainrule._errors import DefinitionError, InputError

_TITLES = {
    "apply": "ApplyInputSchema",
    "jacobian": "JacobianInputSchema",
    "jacobian_vector_product": "JVPInputSchema",
    "vector_jacobian_product": "VJPInputSchema",
    "abstract_eval": "AbstractInputSchema",
}


@contextmanager
def load_errors() -> Iterator[None]:
    """Raise `RuntimeError` where a file cannot be loaded, or is not a component."""
    try:
        yield
    except DefinitionError as error:
        raise RuntimeError(str(error)) from error


@contextmanager
def pydantic_errors(
    endpoint: str, payload: Mapping[str, Any], *, is_remote: bool = False
) -> Iterator[None]:
    """Raise pydantic's `ValidationError` where an endpoint refuses its inputs.

    Args:
        endpoint: that is asked.
        payload: what it is asked.
        is_remote: name the endpoint and the places as the ancestor does when it is called over HTTP.
    """
    try:
        yield
    except InputError as error:
        raise as_validation_error(error, endpoint, payload, is_remote=is_remote) from error


def as_validation_error(
    error: InputError, endpoint: str, payload: Mapping[str, Any], *, is_remote: bool = False
) -> ValidationError:
    """The same problems, at the same places, in pydantic's exception.

    Args:
        error: ours.
        endpoint: that refused.
        payload: what it refused, to show the offending values as pydantic does.
        is_remote: as in `pydantic_errors`.
    """
    problems = error.details.get("problems") or [_only_problem(error, payload)]
    lines = [_line(problem, payload) for problem in problems]
    if not is_remote:
        return ValidationError.from_exception_data(_TITLES.get(endpoint, endpoint), lines)
    for line in lines:
        line["loc"] = ("body", *line.get("loc", ()))
    return ValidationError.from_exception_data(f"endpoint {endpoint}", lines)


def _only_problem(error: InputError, payload: Mapping[str, Any]) -> dict[str, Any]:
    """A refusal that names one place, or none: a path that was asked for, or a part of the request."""
    place: list[str | int] = [] if error.path is None else [error.path]
    for name, asked in payload.items():
        if isinstance(asked, list) and error.path in asked:
            place = [name, asked.index(error.path)]
    return {"type": error.code, "loc": place, "msg": error.message, "ctx": {}}


def _line(problem: Mapping[str, Any], payload: Any) -> InitErrorDetails:
    loc = tuple(problem["loc"])
    context = problem.get("ctx") or {}
    # The message is finished; pydantic replaces `{name}` for names in the context only.
    kind = PydanticCustomError(problem["type"], problem["msg"], context)
    return InitErrorDetails(type=kind, loc=loc, input=_value_at(payload, loc))


def _value_at(tree: Any, loc: Sequence[str | int]) -> Any:
    """The offending value; for a field that is missing, what it is missing from."""
    for part in loc:
        try:
            tree = tree[part]
        except (LookupError, TypeError):
            break
    return tree
