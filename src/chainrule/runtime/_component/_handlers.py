"""Handlers: one for each endpoint of a component. A payload in, the author's function, a plain tree out.

Each handler validates once on the way in and once on the way out. Derivatives have a file of their own.
A call is `read`, the author's function, and `finish`; compiled programs on a GPU read once for many calls
(`_prepared`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel

from chainrule._describe import describe_value
from chainrule._endpoints import to_abstract
from chainrule._errors import InputError
from chainrule.runtime._component._definition import check_signature
from chainrule.runtime._component._failures import call_author
from chainrule.runtime._component._schemas import Context, Schemas, to_plain

Payload = Mapping[str, Any]


class Reading(NamedTuple):
    """A validated request.

    Attributes:
        positional: the arguments of the author's function that are given by position.
        named: those that are given by name.
        finish: validates what the function returned, and makes a plain tree of it.
    """

    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    finish: Callable[[Any], Any]


class Handler(Protocol):
    """Answers the requests of one endpoint.

    Attributes:
        can_batch: whether a batch of vectors is answered in one call.
    """

    @property
    def can_batch(self) -> bool: ...

    def __call__(self, payload: Payload, context: Context) -> Any:
        """Answer one request."""


class Wrapper(ABC):
    """A handler that does something around another one.

    Args:
        name: of the endpoint.
        handler: the other one.
    """

    def __init__(self, name: str, handler: Handler) -> None:
        self.name = name
        self.handler = handler
        self.can_batch = handler.can_batch

    @abstractmethod
    def __call__(self, payload: Payload, context: Context) -> Any:
        """Answer one request."""


Read = Callable[[Any, str, Context], BaseModel]


@dataclass(frozen=True)
class Evaluation:
    """`apply` and `abstract_eval`: a tree of inputs to a tree of outputs.

    `note`, where given, is told the abstract inputs and the outputs of every evaluation.
    """

    name: str
    function: Callable[[Any], Any]
    read_inputs: Read
    read_outputs: Read
    note: Callable[[Any, Any], None] | None = None
    can_batch: ClassVar[bool] = False

    def read(self, payload: Payload, context: Context) -> Reading:
        """The request, validated."""
        check_fields(payload, ("inputs",), self.name)
        inputs = self.read_inputs(payload["inputs"], self.name, context)

        def finish(result: Any) -> Any:
            # Sizes that a result gives to names of dimensions are not those of the next one.
            own = {**context, "dims": dict(context["dims"])}
            return to_plain(self.read_outputs(result, self.name, own))

        return Reading((inputs,), {}, finish)

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The outputs as a plain tree."""
        reading = self.read(payload, context)
        (inputs,) = reading.positional
        # Made before the call: the author's code may change its inputs.
        abstract = None if self.note is None else to_abstract(to_plain(inputs))
        outputs = reading.finish(call_author(self.function, self.name, inputs))
        if self.note is not None:
            self.note(abstract, outputs)
        return outputs


def evaluation_handler(
    name: str,
    schemas: Schemas,
    function: Callable[[Any], Any],
    note: Callable[[Any, Any], None] | None = None,
) -> Evaluation:
    """The handler of `apply` or `abstract_eval`."""
    check_signature(function, name, 1)
    if name == "apply":
        return Evaluation(name, function, schemas.read_inputs, schemas.read_outputs, note)
    return Evaluation(name, function, schemas.read_abstract_inputs, schemas.read_abstract_outputs)


def check_fields(
    payload: Payload, expected: tuple[str, ...], endpoint: str, optional: tuple[str, ...] = ()
) -> None:
    """Refuse a payload that has other fields than its endpoint.

    Args:
        payload: the body of a request.
        expected: the fields it has to have.
        endpoint: whose request it is.
        optional: the fields it may have.

    Raises:
        InputError: the first field that is missing or unknown is named.
    """
    if type(payload) is dict and payload.keys() == set(expected):
        return
    if not isinstance(payload, Mapping):
        raise InputError(
            f"{endpoint}: expected an object with {', '.join(expected)}; "
            f"found {describe_value(payload)}.",
            code="invalid_input",
            details={"problems": [_problem("dict_type", [], "Expected an object")], "count": 1},
        )
    problems = [
        *(_problem("missing", [n], "Field required") for n in expected if n not in payload),
        *(_problem("extra_forbidden", [str(n)], "Unknown field") for n in payload
          if n not in (*expected, *optional)),
    ]  # fmt: skip
    if not problems:
        return
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
