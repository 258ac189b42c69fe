"""Calls on a GPU that differ in the numbers of their arrays only, as a compiled program makes them.

Shapes, dtypes and plain values belong to a place in a program, so they are validated once, and no validation
looks at numbers on a GPU. What is left for each call is to copy the arrays (they are XLA's, and an author may
keep or overwrite his own), to put them into the arguments, to call the author's function, and to compare the
types of its results with those that were validated at the first call. Results of other types are validated
like those of any other call, with the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from chainrule._trees import is_arraylike, map_leaves
from chainrule.runtime._component._derivative_handlers import Derivative
from chainrule.runtime._component._devices import OnDevice
from chainrule.runtime._component._failures import call_author
from chainrule.runtime._component._handlers import Evaluation, Handler, Payload, Reading
from chainrule.runtime._component._precision import InDoublePrecision, double_precision
from chainrule.runtime._component._schemas import Context, to_plain


@dataclass(frozen=True)
class _Slot:
    """Stands where an array goes."""

    number: int


class PreparedCall:
    """One endpoint at one place of a program.

    Args:
        endpoint: for messages.
        function: the author's.
        reading: the validated request, with slots for the arrays.
        precision: makes the context in which the function runs.
    """

    def __init__(
        self,
        endpoint: str,
        function: OnDevice,
        reading: Reading,
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._endpoint = endpoint
        self._function = function
        self._reading = reading
        self._precision = precision
        self._types: dict[str, tuple[Any, Any]] | None = None

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, bool]:
        """The result for some arrays, and whether its types are those of the first call."""
        own = self._function.own

        def place(leaf: Any) -> Any:
            return own(arrays[leaf.number]) if type(leaf) is _Slot else leaf

        reading = _map_arguments(partial(map_leaves, place), self._reading)
        with self._precision():
            result = call_author(
                self._function.run, self._endpoint, *reading.positional, **reading.named
            )
        if self._types is not None and self._types_of(result) == self._types:
            return result, True
        checked = reading.finish(self._function.bring_back(result))
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
    handler: Handler,
    function: Callable[..., Any],
    payload: Payload,
    context: Context,
    arrays: Sequence[Any],
) -> PreparedCall | None:
    """A request as a call for other arrays in place of its own.

    Args:
        endpoint: whose request it is.
        handler: of the endpoint.
        function: that answers it.
        payload: the request.
        context: for its validation, which must not copy arrays.
        arrays: those of the request.

    Returns:
        `None` where the handler or the function does more than to validate and to call; or where the request
        has other arrays, or not all of these, after it was validated.
    """
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    if isinstance(handler, InDoublePrecision):
        handler, precision = handler.handler, double_precision
    is_plain = isinstance(handler, Evaluation | Derivative) and isinstance(function, OnDevice)
    if not is_plain or not all(map(function.holds, arrays)):
        return None
    reading = handler.read(payload, context)
    if function.takes_trees:  # which are made anew in less time than models
        reading = _map_arguments(to_plain, reading)
    numbers = {id(array): number for number, array in enumerate(arrays)}
    others = []

    def mark(leaf: Any) -> Any:
        number = numbers.pop(id(leaf), None)
        if number is None:
            others.append(leaf)
            return leaf
        return _Slot(number)

    marked = _map_arguments(partial(map_leaves, mark), reading)
    if numbers or any(map(is_arraylike, others)):
        return None
    return PreparedCall(endpoint, function, marked, precision)


def _map_arguments(function: Callable[[Any], Any], reading: Reading) -> Reading:
    """The request with a function applied to its arguments; sets of paths stay."""
    return Reading(
        tuple(map(function, reading.positional)),
        {
            name: each if isinstance(each, set) else function(each)
            for name, each in reading.named.items()
        },
        reading.finish,
    )
