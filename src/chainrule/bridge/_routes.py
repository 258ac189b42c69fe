"""From a request to the endpoints of a target, with arrays of NumPy, or on a GPU.

`_requests.endpoint_for` says which endpoint answers a request. If it is the request's own, it is asked. If it
is the Jacobian, that is multiplied. If it is the transposed product, one product per element is asked for.
(`_inline` does the same in JAX, for calls that are traced into a program.) Arrays on a GPU take only the ways
of `answers_on_device`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chainrule._endpoints import HVP, JACOBIAN, JVP, VJP, DerivativeKind
from chainrule.bridge._requests import Request, Space, endpoint_for
from chainrule.bridge._site import Port, Site, check_result
from chainrule.bridge._types import ArrayType
from chainrule.runtime import SparseArray
from chainrule.runtime.internal import product_from_jacobian

Slots = Sequence[Sequence[Any]]
"""The vectors of each slot of a request."""
Route = Callable[[Site, Request, Any, Slots], Mapping[str, Any]]
"""Site, request, the tree of inputs and the vectors → the result's arrays by path."""

_PRODUCTS: dict[str, DerivativeKind] = {"jvp": JVP, "vjp": VJP}


def answer(site: Site, request: Request, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Ask the target, check what comes back, and return it in the order of the request."""
    if request.name == "apply":
        outputs = site.target.apply(site.build_inputs(operands))
        return _checked(site, request, site.outputs, site.output_skeleton.extract(outputs))
    primals, slots = request.split(site, operands)
    inputs = site.build_inputs(primals)
    if request.columns is not None:
        return _jacobian(site, request, inputs)
    by_path = _product(site, request, inputs, slots)
    ports = request.result.ports(site)
    return _checked(site, request, ports, [by_path[port.path] for port in ports])


def answer_on_device(site: Site, request: Request, operands: Sequence[Any]) -> list[Any]:
    """`answer` for arrays on a GPU: the target validates the request once for all operands, if it can."""
    key = ("prepared", request)
    prepared = site.host_functions.get(key)
    if prepared is None:
        found = _prepare(site, request, operands)
        prepared = site.host_functions[key] = found or partial(answer, site, request)
    return prepared(operands)


def _prepare(
    site: Site, request: Request, operands: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]] | None:
    is_apply, kind = request.name == "apply", _PRODUCTS.get(request.name)
    if not is_apply and (kind is None or kind.endpoint not in site.target.endpoints):
        return None
    given = [*site.inputs, *(port for slot in request.slots for port in slot.ports(site))]
    if any(port.wire_dtype is not None for port in given):  # these are cast for each call
        return None
    primals, slots = request.split(site, operands)
    paths = ((), ()) if is_apply else sides(site, request)
    vectors = [_by_wire_path(site, request.slots[0], slot) for slot in slots]
    prepared = site.target.prepare(kind, site.build_inputs(primals), *paths, vectors, operands)
    if prepared is None:
        return None
    ports = request.result.ports(site)

    def answer_prepared(others: Sequence[Any]) -> list[Any]:
        found, is_known = prepared(others)
        values = site.output_skeleton.extract(found) if is_apply else [found[p.path] for p in ports]
        return values if is_known else _checked(site, request, ports, values)

    return answer_prepared


def takes_batch(site: Site, request: Request) -> bool:
    """Whether the target answers many vectors of a product at once."""
    kind = _PRODUCTS.get(request.name)
    return kind is not None and kind.endpoint in site.target.batched_endpoints


def answers_on_device(site: Site, request: Request) -> bool:
    """Whether a request goes straight to an endpoint that takes arrays on a GPU."""
    if request.columns is not None:
        kind = JACOBIAN.endpoint
    elif not request.slots:
        kind = "apply"
    else:
        found = endpoint_for(site, request)
        if found not in (_PRODUCTS.get(request.name), HVP) or request.name == "second_jvp":
            return False
        kind = found.endpoint
    return kind in site.target.device_endpoints


def answer_batch(
    site: Site, request: Request, operands: Sequence[np.ndarray], size: int
) -> list[np.ndarray]:
    """The answer for vectors with a batch axis in front, and primals without, from one request."""
    primals, (vectors,) = request.split(site, operands)
    by_path = site.target.derivative(
        _PRODUCTS[request.name],
        site.build_inputs(primals),
        *sides(site, request),
        [_by_wire_path(site, request.slots[0], vectors)],
        batched=True,
    )
    return [
        check_result(by_path[port.path], port, port.type.with_leading(size), request, site.target)
        for port in request.result.ports(site)
    ]


def _checked(
    site: Site, request: Request, ports: Sequence[Port], values: Sequence[Any]
) -> list[np.ndarray]:
    return [
        check_result(value, port, port.type, request, site.target)
        for value, port in zip(values, ports, strict=True)
    ]


def _by_wire_path(site: Site, space: Space, vectors: Sequence[Any]) -> dict[str, Any]:
    """Vectors by path, in the dtype that the target expects there."""
    pairs = zip(space.ports(site), vectors, strict=True)
    return {port.path: port.to_wire(vector) for port, vector in pairs}


def sides(site: Site, request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Input and output paths of a first-order request."""
    given, wanted = request.slots[0].paths(site), request.result.paths(site)
    return (wanted, given) if request.result.side == "inputs" else (given, wanted)


def find_route(site: Site, request: Request, *, contract: Route, transpose: Route) -> Route:
    """How to come to the answer of a request with slots.

    Args:
        site: whose target is asked.
        request: the request.
        contract: a product from the Jacobian.
        transpose: a product from products with the transpose, in the first slot.

    Raises:
        CapabilityError: the target has no endpoint that leads to an answer.
    """
    kind = endpoint_for(site, request)
    if kind is JACOBIAN:
        return contract
    if kind is _PRODUCTS.get(request.name):
        return _ask
    return _hessian_vector_product if request.name == "hvp" else transpose


def _product(site: Site, request: Request, inputs: Any, slots: Slots) -> Mapping[str, Any]:
    route = find_route(site, request, contract=_contract_jacobian, transpose=_transpose_by_basis)
    return route(site, request, inputs, slots)


def _ask(site: Site, request: Request, inputs: Any, slots: Slots) -> Mapping[str, Any]:
    vector = _by_wire_path(site, request.slots[0], slots[0])
    return site.target.derivative(_PRODUCTS[request.name], inputs, *sides(site, request), [vector])


def _contract_jacobian(
    site: Site, request: Request, inputs: Any, slots: Slots
) -> Mapping[str, Any]:
    def jacobian(_: Any, input_paths: Any, output_paths: Any) -> Mapping[str, Any]:
        paths = sorted(input_paths), sorted(output_paths)
        return site.target.derivative(JACOBIAN, inputs, *paths)

    vector = _by_wire_path(site, request.slots[0], slots[0])
    kind = _PRODUCTS[request.name]
    return product_from_jacobian(kind, jacobian, inputs, *sides(site, request), vector)


def _transpose_by_basis(
    site: Site, request: Request, inputs: Any, slots: Slots
) -> Mapping[str, Any]:
    """A product with A from products with Aᵀ: entry i of A v is Re⟨eᵢ, A v⟩ = Re⟨Aᵀ eᵢ, v⟩."""
    flipped = request.transposed()
    along = _by_wire_path(site, request.slots[0], slots[0])

    def entry(unit: list[np.ndarray]) -> Any:
        return _pairing(_product(site, flipped, inputs, [unit, *slots[1:]]), along)

    return _entries(site, request.result, entry)


def _hessian_vector_product(
    site: Site, request: Request, inputs: Any, slots: Slots
) -> Mapping[str, Any]:
    cotangent_space, tangent_space = request.slots
    tangents = _by_wire_path(site, tangent_space, slots[1])
    # The endpoint differentiates along the inputs it returns: those that stand still move by zero.
    still = Space("inputs", tuple(set(request.result.positions) - set(tangent_space.positions)))
    zeros = [np.zeros(type_.shape, type_.dtype) for type_ in still.types(site)]
    tangents |= _by_wire_path(site, still, zeros)
    cotangents = _by_wire_path(site, cotangent_space, slots[0])
    paths = sorted(tangents), cotangent_space.paths(site)
    return site.target.derivative(HVP, inputs, *paths, [cotangents, tangents])


def _entries(
    site: Site, space: Space, entry: Callable[[list[np.ndarray]], Any]
) -> dict[str, np.ndarray]:
    """Arrays over a space, one scalar at a time from the unit vectors that select it.

    A complex number has two: a derivative need not be linear over the complex numbers. In the pairing
    Re(u z), u = 1 selects the real part of z, and u = -i the imaginary one: Re(-i (a + i b)) = b.
    """
    units = [np.zeros(type_.shape, type_.dtype) for type_ in space.types(site)]
    found = {}
    for unit, port in zip(units, space.ports(site), strict=True):
        result = np.zeros(port.type.shape, port.type.dtype)
        directions = (1, -1j) if port.type.dtype.kind == "c" else (1,)
        for index in np.ndindex(*port.type.shape):
            parts = []
            for direction in directions:
                unit[index] = direction
                parts.append(entry([each.copy() for each in units]))
            unit[index] = 0
            result[index] = complex(*parts) if len(parts) == 2 else parts[0]
        found[port.path] = result
    return found


def _pairing(left: Mapping[str, Any], right: Mapping[str, np.ndarray]) -> Any:
    """Re⟨left, right⟩ without conjugation, in which JAX transposes."""
    return sum(np.sum(np.asarray(left[path]) * vector).real for path, vector in right.items())


def _jacobian(site: Site, request: Request, inputs: Any) -> list[np.ndarray]:
    assert request.columns is not None
    rows, columns = request.result.ports(site), request.columns.ports(site)
    paths = request.columns.paths(site), request.result.paths(site)
    blocks = site.target.derivative(JACOBIAN, inputs, *paths)
    return [
        check_result(
            _dense(blocks[row.path][column.path]),
            row,
            ArrayType(row.type.shape + column.type.shape, row.type.dtype),
            request,
            site.target,
        )
        for row in rows
        for column in columns
    ]


def _dense(block: Any) -> Any:
    return block.todense() if isinstance(block, SparseArray) else block
