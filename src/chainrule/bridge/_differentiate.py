"""The jvp and transpose rules of the host call, for every request at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from chainrule._errors import CapabilityError
from chainrule._jaxpr._meshes import array_aval, as_type, vary_alike
from chainrule.bridge._ask import ask, bind_call
from chainrule.bridge._calculus import (
    Vectors,
    check_inputs,
    differentiable,
    not_differentiable,
    open_call,
    pushed_forward,
)
from chainrule.bridge._host import Call
from chainrule.bridge._native_batching import broadcast_site
from chainrule.bridge._requests import Space
from chainrule.bridge._site import Port
from chainrule.bridge._types import ArrayType, is_inexact


def jvp_rule(operands: Any, tangents: Any, *, call: Call) -> tuple[list[Any], list[Any]]:
    """A sum of one term for the moving primals and one for each slot with moving vectors."""
    results = bind_call(call, operands)
    call, operands, tangents = _broadcast(call, operands, tangents)
    if call.request.columns is not None:
        return results, _jacobian_tangents(call, operands, tangents)
    terms = [
        bind_call(term, term_operands)
        for term, term_operands in pushed_forward(call, operands, tangents, _is_nonzero)
    ]
    total = [jax.tree.reduce(jnp.add, list(parts)) for parts in zip(*terms, strict=True)]
    return results, _place(call, results, total, [t for t in tangents if _is_nonzero(t)])


def _broadcast(call: Call, operands: Any, tangents: Any) -> tuple[Call, list[Any], list[Any]]:
    """The same with the whole batch in front of every operand, where the batch is the target's business."""
    site = broadcast_site(call.site)
    if site is call.site:
        return call, operands, tangents
    call = replace(call, site=site)
    shapes = [type_.shape for type_ in call.operand_types]
    return (
        call,
        [jnp.broadcast_to(o, shape) for o, shape in zip(operands, shapes, strict=True)],
        [
            jnp.broadcast_to(t, shape) if _is_nonzero(t) else t
            for t, shape in zip(tangents, shapes, strict=True)
        ],
    )


