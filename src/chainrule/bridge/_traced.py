"""Calls of a component that is written in JAX, made part of a compiled program.

JAX must not run inside of a program's call of the host. A component whose function and derivative endpoints
can be traced need not be called there: what they compute becomes part of the program, and the derivatives are
its author's, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.bridge._host import Call
from chainrule.bridge._inline import NOT_TRACEABLE, NotTraceableError, call_inline
from chainrule.bridge._requests import Request, Space
from chainrule.bridge._routes import find_route, routes_to, split_operands
from chainrule.bridge._site import Port, Site, check_result
from chainrule.bridge._types import ArrayType
from chainrule.runtime.internal import JACOBIAN, VJP

Vectors = Sequence[Sequence[Any]]


def trace_call(call: Call, *operands: Any) -> list[Any]:
    """The results of a call as values of the program that is being traced.

    Raises:
        NotTraceableError: the component needs the numbers themselves.
    """
    function: Callable[..., list[Any]] = partial(_answer, call.site, call.request)
    for axis in reversed(range(len(call.batch.sizes))):
        axes = tuple(0 if mapped[axis] else None for mapped in call.batch.mapped)
        function = jax.vmap(function, in_axes=axes, axis_size=call.batch.sizes[axis])
    try:
        return function(*operands)
    except NOT_TRACEABLE as error:
        raise NotTraceableError from error


def _answer(site: Site, request: Request, *operands: Any) -> list[Any]:
    """The answer to one request, checked."""
    primals, vectors = split_operands(site, request, operands)
    rows = request.result.ports(site)
    if request.slots:
        traced = _with_tracers(site)
        by_path = _product(traced, request, traced.build_inputs(primals), vectors)
        values, ports = [by_path[port.path] for port in rows], list(rows)
    elif request.columns is not None:
        traced, columns = _with_tracers(site), request.columns
        values = _jacobian(traced, request.result, columns, traced.build_inputs(primals))
        ports = [row for row in rows for _ in columns.positions]
    else:
        outputs = call_inline(site.target, site.input_skeleton, primals)
        values, ports = site.output_skeleton.extract(outputs), list(rows)
    types = request.result_types(site)
    return [
        _checked(value, port, type_, request, site)
        for value, port, type_ in zip(values, ports, types, strict=True)
    ]


def _with_tracers(site: Site) -> Site:
    """The site of a target that takes tracers, and wants no dtype that JAX does not hold."""

    def held(port: Port) -> Port:
        wire = None if port.wire_dtype is None else site.canonicalize(port.wire_dtype)
        return replace(port, wire_dtype=None if wire == port.type.dtype else wire)

    return replace(
        site,
        target=site.target.with_tracers(),
        inputs=tuple(map(held, site.inputs)),
        outputs=tuple(map(held, site.outputs)),
    )


def _product(site: Site, request: Request, inputs: Any, vectors: Vectors) -> Mapping[str, Any]:
    return find_route(site, request, _IN_PROGRAM)(site, request, inputs, vectors)


def _contract_jacobian(
    site: Site, request: Request, inputs: Any, vectors: Vectors
) -> Mapping[str, Any]:
    given, wanted = request.slots[0].paths(site), request.result.paths(site)
    is_jvp = request.name == "jvp"
    sides = (given, wanted) if is_jvp else (wanted, given)
    blocks = site.target.derivative(JACOBIAN, inputs, *sides, None)

    def term(path: str, other: str, along: Any) -> Any:
        if is_jvp:
            return jnp.tensordot(blocks[path][other], along, along.ndim)
        return jnp.tensordot(along, blocks[other][path], along.ndim)

    pairs = list(zip(given, vectors[0], strict=True))
    return {path: sum(term(path, other, along) for other, along in pairs) for path in wanted}


def _transpose(site: Site, request: Request, inputs: Any, vectors: Vectors) -> Mapping[str, Any]:
    """A form linear in u, from one that is linear in v: Re⟨A v, u⟩ = Re⟨Aᵀ u, v⟩ for all unit vectors u."""
    flipped = request.transposed(0, request.result)
    along = dict(zip(request.slots[0].paths(site), vectors[0], strict=True))
    types = request.result.types(site)

    def entry(position: int, unit: Any) -> Any:
        units = [jnp.zeros(type_.shape, type_.dtype) for type_ in types]
        units[position] = unit
        products = _product(site, flipped, inputs, [units, *vectors[1:]])
        return sum(jnp.sum(products[path] * vector).real for path, vector in along.items())

    def entries(position: int, type_: ArrayType) -> Any:
        units = _units(type_)
        real = jax.vmap(partial(entry, position))(units)
        if type_.dtype.kind != "c":
            return real.reshape(type_.shape)
        return (real + 1j * jax.vmap(partial(entry, position))(-1j * units)).reshape(type_.shape)

    found = [entries(position, type_) for position, type_ in enumerate(types)]
    return dict(zip(request.result.paths(site), found, strict=True))


_IN_PROGRAM = routes_to(_contract_jacobian, _transpose)


def _jacobian(site: Site, rows: Space, columns: Space, inputs: Any) -> list[Any]:
    """The blocks of a Jacobian, row by row: by its endpoint, or by one product per unit vector."""
    names = rows.paths(site), columns.paths(site)
    if JACOBIAN.endpoint in site.target.endpoints:
        found = site.target.derivative(JACOBIAN, inputs, names[1], names[0], None)
        return [found[row][column] for row in names[0] for column in names[1]]
    by_rows = VJP.endpoint in site.target.endpoints
    given, wanted = (rows, columns) if by_rows else (columns, rows)
    blocks = {}
    for path, position, type_ in zip(
        given.paths(site), given.positions, given.types(site), strict=True
    ):
        request = Request((Space(given.side, (position,)),), wanted)
        product = partial(_product, site, request, inputs)
        found = jax.vmap(lambda unit, product=product: product([[unit]]))(_units(type_))
        for other, values in found.items():
            block = values.reshape(*type_.shape, *values.shape[1:])
            rank = len(type_.shape)
            back = range(-rank, 0)
            blocks[path, other] = block if by_rows else jnp.moveaxis(block, range(rank), back)
    return [blocks[(r, c) if by_rows else (c, r)] for r in names[0] for c in names[1]]


def _units(type_: ArrayType) -> Any:
    return jnp.eye(type_.size, dtype=type_.dtype).reshape(type_.size, *type_.shape)


def _checked(value: Any, port: Port, type_: ArrayType, request: Request, site: Site) -> Any:
    """A result in its promised dtype, of the promised shape."""
    value = value if value is None else jnp.asarray(value)
    seen = value if value is None else np.broadcast_to(np.ones((), value.dtype), value.shape)
    check_result(seen, port, type_, request, site.target)
    return value.astype(type_.dtype)
