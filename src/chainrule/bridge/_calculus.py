"""The calculus of calls, without a framework: which calls make up a derivative of a call.

A call's operands are taken apart by meaning (primals, and the vectors of each slot) and put together again.
JAX's rules (`_differentiate`) and torch's (`chainrule.torch`) differ only in how they make a call and what a
missing tangent looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chainrule._errors import CapabilityError, InputError
from chainrule.bridge._host import Batch, Call
from chainrule.bridge._requests import Request, Space
from chainrule.bridge._routes import check_possible, split_operands
from chainrule.bridge._site import Port, Site

Operands = list[Any]


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


def make_call(
    site: Site,
    sizes: tuple[int, ...],
    primals: Vectors,
    slots: Sequence[Vectors],
    result: Space,
    columns: Space | None = None,
) -> tuple[Call, Operands]:
    """A call and its operands.

    Raises:
        CapabilityError: the target has no endpoint that leads to an answer.
    """
    # A cotangent is written before the tangents.
    ordered = sorted(slots, key=lambda slot: slot.space.side == "inputs")
    request = Request(tuple(slot.space for slot in ordered), result, columns)
    check_possible(site, request)
    operands = [value for part in (primals, *ordered) for value in part.values]
    mapped = tuple(axes for part in (primals, *ordered) for axes in part.mapped)
    return Call(site, request, Batch(sizes, mapped)), operands


def pushed_forward(
    call: Call, operands: Sequence[Any], tangents: Sequence[Any], is_moving: Callable[[Any], bool]
) -> Iterator[tuple[Call, Operands]]:
    """The calls whose sum is the derivative along tangents of the operands.

    One for the moving primals, and one for each slot with moving vectors, in which the call is linear. Their
    results are those of the differentiable part of the call's own result.
    """
    primals, slots = open_call(call, operands)
    primal_tangents, slot_tangents = open_call(call, tangents)
    result = differentiable(call.site, call.request.result)
    moving = primal_tangents.keep(is_moving)
    if moving.values:
        check_inputs(call.site, moving.space)
        yield make_call(call.site, call.batch.sizes, primals, [*slots, moving], result)
    for number, each in enumerate(slot_tangents):
        moving = each.keep(is_moving)
        if moving.values:
            others = [*slots[:number], moving, *slots[number + 1 :]]
            yield make_call(call.site, call.batch.sizes, primals, others, result)


def differentiable(site: Site, space: Space) -> Space:
    """The part of a space that can carry derivatives."""
    return space.keep([port.differentiable for port in space.ports(site)])


def check_inputs(site: Site, moving: Space) -> None:
    """Check that derivatives with respect to these inputs are declared.

    Raises:
        InputError: one of them is not.
    """
    fixed = [port for port in moving.ports(site) if not port.differentiable]
    if fixed:
        listed = ", ".join(f"`{port.path}` {port.type}" for port in fixed)
        raise InputError(
            f"A derivative with respect to {listed} was asked for, which {site.target.name} does not mark "
            "`Differentiable`. Mark it in the component's InputSchema, or stop the gradient before the "
            "call (`jax.lax.stop_gradient`, `Tensor.detach`).",
            code="input_not_differentiable",
            path=fixed[0].path,
        )


def not_differentiable(name: str, port: Port) -> CapabilityError:
    """What to raise where the gradient of an output is asked for that has none: no silent zero."""
    return CapabilityError(
        f"The gradient of `{port.path}` {port.type} of {name} was asked for, which is not marked "
        "`Differentiable`. Mark it in the component's OutputSchema, or stop the gradient after the call "
        "(`jax.lax.stop_gradient`, `Tensor.detach`).",
        code="output_not_differentiable",
        path=port.path,
    )
