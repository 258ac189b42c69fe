"""From a request to the endpoints: the first of several routes that the target has.

    jvp    the JVP endpoint, else the Jacobian times the tangent, else one VJP per output element
    vjp    the VJP endpoint, else the Jacobian transposed times the cotangent, else one JVP per input element
    hvp    the hessian_vector_product endpoint

Here with NumPy, on the host; `_traced` contracts and transposes in JAX. Which route it will be is decided
when a program is traced, so that a missing derivative is an error there, not in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chainrule._errors import CapabilityError
from chainrule.bridge._requests import Request, Space
from chainrule.bridge._site import Port, Site, check_result
from chainrule.bridge._target import HESSIAN_VECTOR_PRODUCT
from chainrule.bridge._types import ArrayType
from chainrule.runtime import SparseArray
from chainrule.runtime.internal import JACOBIAN, JVP, VJP, DerivativeKind, product_from_jacobian

Vectors = Sequence[Sequence[np.ndarray]]
Route = Callable[[Site, Request, Any, Vectors], Mapping[str, Any]]
Routes = Mapping[str, tuple[tuple[str, Route], ...]]


def answer(site: Site, request: Request, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Ask the target, check what comes back, and return it in the order of the request."""
    if not request.slots and request.columns is None:
        outputs = site.target.apply(site.build_inputs(operands))
        return _checked(site, request, site.outputs, site.output_skeleton.extract(outputs))
    primals, vectors = split_operands(site, request, operands)
    inputs = site.build_inputs(primals)
    if request.columns is not None:
        return _jacobian(site, request, inputs)
    by_path = find_route(site, request)(site, request, inputs, vectors)
    ports = request.result.ports(site)
    return _checked(site, request, ports, [by_path[port.path] for port in ports])


def takes_batch(site: Site, request: Request) -> bool:
    """Whether the target answers many vectors of a product at once."""
    kind = _PRODUCTS.get(request.name)
    return kind is not None and kind.endpoint in site.target.batched_endpoints


