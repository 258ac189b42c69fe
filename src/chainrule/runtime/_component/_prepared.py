"""Calls on a GPU that differ in the numbers of their arrays only, as a compiled program makes them.

Shapes, dtypes and plain values belong to a place in a program, so they are validated once, and no validation
looks at numbers on a GPU. What is left for each call is to copy the arrays (they are XLA's, and an author may
keep or overwrite his own), to put them into the arguments, to call the author's function, and to compare the
types of its results with those that were validated at the first call. Results of other types are validated
like those of any other call, with the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chainrule._endpoints import ENDPOINTS, DerivativeKind
from chainrule._trees import is_arraylike, map_leaves
from chainrule.runtime._component._devices import OnDevice
from chainrule.runtime._component._handlers import (
    OutputShapes,
    Payload,
    call_author,
    check_fields,
    read_derivative_request,
)
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._schema._plain import to_plain


@dataclass(frozen=True)
class _Slot:
    """Stands where an array goes."""

    number: int


class PreparedCall:
    """One endpoint at one place of a program.

    Args:
        endpoint: for messages.
        function: the author's.
        arguments: its validated arguments by name, with slots for the arrays.
        finish: validates a result, and makes a plain tree of it.
    """

    def __init__(
        self,
        endpoint: str,
        function: OnDevice,
        arguments: dict[str, Any],
        finish: Callable[[Any], Any],
    ) -> None:
        self._endpoint = endpoint
        self._function = function
        self._arguments = arguments
        self._finish = finish
        self._types: dict[str, tuple[Any, Any]] | None = None

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, bool]:
        """The result for some arrays, and whether its types are those of the first call."""
        own = self._function.own

        def place(leaf: Any) -> Any:
            return own(arrays[leaf.number]) if type(leaf) is _Slot else leaf

        arguments = _map_arguments(place, self._arguments)
        if self._endpoint == "apply":
            result = call_author(self._function.run, "apply", arguments["inputs"])
        else:
            result = call_author(self._function.run, self._endpoint, **arguments)
        if self._types is not None and self._types_of(result) == self._types:
            return result, True
        checked = self._finish(self._function.bring_back(result))
        if self._types is None:
            self._types = self._types_of(checked)
        return checked, False

    def _types_of(self, result: Any) -> dict[str, tuple[Any, Any]] | None:
        """The types of a result that is a dictionary of arrays on the GPU; `None` for any other."""
        holds = self._function.holds
        if type(result) is not dict or not all(map(holds, result.values())):
            return None
        return {key: (array.shape, array.dtype) for key, array in result.items()}


def prepare(
    endpoint: str,
    schemas: Schemas,
    shapes: OutputShapes | None,
    function: Callable[..., Any],
    payload: Payload,
    context: Context,
    arrays: Sequence[Any],
) -> PreparedCall | None:
    """A request as a call for other arrays in place of its own.

    Args:
        endpoint: whose request it is.
        schemas: of the component.
        shapes: of its outputs.
        function: that answers the endpoint.
        payload: the request.
        context: for its validation, which must not copy arrays.
        arrays: those of the request.

    Returns:
        `None` where the function does more than to run on a GPU; or where the validated request has other
        arrays, or not all of these.
    """
    if not isinstance(function, OnDevice) or not all(map(function.holds, arrays)):
        return None
    kind = ENDPOINTS[endpoint]
    if isinstance(kind, DerivativeKind):
        assert shapes is not None
        arguments, finish = read_derivative_request(
            kind, schemas, function, shapes, payload, context
        )
    else:
        check_fields(payload, ("inputs",), endpoint)
        arguments = {"inputs": schemas.read_inputs(payload["inputs"], endpoint, context)}

        def finish(result: Any) -> Any:
            # Sizes that a result gives to names of dimensions are not those of the next one.
            own = {**context, "dims": dict(context["dims"])}
            return to_plain(schemas.read_outputs(result, endpoint, own))

    if function.takes_trees:  # which are made anew in less time than models
        arguments["inputs"] = to_plain(arguments["inputs"])
    numbers = {id(array): number for number, array in enumerate(arrays)}
    others = []

    def mark(leaf: Any) -> Any:
        number = numbers.pop(id(leaf), None)
        if number is None:
            others.append(leaf)
            return leaf
        return _Slot(number)

    marked = _map_arguments(mark, arguments)
    if numbers or any(map(is_arraylike, others)):
        return None
    return PreparedCall(endpoint, function, marked, finish)


def _map_arguments(function: Callable[[Any], Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with a function applied to their leaves; sets of paths stay."""
    return {
        name: each if isinstance(each, set) else map_leaves(function, each)
        for name, each in arguments.items()
    }
