"""`tagged_intermediates`: what a component sows on its way, for callers who ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from chainrule._errors import CapabilityError, ComponentError, InputError
from chainrule.runtime._component._author import (
    call_author,
    check_signature,
    takes_argument,
)
from chainrule.runtime._component._endpoints import Payload, check_fields
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._component._requests import read_free_vector
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._derivatives._kinds import COTANGENT, TANGENT
from chainrule.runtime._schema import describe_value

TAGGED = "tagged_intermediates"
_ARGUMENTS = ("inputs", "tag", TANGENT.name, COTANGENT.name)
_OPTIONAL = (*_ARGUMENTS[1:], "abstract")


@dataclass(frozen=True)
class Tagged:
    """The endpoint. A request has `inputs`, and may have the other arguments and `abstract`.

    Attributes:
        schemas: of the component.
        function: the author's, or the recipe of a framework.
        knows_shapes: whether the function takes `abstract`.
    """

    schemas: Schemas
    function: Callable[..., Any]
    knows_shapes: bool
    can_batch: ClassVar[bool] = False

    def __call__(self, payload: Payload, context: Context) -> Any:
        """`{name: {mode: value}}` as a plain tree."""
        check_fields(payload, ("inputs",), TAGGED, _OPTIONAL)
        read = self._abstract if payload.get("abstract") else self._concrete
        arguments = {"tag": _read_tag(payload), **read(payload, context)}
        return to_plain(_checked(call_author(self.function, TAGGED, **arguments)))

    def _concrete(self, payload: Payload, context: Context) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "inputs": self.schemas.read_inputs(payload["inputs"], TAGGED, context)
        }
        for vector in (TANGENT, COTANGENT):
            given = payload.get(vector.name)
            arguments[vector.name] = (
                None
                if given is None
                else read_free_vector(vector, self.schemas, arguments["inputs"], given, context)
            )
        return arguments

    def _abstract(self, payload: Payload, context: Context) -> dict[str, Any]:
        if not self.knows_shapes:
            raise CapabilityError(
                f"{TAGGED} of this component does not tell shapes without computing; its author can let "
                "it take `abstract`.",
                code="no_abstract_intermediates",
            )
        inputs = self.schemas.read_abstract_inputs(payload["inputs"], TAGGED, context)
        return {"inputs": inputs, TANGENT.name: None, COTANGENT.name: None, "abstract": True}


def tagged_endpoint(schemas: Schemas, function: Callable[..., Any]) -> Tagged:
    """The endpoint around a function."""
    check_signature(function, TAGGED, _ARGUMENTS)
    return Tagged(schemas, function, takes_argument(function, "abstract"))


def _read_tag(payload: Payload) -> str:
    tag = payload.get("tag", "intermediates")
    if not isinstance(tag, str):
        raise InputError(
            f"tag: expected the text that values are tagged with; found {describe_value(tag)}.",
            code="bad_tag",
            path="tag",
        )
    return tag


def _checked(result: Any) -> Any:
    if isinstance(result, Mapping) and all(isinstance(entry, Mapping) for entry in result.values()):
        return result
    raise ComponentError(
        f"{TAGGED} returned {describe_value(result)}, expected "
        '{name: {"primal": value, "tangent" or "cotangent": value}}.',
        code="bad_output",
    )
