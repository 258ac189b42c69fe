"""Lowering calls of the host so that independent ones overlap.

XLA's CPU backend runs calls one after the other, so each is lowered to two: `start` begins the work and
returns a ticket, `finish` takes the operands and the ticket and fills the results. A `finish` waits for every
later `start` in its block that does not depend on it: XLA would order them as it likes, and does so in
programs with very many calls.

The only call of a program has nothing to overlap with: its ticket is `NOT_STARTED`, and `finish` does it all.
If another call follows, the first one gets its start then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from chainrule._jaxpr._host_call import (
    TARGET,
    HostFunction,
    HostTarget,
    emit_call,
    register_function,
)
from chainrule._jaxpr._meshes import array_aval

NOT_STARTED = -1
"""The ticket of work that has not been started; those of other work are not negative."""

_TICKET = array_aval((), np.int32)
_MAX_ARRANGED = 32  # calls of a program; the time to compile it grows with their square
_IMPURE = frozenset(f"stablehlo.{name}" for name in ("custom_call", "infeed", "recv", "rng"))


@dataclass(frozen=True)
class _Lowered:
    """A call that a module has: how it is started and finished, and what it takes."""

    starter: HostTarget
    finisher: HostTarget
    avals_in: tuple[Any, ...]


def lower_overlapping(
    ctx: Any, *operands: Any, start: HostFunction, finish: HostFunction
) -> Sequence[Any]:
    """A call whose work is started before the results of independent calls are waited for."""
    taken = (*ctx.avals_in, _TICKET)
    starter = register_function(start, ctx.avals_in, [_TICKET])
    finisher = register_function(finish, taken, ctx.avals_out)
    earlier = [each for each in ctx.module_context.keepalives if isinstance(each, _Lowered)]
    is_arranged = 0 < len(earlier) < _MAX_ARRANGED
    equal = _equal_call(finisher, operands) if is_arranged else None
    if equal is not None:
        return list(equal.results)
    ctx.module_context.add_keepalive(_Lowered(starter, finisher, tuple(ctx.avals_in)))
    if not earlier and _is_in_main():
        ticket = _constant(NOT_STARTED)
    else:
        for each in earlier[:1]:
            _start_early(ctx, each)
        ticket = emit_call(ctx.replace(avals_out=[_TICKET]), operands, starter)[0]
        if is_arranged:
            _hold_back(ticket, {each.finisher.number for each in earlier})
    return emit_call(ctx.replace(avals_in=taken), [*operands, ticket], finisher)


def _equal_call(finisher: HostTarget, operands: Sequence[Any]) -> Any | None:
    """A call of this function with these operands that the block already has.

    XLA would merge the two as well, but not if one of them has to wait for more calls than the other.
    """
    return next(
        (
            operation
            for operation in _operations(mlir.ir.InsertionPoint.current.block)
            if _number_of(operation) == finisher.number
            and all(map(_are_equal, operation.operands, operands))
        ),
        None,
    )


def _are_equal(left: Any, right: Any, depth: int = 8) -> bool:
    """Whether two values are the same, or made of the same ones by the same few operations."""
    if left == right:
        return True
    makers = left.owner, right.owner
    if depth == 0 or left.type != right.type or mlir.ir.Block in map(type, makers):
        return False
    first, second = (maker.operation for maker in makers)
    return (
        first.name == second.name
        and _is_pure(first)
        and _attributes(first) == _attributes(second)
        and not len(first.regions)
        and mlir.ir.OpResult(left).result_number == mlir.ir.OpResult(right).result_number
        and len(first.operands) == len(second.operands)
        and all(
            _are_equal(a, b, depth - 1)
            for a, b in zip(first.operands, second.operands, strict=True)
        )
    )


def _is_pure(operation: Any) -> bool:
    """Whether an operation gives the same results every time, as far as is known."""
    return (
        operation.name.partition(".")[0] in ("stablehlo", "chlo") and operation.name not in _IMPURE
    )


def _attributes(operation: Any) -> dict[str, Any]:
    attributes = operation.attributes
    return {attributes[n].name: attributes[n].attr for n in range(len(attributes))}


def _constant(number: int) -> Any:
    return mlir.ir_constant(np.int32(number))


def _is_in_main() -> bool:
    """Whether code is being added to a program's entry; other functions may be called several times."""
    owner = mlir.ir.InsertionPoint.current.block.owner.operation
    while owner.name != "func.func":
        owner = owner.parent.operation
    return mlir.ir.StringAttr(owner.attributes["sym_name"]).value == "main"