def transpose_rule(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    """Exchange the slot that holds the unknown vectors with the result."""
    primals, slots = open_call(call, operands)
    if any(map(ad.is_undefined_primal, primals.values)):
        raise _not_linear(call)
    number = next(
        n for n, slot in enumerate(slots) if any(map(ad.is_undefined_primal, slot.values))
    )
    unknown = slots[number].keep(ad.is_undefined_primal)
    everywhere = (True,) * len(call.batch.sizes)
    given = Vectors(
        call.request.result, tuple(cotangents), (everywhere,) * len(cotangents)
    ).keep(_is_nonzero)  # fmt: skip
    if not given.values:
        return [ad.Zero(o.aval) if ad.is_undefined_primal(o) else None for o in operands]
    others = [*slots[:number], given, *slots[number + 1 :]]
    answers = ask(call.site, call.batch.sizes, primals, others, unknown.space)
    # An operand without a batch axis was used by every example of that axis.
    summed = iter(
        answer.sum([axis for axis, has in enumerate(mapped) if not has])
        for answer, mapped in zip(answers, unknown.mapped, strict=True)
    )
    return [as_type(next(summed), o.aval) if ad.is_undefined_primal(o) else None for o in operands]


def _not_linear(call: Call) -> CapabilityError:
    return CapabilityError(
        f"{call!r} was to be transposed, which only a linear function can be, and nothing says that "
        f"{call.site.target.name} is linear in its inputs. Transpose its derivative, which is: "
        "`jax.vjp(f, x)[1]`, or `jax.linear_transpose(jax.linearize(f, x)[1], x)`.",
        code="not_linear",
    )


def _is_nonzero(tangent: Any) -> bool:
    return not isinstance(tangent, ad.Zero) and tangent.dtype != jax.dtypes.float0


def _place(call: Call, results: list[Any], tangents: list[Any], moving: list[Any]) -> list[Any]:
    """Tangents of the results of a call, of which some do not move."""
    space = call.request.result
    positions = differentiable(call.site, space).positions
    by_position = dict(zip(positions, tangents, strict=True))
    placed = []
    for position, port, result, type_ in zip(
        space.positions, space.ports(call.site), results, call.result_types, strict=True
    ):
        if position in by_position:
            placed.append(by_position[position])
        elif is_inexact(type_.dtype):
            whose = {"port": port, "name": call.site.target.name}
            placed.append(_constant_p.bind(*vary_alike(moving), type_=type_, **whose))
        else:
            placed.append(ad.Zero(jax.typeof(result).to_tangent_aval()))
    return placed


def _jacobian_tangents(call: Call, operands: Any, tangents: Any) -> list[Any]:
    """The Jacobian's derivative, through the rows of which it consists."""
    primals, _ = open_call(call, operands)
    moving = open_call(call, tangents)[0].keep(_is_nonzero)
    positions = {position: number for number, position in enumerate(moving.space.positions)}

    def rows(*values: Any) -> list[Any]:
        replaced = tuple(
            values[positions[position]] if position in positions else value
            for position, value in zip(primals.space.positions, primals.values, strict=True)
        )
        return _jacobian_by_rows(call, Vectors(primals.space, replaced, primals.mapped))

    check_inputs(call.site, moving.space)
    start = [primals.values[position] for position in moving.space.positions]
    return jax.jvp(rows, start, list(moving.values))[1]


def _jacobian_by_rows(call: Call, primals: Vectors) -> list[Any]:
    """Every row is a vjp of a unit vector; the units are an innermost batch axis."""
    sizes = call.batch.sizes
    columns = call.request.columns
    assert columns is not None
    blocks = []
    for position, type_ in zip(
        call.request.result.positions, call.request.result.types(call.site), strict=True
    ):
        units = jnp.eye(type_.size, dtype=type_.dtype).reshape(type_.size, *type_.shape)
        axes = (*(False for _ in sizes), True)
        given = Vectors(Space("outputs", (position,)), (units,), (axes,))
        inner = primals.with_mapped(lambda mapped: (*mapped, False))
        found = ask(call.site, (*sizes, type_.size), inner, [given], columns)
        for block, column in zip(found, columns.types(call.site), strict=True):
            blocks.append(block.reshape((*sizes, *type_.shape, *column.shape)).astype(type_.dtype))
    return blocks


# The tangent of an output that is not marked `Differentiable`: zero going forward, like a constant, and an
# error when somebody asks for its gradient, who would otherwise get a silent zero.
_constant_p = Primitive("undifferentiable_output")


def _transpose_constant(cotangent: Any, *tangents: Any, type_: Any, port: Port, name: str) -> Any:
    raise not_differentiable(name, port)


def _batch_constant(tangents: Any, dims: Any, *, type_: ArrayType, **whose: Any) -> tuple[Any, int]:
    pairs = zip(tangents, dims, strict=True)
    size = next(tangent.shape[dim] for tangent, dim in pairs if dim is not None)
    return _constant_p.bind(*tangents, type_=type_.with_leading(size), **whose), 0


def _zeros(*tangents: Any, type_: ArrayType, **whose: Any) -> Any:
    return jnp.zeros(type_.shape, type_.dtype)


def _constant_jvp(
    operands: Any, tangents: Any, *, type_: ArrayType, **whose: Any
) -> tuple[Any, Any]:
    moving = [tangent for tangent in tangents if _is_nonzero(tangent)]
    return _zeros(type_=type_), _constant_p.bind(*moving, type_=type_, **whose)


_constant_p.def_abstract_eval(
    lambda *tangents, type_, **whose: array_aval(type_.shape, type_.dtype, tangents)
)
_constant_p.def_impl(_zeros)
ad.primitive_jvps[_constant_p] = _constant_jvp
ad.primitive_transposes[_constant_p] = _transpose_constant
batching.primitive_batchers[_constant_p] = _batch_constant
mlir.register_lowering(_constant_p, mlir.lower_fun(_zeros, multiple_results=False))
