"""Components written in JAX that run in this process become part of the caller's program.

*Inlined* (`call_inline`): the component's function is traced with the caller's tracers, so every
transformation works to any order and XLA fuses across the border. What the schema would check on values is
checked once per signature on shapes and dtypes.

*Traced* (`trace_call`): with `inline=False`, or where the author wrote a derivative by hand, the caller's
program holds a call of the component. JAX must not run inside of a compiled program's call of the host, so
when such a program is lowered, the function or the derivative endpoint that the call stands for is traced
into it. The derivatives are the author's, as everywhere else. An endpoint validates numbers, which a tracer
does not have: the schema sees ones of the tracer's shape and dtype, and tracers take the place of what it
makes of them (`TraceableEndpoints`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._endpoints import JACOBIAN, VJP
from chainrule._jaxpr import NOT_TRACEABLE, component_scope
from chainrule._trees import get_at_path, is_arraylike, set_at_path
from chainrule.bridge._requests import Call, Request, Space
from chainrule.bridge._routes import Slots, find_route, sides
from chainrule.bridge._site import Port, Site, check_result
from chainrule.bridge._target import Target
from chainrule.bridge._types import (
    ArrayType,
    Skeleton,
    dtype_to_send,
    has_symbolic_size,
    take_apart,
    warn_if_narrowed,
)
from chainrule.runtime import LocalComponent
from chainrule.runtime.internal import to_plain


class NotTraceableError(Exception):
    """The function needs the numbers themselves; it has to be called on the host."""


def call_inline(target: Target, skeleton: Skeleton, arrays: Sequence[Any]) -> Any:
    """Trace the component's function into the current program.

    Raises:
        NotTraceableError: it cannot be traced.
        InputError: shapes, dtypes or static leaves do not fit the schema.
        ComponentError: the outputs do not.
    """
    assert target.jax_function is not None
    completed, types, sizes = _complete(target, skeleton, arrays)
    warn_if_narrowed(target.name, {p: t.dtype for p, t in zip(completed.paths, types, strict=True)})
    by_path = dict(zip(skeleton.paths, arrays, strict=True))
    if any(path not in by_path for path in completed.paths):
        raise NotTraceableError  # a default that only the component itself knows
    cast = [
        _cast(by_path[path], type_.dtype)
        for path, type_ in zip(completed.paths, types, strict=True)
    ]
    try:
        with component_scope(target.name):
            outputs = to_plain(target.jax_function(completed.build(cast)))
    except NOT_TRACEABLE as error:
        raise NotTraceableError from error
    output_skeleton, results = take_apart(outputs, partial(_is_result, target))
    pairs = zip(output_skeleton.paths, results, strict=True)
    sizes = dict(sizes)
    return output_skeleton.build(
        [_fit(target, path, jnp.asarray(result), sizes) for path, result in pairs]
    )


def _is_result(target: Target, path: str, leaf: Any) -> bool:
    """An array, or a number that stands for one."""
    return is_arraylike(leaf) or (isinstance(leaf, Number) and target.is_array_output(path))


def _fit(target: Target, path: str, result: Any, sizes: dict[str, Any]) -> Any:
    """A result as the schema declares it, which its endpoint would make of it."""
    if has_symbolic_size(result):
        return result
    found = ArrayType(tuple(result.shape), np.dtype(result.dtype))
    wanted = target.fit_output(path, found, sizes)
    shaped = result if wanted.shape == result.shape else jnp.broadcast_to(result, wanted.shape)
    return _cast(shaped, wanted.dtype)


def _cast(array: Any, wanted: np.dtype[Any]) -> Any:
    held = jax.dtypes.canonicalize_dtype(wanted)
    return array if held == array.dtype else array.astype(held)


Completed = tuple[Skeleton, list[ArrayType], dict[str, Any]]


def _complete(target: Target, skeleton: Skeleton, arrays: Sequence[Any]) -> Completed:
    """The inputs as the schema sees them, defaults filled in and checked, and named sizes; per signature."""
    types = tuple(
        ArrayType(tuple(array.shape), dtype_to_send(array.dtype, target.input_dtype(path)))
        for path, array in zip(skeleton.paths, arrays, strict=True)
    )
    if any(map(has_symbolic_size, arrays)):
        return skeleton, list(types), {}

    def complete() -> Completed:
        completed, sizes = target.complete_inputs(skeleton.build(types))
        return *take_apart(completed, lambda path, leaf: isinstance(leaf, ArrayType)), sizes

    return target.remembered("completed", skeleton.signature(types), complete)


def trace_call(call: Call, *operands: Any) -> list[Any]:
    """The results of a call as values of the program that is being traced.

    Raises:
        NotTraceableError: the component needs the numbers themselves.
    """
    function: Callable[..., list[Any]] = partial(_answer, call.site, call.request)
    # The innermost axis first: `vmap` puts its axis in front of those that are there, and the outermost comes
    # first in the operands. An operand that does not have an axis is shared along it.
    for axis in reversed(range(len(call.batch.sizes))):
        axes = tuple(0 if mapped[axis] else None for mapped in call.batch.mapped)
        function = jax.vmap(function, in_axes=axes, axis_size=call.batch.sizes[axis])
    try:
        return function(*operands)
    except NOT_TRACEABLE as error:
        raise NotTraceableError from error


def _answer(site: Site, request: Request, *operands: Any) -> list[Any]:
    """The answer to one request, checked."""
    primals, vectors = request.split(site, operands)
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


def _product(site: Site, request: Request, inputs: Any, vectors: Slots) -> Mapping[str, Any]:
    route = find_route(site, request, contract=_contract_jacobian, transpose=_transpose)
    return route(site, request, inputs, vectors)


def _contract_jacobian(
    site: Site, request: Request, inputs: Any, vectors: Slots
) -> Mapping[str, Any]:
    given, wanted = request.slots[0].paths(site), request.result.paths(site)
    is_jvp, paths = request.name == "jvp", sides(site, request)
    blocks = site.target.derivative(JACOBIAN, inputs, *paths)

    # (J v)_o = Σ_i J_oi v_i and (Jᵀ u)_i = Σ_o u_o J_oi, without conjugation: a block has the shape of the
    # output, then that of the input. In the pairing Re(Σ u z) a real input has the cotangent Re(Jᵀ u), also
    # where an output is complex.
    def term(path: str, other: str, along: Any) -> Any:
        if is_jvp:
            return jnp.tensordot(blocks[path][other], along, along.ndim)
        return jnp.tensordot(along, blocks[other][path], along.ndim)

    pairs = list(zip(given, vectors[0], strict=True))
    products = {path: sum(term(path, other, along) for other, along in pairs) for path in wanted}
    is_real = {p.path: p.type.dtype.kind != "c" for p in request.result.ports(site)}
    return {path: jnp.real(each) if is_real[path] else each for path, each in products.items()}


def _transpose(site: Site, request: Request, inputs: Any, vectors: Slots) -> Mapping[str, Any]:
    """A form linear in u, from one that is linear in v: Re⟨A v, u⟩ = Re⟨Aᵀ u, v⟩ for all unit vectors u.

    Of a complex entry z = a + ib, the unit u = 1 gives a and u = -i gives b: Re(-i (a + ib)) = b.
    """
    flipped = request.transposed()
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


def _jacobian(site: Site, rows: Space, columns: Space, inputs: Any) -> list[Any]:
    """The blocks of a Jacobian, row by row: by its endpoint, or by one product per unit vector."""
    names = rows.paths(site), columns.paths(site)
    if JACOBIAN.endpoint in site.target.endpoints:
        found = site.target.derivative(JACOBIAN, inputs, names[1], names[0])
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


class TraceableEndpoints:
    """The derivative endpoints of a component in this process under their names.

    Attributes:
        names: those whose functions are its author's, or JAX's; others are made of them in NumPy.
    """

    def __init__(self, component: LocalComponent) -> None:
        self._local = component
        self.names = frozenset(
            name
            for name, capability in component.capabilities.items()
            if capability.status == "native" or capability.via == "jax"
        )

    def __getattr__(self, endpoint: str) -> Any:
        return partial(self._call, endpoint)

    def _call(self, endpoint: str, *, inputs: Any, **arguments: Any) -> Any:
        function = self._local.function_of(endpoint)
        paths = {name: set(each) for name, each in arguments.items() if isinstance(each, list)}
        return function(inputs=self._model(inputs, endpoint), **{**arguments, **paths})

    def _model(self, inputs: Any, endpoint: str) -> Any:
        """What the author's function gets for inputs with tracers in them."""
        skeleton, tracers = take_apart(inputs, lambda path, leaf: is_arraylike(leaf))
        ones = [np.broadcast_to(np.ones((), tracer.dtype), tracer.shape) for tracer in tracers]
        model = self._local.read_model(skeleton.build(ones), endpoint, own=False, bounded=False)
        pairs = zip(skeleton.paths, tracers, strict=True)
        return set_at_path(model, {path: _like(t, get_at_path(model, path)) for path, t in pairs})


def _like(tracer: Any, value: Any) -> Any:
    """A tracer in the shape and dtype that the schema declares, as far as JAX holds it."""
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    return jnp.broadcast_to(tracer, value.shape).astype(dtype)
