"""Lowering calls of the host so that independent ones run at the same time.

XLA's CPU backend makes calls one after the other, so each is lowered to two: `start` begins the work and
returns a ticket, `finish` takes the operands and the ticket, waits, and fills the results. Where all operands
are at hand, XLA's schedule happens to put starts first. Where those of one call are computed (`f(x) @ g(x +
1)`), it finishes the first call before it starts the second. So calls of one block have *rounds*: a call that
depends on no other is in round 0, any other in the round after the last one that it depends on. Every finish
also takes the sum of the tickets of its round, which the host ignores: XLA then cannot finish a call of a
round before all of it are started. This adds no cycle, since a start depends on finishes of earlier rounds
only. Equal calls are in the same round and take the same sum, so XLA still merges them.

Adding a ticket to a sum that earlier calls of the block take is the one place where operations that have been
emitted already change: JAX has no hook at the end of a lowering. The start, and what it depends on, moves
before the first finish of its round.

Measured (two cores, JAX 0.10, remote components that take 0.2 s per request, seconds per call of the program;
*direct* is one blocking call, *futures* lets the handler return an `XLA_FFI_Future`, *pairs* is start and
finish without rounds):

                                             direct   futures   pairs   rounds
    jit(f(x) @ g(x))                           0.40      0.41    0.21     0.21
    jit(f(x) @ g(sin(x) + 1))                  0.40      0.41    0.40     0.21
    jit(grad) of f(x) @ g(x)                   0.81      0.80    0.42     0.41
    ten calls with computed operands           2.10         –    0.46     0.22

XLA's executor runs programs of fewer than about eight operations, or of small arrays, one operation at a
time, also those that return futures.
`benchmarks/bench_bridge.py` compares the second row with calls that are made one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from chainrule._jaxpr._host_call import TARGET, HostFunction, emit_call, register_function
from chainrule._jaxpr._meshes import array_aval

_TICKET = array_aval((), np.int32)
_MAX_ARRANGED = 32  # calls of a block; the time to compile it grows with their square
_ROUND = "round"
"""The attribute of a finish that has a round. Behind `number`, which the handler reads, in the alphabet."""


def lower_overlapping(
    ctx: Any, *operands: Any, start: HostFunction, finish: HostFunction
) -> Sequence[Any]:
    """A call whose work is started before the results of independent calls are waited for."""
    taken = (*ctx.avals_in, _TICKET, _TICKET)
    starter = register_function(start, ctx.avals_in, [_TICKET])
    finisher = register_function(finish, taken, ctx.avals_out)
    ctx.module_context.add_keepalive((starter, finisher))
    ticket = emit_call(ctx.replace(avals_out=[_TICKET]), operands, starter)[0]
    operations = [each.operation for each in mlir.ir.InsertionPoint.current.block.operations]
    rounds = {position: number for position, operation in enumerate(operations)
              if (number := _round_of(operation)) is not None}  # fmt: skip
    finishing, attributes, tickets = ctx.replace(avals_in=taken), {}, ticket
    if len(rounds) < _MAX_ARRANGED:
        number, tickets = _join_round(ticket, operations, rounds)
        attributes = {_ROUND: np.int64(number)}
    return emit_call(finishing, [*operands, ticket, tickets], finisher, **attributes)


def _join_round(ticket: Any, operations: list[Any], rounds: dict[int, int]) -> tuple[int, Any]:
    """The round of the call that was just started, and the sum of the tickets of that round.

    Args:
        ticket: of its start, which is the last operation.
        operations: of the block.
        rounds: of the finishes among them, by position.
    """
    needed = _needed(operations[-1], operations)
    number = max((rounds[n] + 1 for n in needed & rounds.keys()), default=0)
    peers = [position for position, other in rounds.items() if other == number]
    if not peers:
        return number, ticket
    first = operations[peers[0]]
    # All that these take is among them, or before the first finish; none is a finish of this round.
    for position in sorted(needed):
        if position > peers[0]:
            operations[position].move_before(first)
    last = len(first.operands) - 1
    with mlir.ir.InsertionPoint(first):
        tickets = stablehlo.add(first.operands[last], ticket)
    for position in peers:
        finish = operations[position]
        finish.operands[len(finish.operands) - 1] = tickets
    return number, tickets


def _round_of(operation: Any) -> int | None:
    """The round of an operation that is a finish and has one."""
    if operation.name != "stablehlo.custom_call":
        return None
    if mlir.ir.StringAttr(operation.attributes["call_target_name"]).value != TARGET:
        return None
    attributes = mlir.ir.DictAttr(operation.attributes["mhlo.backend_config"])
    return mlir.ir.IntegerAttr(attributes[_ROUND]).value if _ROUND in attributes else None


def _needed(origin: Any, operations: list[Any]) -> set[int]:
    """The positions of the operations that one of them depends on, its own included."""
    positions = {operation: position for position, operation in enumerate(operations)}
    found, new = set(), [origin]
    while new:
        operation = new.pop()
        position = positions.get(operation)
        if position is not None and position not in found:
            found.add(position)
            new += _sources(operation)
    return found


def _sources(operation: Any) -> Iterator[Any]:
    """The operations whose results this one, or one in its regions, takes."""
    inner: list[Any] = []

    def visit(each: Any) -> Any:
        inner.append(each)
        return mlir.ir.WalkResult.ADVANCE

    operation.walk(visit)
    owners = (operand.owner for each in inner for operand in each.operands)
    return (owner.operation for owner in owners if not isinstance(owner, mlir.ir.Block))
