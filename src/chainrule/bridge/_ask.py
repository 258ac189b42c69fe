"""Binding the primitive: a call's operands, taken apart and put together by meaning instead of position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Primitive

from chainrule.bridge._host import Batch, Call
from chainrule.bridge._requests import Request, Space
from chainrule.bridge._routes import check_possible, split_operands
from chainrule.bridge._site import Site

__all__ = ["Vectors", "ask", "host_call_p", "open_call"]

host_call_p = Primitive("host_call")
host_call_p.multiple_results = True


@dataclass(frozen=True)
class Vectors:
    """Arrays over a space, and for each of them which axes of the call's batch it has."""

    space: Space
    values: tuple[Any, ...]
    mapped: tuple[tuple[bool, ...], ...]

    def keep(self, is_wanted: Callable[[Any], bool]) -> Vectors:
        """Those whose value is wanted."""
        wanted = [is_wanted(value) for value in self.values]
        return Vectors(
            self.space.keep(wanted),
            tuple(v for v, keep in zip(self.values, wanted, strict=True) if keep),
            tuple(m for m, keep in zip(self.mapped, wanted, strict=True) if keep),
        )

    def with_mapped(self, change: Callable[[tuple[bool, ...]], tuple[bool, ...]]) -> Vectors:
        """The same with other batch axes."""
        return Vectors(self.space, self.values, tuple(change(each) for each in self.mapped))


def open_call(call: Call, operands: Sequence[Any]) -> tuple[Vectors, list[Vectors]]:
    """The primals and the contents of the slots."""
    site, request = call.site, call.request
    primals, slots = split_operands(site, request, operands)
    primals_mapped, slots_mapped = split_operands(site, request, call.batch.mapped)
    everything = Space("inputs", tuple(range(len(site.inputs))))
    filled = [
        Vectors(space, tuple(values), tuple(mapped))
        for space, values, mapped in zip(request.slots, slots, slots_mapped, strict=True)
    ]
    return Vectors(everything, tuple(primals), tuple(primals_mapped)), filled


def ask(
    site: Site,
    sizes: tuple[int, ...],
    primals: Vectors,
    slots: Sequence[Vectors],
    result: Space,
    columns: Space | None = None,
) -> list[Any]:
    """Bind a request.

    Raises:
        CapabilityError: the target has no endpoint that leads to an answer.
    """
    # A cotangent is written before the tangents.
    ordered = sorted(slots, key=lambda slot: slot.space.side == "inputs")
    request = Request(tuple(slot.space for slot in ordered), result, columns)
    check_possible(site, request)
    operands = [value for part in (primals, *ordered) for value in part.values]
    mapped = tuple(axes for part in (primals, *ordered) for axes in part.mapped)
    return host_call_p.bind(*operands, call=Call(site, request, Batch(sizes, mapped)))
