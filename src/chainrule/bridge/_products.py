"""Products with the Jacobian of a call that are asked for directly, for plans of Jacobians.

The rules of JAX differentiate an equation: they apply the component, and then ask for products. Who has
applied it already, and knows how many products are needed in which direction, asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chainrule._jaxpr import Offer, Products
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
from chainrule.bridge._site import Site
from chainrule.runtime.internal import JACOBIAN, DerivativeKind


class CallProducts(Products):
    """Products with the Jacobian of a site.

    Args:
        site: of the call.
        run: gives the results of a call.
    """

    def __init__(self, site: Site, run: Callable[[Call, list[Any]], list[Any]]) -> None:
        self._site, self._run = site, run
        self.prices = site.target.prices
        self.measured = site.target.timings.means()
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
            found["jacobian"] = Offer(evaluations, batches=True)
        return found

    def _offer(self, request: Request, inputs: Space, outputs: Space) -> Offer:
        kind = endpoint_for(self._site, request)
        evaluations = self._evaluations(kind, inputs, outputs)
        is_derived = kind.result_over != (request.result.side,)
        if is_derived and kind is not JACOBIAN:
            # A product with the transpose gives one element of the result.
            evaluations *= request.result.size(self._site)
        return Offer(evaluations, takes_batch(self._site, request), is_derived)

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


def _shared(primals: Sequence[Any], axes: int) -> Vectors:
    """The primals, which are the same along all batch axes."""
    everything = Space("inputs", tuple(range(len(primals))))
    return Vectors(everything, tuple(primals), ((False,) * axes,) * len(primals))
