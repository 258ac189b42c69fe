"""Endpoints: a payload in, the author's function, a plain tree out.

Each endpoint validates once on the way in and once on the way out. Derivatives have a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from chainrule._errors import InputError
from chainrule.runtime._component._author import call_author
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._component._schemas import Context, Schemas

__all__ = ["AbstractEval", "Apply", "Endpoint", "Payload", "check_fields"]

Payload = Mapping[str, Any]


class Endpoint(Protocol):
    """Something a component can be asked for."""

    def __call__(self, payload: Payload, context: Context) -> Any:
        """Answer one request."""


@dataclass(frozen=True)
class Apply:
    """`apply`: inputs to outputs."""

    schemas: Schemas
    function: Callable[..., Any]

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The outputs as a plain tree."""
        check_fields(payload, ("inputs",), "apply")
        inputs = self.schemas.read_inputs(payload["inputs"], "apply", context)
        result = call_author(self.function, "apply", inputs)
        return to_plain(self.schemas.read_outputs(result, "apply", context))


@dataclass(frozen=True)
class AbstractEval:
    """`abstract_eval`: shapes and dtypes of inputs to shapes and dtypes of outputs."""

    schemas: Schemas
    function: Callable[..., Any]

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The abstract outputs as a plain tree."""
        name = "abstract_eval"
        check_fields(payload, ("inputs",), name)
        inputs = self.schemas.read_abstract_inputs(payload["inputs"], name, context)
        result = call_author(self.function, name, inputs)
        return to_plain(self.schemas.read_abstract_outputs(result, name, context))


def check_fields(payload: Payload, expected: tuple[str, ...], endpoint: str) -> None:
    """Refuse a payload that has other fields than its endpoint.

    Raises:
        InputError: the first field that is missing or unknown is named.
    """
    if not isinstance(payload, Mapping):
        raise InputError(
            f"{endpoint}: expected an object with {', '.join(expected)}; "
            f"found {type(payload).__name__}.",
            code="invalid_input",
            details={"problems": [_problem("dict_type", [], "Expected an object")], "count": 1},
        )
    if len(payload) == len(expected) and all(name in payload for name in expected):
        return
    problems = [
        *(_problem("missing", [n], "Field required") for n in expected if n not in payload),
        *(_problem("extra_forbidden", [str(n)], "Unknown field") for n in payload
          if n not in expected),
    ]  # fmt: skip
    first = problems[0]
    raise InputError(
        f"{endpoint}: {first['msg'].lower()}: {first['path']!r}. A request has the fields "
        f"{', '.join(expected)}.",
        code="missing_field" if first["type"] == "missing" else "unknown_field",
        path=first["path"],
        details={"problems": problems[:20], "count": len(problems)},
    )


def _problem(kind: str, loc: list[str], message: str) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "path": ".".join(loc), "msg": message, "ctx": {}}