def answer_batch(
    site: Site, request: Request, operands: Sequence[np.ndarray], size: int
) -> list[np.ndarray]:
    """The answer for vectors with a batch axis in front, and primals without, from one request."""
    primals, (vectors,) = split_operands(site, request, operands)
    by_path = site.target.batched_product(
        _PRODUCTS[request.name],
        site.build_inputs(primals),
        *_sides(site, request),
        _by_path(site, request.slots[0], vectors),
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


def check_possible(site: Site, request: Request) -> None:
    """Raise when no route leads to an answer.

    Raises:
        CapabilityError: says which endpoint would help.
    """
    if request.slots:
        find_route(site, request)


def split_operands(
    site: Site, request: Request, operands: Sequence[Any]
) -> tuple[list[Any], list[list[Any]]]:
    """The primals, and the vectors of each slot."""
    rest = list(operands)
    primals, rest = rest[: len(site.inputs)], rest[len(site.inputs) :]
    vectors = []
    for slot in request.slots:
        count = len(slot.positions)
        vectors.append(rest[:count])
        rest = rest[count:]
    return primals, vectors


def find_route(site: Site, request: Request, routes: Routes | None = None) -> Route:
    """The first route to an answer that the target has; on the host, where no others are given.

    Raises:
        CapabilityError: none; says which endpoint would help.
    """
    candidates = (routes or _ON_HOST).get(request.name, ())
    for endpoint, route in candidates:
        if endpoint in site.target.endpoints:
            return route
    raise _no_route(site, request, [endpoint for endpoint, _ in candidates])


_ADVICE = {
    "first": "Add one to the component (`jvp=` or `vjp=` to a callable), let it be made of differences "
    '(`@component(derivatives="finite")`, with `Differentiable` on both sides), or wrap the call in '
    "`jax.lax.stop_gradient`.",
    "second": "Add it to the component (`hvp=` to a callable), or let it be made of differences (the setting "
    "`derive_hvp`). A component written in JAX that runs in this process has derivatives of every order.",
    "third": "A component written in JAX that runs in this process has derivatives of every order.",
}


def _no_route(site: Site, request: Request, endpoints: Sequence[str]) -> CapabilityError:
    order = {1: "first", 2: "second"}.get(len(request.slots), "third")
    needed = (
        " or ".join(f"`{endpoint}`" for endpoint in endpoints) or "more than any endpoint gives"
    )
    return CapabilityError(
        f"{site.target.name} cannot answer a {request.name}: that needs {needed}, and it offers "
        f"{', '.join(sorted(site.target.endpoints))}. {_ADVICE[order]}",
        code=f"no_{order}_derivative",
    )


def _by_path(site: Site, space: Space, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Vectors in the dtype that the target expects at each path."""
    pairs = zip(space.ports(site), vectors, strict=True)
    return {port.path: port.to_wire(vector) for port, vector in pairs}


def _sides(site: Site, request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Input and output paths of a first-order request."""
    given, wanted = request.slots[0].paths(site), request.result.paths(site)
    return (wanted, given) if request.result.side == "inputs" else (given, wanted)


def _ask(site: Site, request: Request, inputs: Any, vectors: Vectors) -> Mapping[str, Any]:
    vector = _by_path(site, request.slots[0], vectors[0])
    return site.target.derivative(_PRODUCTS[request.name], inputs, *_sides(site, request), vector)


def _contract_jacobian(
    site: Site, request: Request, inputs: Any, vectors: Vectors
) -> Mapping[str, Any]:
    def jacobian(_: Any, input_paths: Any, output_paths: Any) -> Mapping[str, Any]:
        paths = sorted(input_paths), sorted(output_paths)
        return site.target.derivative(JACOBIAN, inputs, *paths, None)

    vector = _by_path(site, request.slots[0], vectors[0])
    return product_from_jacobian(
        _PRODUCTS[request.name], jacobian, inputs, *_sides(site, request), vector
    )


def _transpose_by_basis(
    site: Site, request: Request, inputs: Any, vectors: Vectors
) -> Mapping[str, Any]:
    """A product with A from products with Aᵀ: entry i of A v is Re⟨Aᵀ eᵢ, v⟩."""
    flipped = request.transposed(0, request.result)
    route = find_route(site, flipped)
    along = _by_path(site, request.slots[0], vectors[0])

    def entry(unit: list[np.ndarray]) -> Any:
        return _pairing(route(site, flipped, inputs, [unit, *vectors[1:]]), along)

    return _entries(site, request.result, entry)


def _hessian_vector_product(
    site: Site, request: Request, inputs: Any, vectors: Vectors
) -> Mapping[str, Any]:
    cotangent_space, tangent_space = request.slots
    tangents = _by_path(site, tangent_space, vectors[1])
    # The endpoint differentiates along the inputs it returns: those that stand still move by zero.
    still = Space("inputs", tuple(set(request.result.positions) - set(tangent_space.positions)))
    zeros = [np.zeros(type_.shape, type_.dtype) for type_ in still.types(site)]
    tangents |= _by_path(site, still, zeros)
    return site.target.hessian_vector_product(
        inputs,
        sorted(tangents),
        cotangent_space.paths(site),
        _by_path(site, cotangent_space, vectors[0]),
        tangents,
    )


def _entries(
    site: Site, space: Space, entry: Callable[[list[np.ndarray]], Any]
) -> dict[str, np.ndarray]:
    """Arrays over a space, one scalar at a time from the unit vectors that select it.

    A complex number has two: a derivative need not be linear over the complex numbers. 1 selects its real
    part in the pairing Re(u z), and -i the imaginary one.
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
    blocks = site.target.derivative(JACOBIAN, inputs, *paths, None)
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


_PRODUCTS: dict[str, DerivativeKind] = {"jvp": JVP, "vjp": VJP}


def routes_to(contract: Route, transpose: Route) -> Routes:
    """The routes to every product, best first, each with the endpoint that it needs.

    Args:
        contract: a product from the Jacobian.
        transpose: a product from products with the transpose, in the first slot.
    """
    return {
        "jvp": ((JVP.endpoint, _ask), (JACOBIAN.endpoint, contract), (VJP.endpoint, transpose)),
        "vjp": ((VJP.endpoint, _ask), (JACOBIAN.endpoint, contract), (JVP.endpoint, transpose)),
        "hvp": ((HESSIAN_VECTOR_PRODUCT, _hessian_vector_product),),
        "second_jvp": ((HESSIAN_VECTOR_PRODUCT, transpose),),
    }


_ON_HOST = routes_to(_contract_jacobian, _transpose_by_basis)