def _start_early(ctx: Any, lowered: _Lowered) -> None:
    """Give the one call so far, which is finished without having been started, its start."""
    alone = []

    def visit(operation: Any) -> Any:
        if _number_of(operation) == lowered.finisher.number and _is_unstarted(operation):
            alone.append(operation)
        return mlir.ir.WalkResult.ADVANCE

    ctx.module_context.module.operation.walk(visit)
    for operation in alone:
        with mlir.ir.InsertionPoint(operation), operation.location:
            *operands, _ = operation.operands
            started = ctx.replace(avals_in=lowered.avals_in, avals_out=[_TICKET])
            operation.operands[len(operands)] = emit_call(started, operands, lowered.starter)[0]


def _is_unstarted(finish: Any) -> bool:
    ticket = finish.operands[len(finish.operands) - 1].owner
    return getattr(ticket, "name", None) == "stablehlo.constant"


def _number_of(operation: Any) -> int | None:
    """Which host function an operation calls, if it is such a call."""
    if operation.name != "stablehlo.custom_call":
        return None
    if mlir.ir.StringAttr(operation.attributes["call_target_name"]).value != TARGET:
        return None
    attributes = mlir.ir.DictAttr(operation.attributes["mhlo.backend_config"])
    return mlir.ir.IntegerAttr(attributes["number"]).value


def _hold_back(ticket: Any, finishers: set[int]) -> None:
    """Let calls that the start with this ticket does not depend on be finished after it.

    They and all that depends on them move behind it, and their tickets become a choice between it, if it is
    less than `NOT_STARTED`, which it never is, and their own.
    """
    start = ticket.owner.operation
    block = start.block
    needed = _reached(start, block, _sources)
    independent = [
        operation
        for operation in _operations(block)
        if _number_of(operation) in finishers and operation not in needed
    ]
    waiting, behind = [], set()
    for operation in independent:
        if operation not in behind:  # what depends on a call that waits does so without further ado
            waiting.append(operation)
            behind |= _reached(operation, block, _users)
    if not waiting:
        return
    # Before anything changes: the hash of an operation is made of its operands.
    moving = [operation for operation in _operations(block) if operation in behind]
    direction = stablehlo.ComparisonDirectionAttr.get("LT")
    never = stablehlo.compare(ticket, _constant(NOT_STARTED), direction)
    last = never.owner.operation
    for finish in waiting:
        own = len(finish.operands) - 1
        chosen = stablehlo.select(never, ticket, finish.operands[own])
        finish.operands[own], last = chosen, chosen.owner.operation
    for operation in moving:
        operation.move_after(last)
        last = operation


def _operations(block: Any) -> list[Any]:
    return [each.operation for each in block.operations]


def _reached(origin: Any, block: Any, step: Callable[[Any], Iterator[Any]]) -> set[Any]:
    """The operations of a block that are reached from one of them, that one included."""
    found, new = set(), [origin]
    while new:
        operation = new.pop()
        if operation not in found:
            found.add(operation)
            inside = (_ancestor_in(block, each) for each in step(operation))
            new += [each for each in inside if each is not None]
    return found


def _ancestor_in(block: Any, operation: Any) -> Any | None:
    """The operation of a block that is or contains another one."""
    while operation is not None and operation.block != block:
        parent = operation.parent
        operation = None if parent is None else parent.operation
    return operation


def _sources(operation: Any) -> Iterator[Any]:
    """The operations whose results this one, or one in its regions, takes."""
    inner: list[Any] = []

    def visit(each: Any) -> Any:
        inner.append(each)
        return mlir.ir.WalkResult.ADVANCE

    operation.walk(visit)
    owners = (operand.owner for each in inner for operand in each.operands)
    return (owner.operation for owner in owners if not isinstance(owner, mlir.ir.Block))


def _users(operation: Any) -> Iterator[Any]:
    """The operations that take results of this one."""
    return (use.owner.operation for result in operation.results for use in result.uses)
