"""Products with the Jacobian of a call that are asked for directly, for plans of Jacobians.

The rules of JAX differentiate an equation: they apply the component, and then ask for products. A
caller that has applied it already, and knows how many products it needs in which direction, asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chainrule._endpoints import JACOBIAN, DerivativeKind
from chainrule._errors import InputError
from chainrule._jaxpr import Dependence, Offer, Products
from chainrule._patterns import Pattern
from chainrule._sparsity import pattern_of
from chainrule.bridge._requests import (
    Call,
    Request,
    Side,
    Space,
    Vectors,
    check_inputs,
    endpoint_for,
)
from chainrule.bridge._routes import takes_batch
from chainrule.bridge._site import Port, Site


class CallProducts(Products):
    """Products with the Jacobian of a site.

    Args:
        site: of the call.
        run: gives the results of a call.
    """

    def __init__(self, site: Site, run: Callable[[Call, list[Any]], list[Any]]) -> None:
        self._site, self._run = site, run
        self.operands = tuple(port.differentiable for port in site.inputs)
        self.results = tuple(port.differentiable for port in site.outputs)

    @staticmethod
    def fit(call: Call) -> bool:
        """Whether a call is one evaluation of real arrays; all others are left to the rules of JAX."""
        ports = (*call.site.inputs, *call.site.outputs)
        is_single = call.request.name == "apply" and not call.batch.sizes
        is_real = all(port.type.dtype.kind != "c" for port in ports)
        return is_single and is_real and call.site.example is None

    def offers(self, operands: Sequence[int], results: Sequence[int]) -> dict[Any, Offer]:
        """By the endpoints of the target, and by how they come about."""
        inputs, outputs = Space("inputs", tuple(operands)), Space("outputs", tuple(results))
        check_inputs(self._site, inputs)
        found = {
            "jvp": self._offer(Request((inputs,), outputs), inputs, outputs),
            "vjp": self._offer(Request((outputs,), inputs), inputs, outputs),
        }
        wish = self._site.options.materialize_jacobian
        if JACOBIAN.endpoint in self._site.target.endpoints and wish is not False:
            evaluations = 0 if wish else self._evaluations(JACOBIAN, inputs, outputs)
            has_residuals = JACOBIAN.endpoint in self._site.target.residual_endpoints
            found["jacobian"] = Offer(evaluations, batches=True, residuals=has_residuals)
        return found

    def _offer(self, request: Request, inputs: Space, outputs: Space) -> Offer:
        kind = endpoint_for(self._site, request)
        evaluations = self._evaluations(kind, inputs, outputs)
        is_derived = kind.result_over != (request.result.side,)
        if is_derived and kind is not JACOBIAN:
            # A product with the transpose gives one element of the result.
            evaluations *= request.result.size(self._site)
        has_residuals = kind.endpoint in self._site.target.residual_endpoints
        return Offer(evaluations, takes_batch(self._site, request), is_derived, has_residuals)

    def _evaluations(self, kind: DerivativeKind, inputs: Space, outputs: Space) -> int:
        n, m = inputs.size(self._site), outputs.size(self._site)
        evaluations = self._site.target.evaluations(kind, n, m)
        # A Jacobian that the author wrote is taken to cost what the products cost that it replaces.
        return max(evaluations, min(n, m)) if kind is JACOBIAN else evaluations

    def columns(
        self, primals: Sequence[Any], tangents: Mapping[int, Any], results: Sequence[int]
    ) -> list[Any]:
        """One call of the `jvp` for all tangents."""
        return self._products(primals, "inputs", tangents, Space("outputs", tuple(results)))

    def rows(
        self, primals: Sequence[Any], cotangents: Mapping[int, Any], operands: Sequence[int]
    ) -> list[Any]:
        """One call of the `vjp` for all cotangents."""
        return self._products(primals, "outputs", cotangents, Space("inputs", tuple(operands)))

    def _products(
        self, primals: Sequence[Any], side: Side, vectors: Mapping[int, Any], result: Space
    ) -> list[Any]:
        (size,) = {vector.shape[0] for vector in vectors.values()}
        given = Vectors(
            Space(side, tuple(vectors)), tuple(vectors.values()), ((True,),) * len(vectors)
        )
        return self._run(*Call.make(self._site, (size,), _shared(primals, 1), [given], result))

    def jacobian(
        self, primals: Sequence[Any], operands: Sequence[int], results: Sequence[int]
    ) -> dict[tuple[int, int], Any]:
        """One call of the `jacobian`."""
        rows, columns = Space("outputs", tuple(results)), Space("inputs", tuple(operands))
        blocks = self._run(*Call.make(self._site, (), _shared(primals, 0), [], rows, columns))
        places = ((row, column) for row in results for column in operands)
        return dict(zip(places, blocks, strict=True))


def dependence_of(call: Call, result: int, operand: int) -> Dependence | None:
    """Which elements of a result of an `apply` depend on which elements of an operand, where it is known.

    What the host or the target loops over, a batch, are cases that do not depend on each other. Within a case
    it is as the author declares.

    Raises:
        InputError: the declaration belongs to arrays of another size (`bad_sparsity`).
    """
    site, cases = call.site, len(call.batch.sizes)
    if not all(call.batch.mapped[operand]):  # all cases use the operand
        return None
    given, wanted = site.inputs[operand], site.outputs[result]
    while site.example is not None:
        if given.type.shape[:1] != wanted.type.shape[:1]:  # all cases use what has a 1 in front
            return None
        site, cases = site.example, cases + 1
        given, wanted = site.inputs[operand], site.outputs[result]
    return Dependence(cases, _declared_pattern(site, given, wanted))


def _declared_pattern(site: Site, given: Port, wanted: Port) -> Pattern | None:
    block = site.target.declared_block(wanted.path, given.path)
    if block is None:
        return None
    try:
        return pattern_of(block, wanted.type.size, given.type.size)
    except ValueError as problem:
        raise InputError(
            f"The sparsity that {site.target.name} declares for {wanted.path!r} {wanted.type} by "
            f"{given.path!r} {given.type} does not fit: {problem}. Correct `sparsity` of the component.",
            code="bad_sparsity",
            path=given.path,
        ) from None


def _shared(primals: Sequence[Any], axes: int) -> Vectors:
    """The primals, which are the same along all batch axes."""
    everything = Space("inputs", tuple(range(len(primals))))
    return Vectors(everything, tuple(primals), ((False,) * axes,) * len(primals))
