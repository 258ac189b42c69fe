"""Asking the sites of a pipeline for products: directly, through JAX, one after the other or concurrently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from chainrule._errors import TransportError
from chainrule._jaxpr import JaxprEqn, Var, bind_equation, enable_x64
from chainrule.elimination._eliminate import Place, read
from chainrule.elimination._planning._prices import Way, is_backwards
from chainrule.elimination._planning._search import Step
from chainrule.elimination._planning._sites import Pipeline, Site

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of a site at a point.

    Attributes:
        site: the site.
        way: how it is asked.
        cut: whose columns or rows it gets; none where it gives its own Jacobian.
        ask: the site as a linear map.
        in_one: whether one message carries all its vectors.
    """

    site: Site
    way: Way
    cut: Sequence[Var]
    ask: Any
    in_one: bool

    def answer(self, vectors: Mapping[int, Any]) -> Any:
        """The products, or the Jacobian; `None` where there is nothing to ask for."""
        if self.way == "jacobian":
            return self.ask.jacobian()
        if not vectors:
            return None
        return self.ask.rows(vectors) if is_backwards(self.way) else self.ask.columns(vectors)


class LinearMaps:
    """The sites of a pipeline at a point, as linear maps.

    Opaque ones are linearised by JAX where they are applied, so that this is done once.
    """

    def __init__(self, pipeline: Pipeline, steps: Sequence[Step]) -> None:
        opaque = (site for site in pipeline.sites if site.products is None)
        self._opaque = {var: site for site in opaque for var in site.result_variables}
        self._ways = {pipeline.sites[step.site].vertex: step.way for step in steps}
        self._pipeline = pipeline
        self._maps: dict[int, _OpaqueProducts] = {}

    def apply(self, eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """The results of an equation."""
        site = next((self._opaque[var] for var in eqn.outvars if var in self._opaque), None)
        if site is None:
            return bind_equation(eqn, operands)
        reverse = is_backwards(self._ways[site.vertex])
        results, found = _linearise(site, operands, reverse=reverse)
        self._maps[site.vertex] = found
        return results

    def request(self, step: Step, values: Mapping[Var, Any]) -> Request:
        """What a step asks, where the value of every variable is known."""
        site = self._pipeline.sites[step.site]
        primals = [read(atom, values) for atom in site.equation.invars]
        ask = self._maps.get(site.vertex) or _Products(site, primals)
        cut = [self._pipeline.variables[node] for node in step.cut]
        in_one = self._pipeline.network.sites[step.site].prices.messages(step.way, 2) == 1
        return Request(site, step.way, cut, ask, in_one)


class _Products:
    """A site at a point, as a linear map that is asked for products.

    Vectors are keyed by the positions of operands or results, with one axis for the vectors in front.
    """

    def __init__(self, site: Site, primals: Sequence[Any]) -> None:
        self._site, self._primals = site, primals

    def columns(self, tangents: Mapping[int, Any]) -> list[Any]:
        """Tangents of the site's results."""
        assert self._site.products is not None
        return self._site.products.columns(self._primals, tangents, self._site.results)

    def rows(self, cotangents: Mapping[int, Any]) -> list[Any]:
        """Cotangents of the site's operands."""
        assert self._site.products is not None
        return self._site.products.rows(self._primals, cotangents, self._site.operands)

    def jacobian(self) -> dict[Place, Any]:
        """The blocks by (result, operand)."""
        assert self._site.products is not None
        return self._site.products.jacobian(self._primals, self._site.operands, self._site.results)


class _OpaqueProducts:
    """A site that JAX has linearised, in one direction."""

    def __init__(self, site: Site, linear: Callable[..., Any]) -> None:
        self._site, self._linear = site, linear

    def columns(self, tangents: Mapping[int, Any]) -> list[Any]:
        """Tangents of the site's results."""
        full = _filled(tangents, self._site.operands, self._site.operand_variables)
        return list(jax.vmap(self._linear)(*full))

    def rows(self, cotangents: Mapping[int, Any]) -> list[Any]:
        """Cotangents of the site's operands."""
        full = _filled(cotangents, self._site.results, self._site.result_variables)
        return list(jax.vmap(self._linear)(full))


def _linearise(
    site: Site, operands: Sequence[Any], *, reverse: bool
) -> tuple[Sequence[Any], _OpaqueProducts]:
    """The results of an opaque site, and its linear map forwards, or backwards."""
    moving = [operands[k] for k in site.operands]
    way = jax.vjp if reverse else jax.linearize
    _, linear, results = way(site.of_operands(operands), *moving, has_aux=True)
    return results, _OpaqueProducts(site, linear)


def _filled(
    vectors: Mapping[int, Any], positions: Sequence[int], variables: Sequence[Var]
) -> list[Any]:
    """Vectors at all positions: zeros where there are none."""
    (size,) = {vector.shape[0] for vector in vectors.values()}
    avals: list[Any] = [var.aval for var in variables]
    return [
        vectors[k] if k in vectors else jnp.zeros((size, *aval.shape), aval.dtype)
        for k, aval in zip(positions, avals, strict=True)
    ]


# --- Several workers.


class Known(Protocol):
    """What is known so far, which says what to ask next."""

    def vectors(self, request: Request) -> dict[int, Any]:
        """What a site is sent."""

    def absorb(self, request: Request, answer: Any) -> None:
        """Add what it has answered."""


def ask_all(
    known: Known,
    requests: Sequence[Request],
    needed: Sequence[frozenset[int]],
    workers: int | None,
) -> None:
    """Make requests, in an order in which each has what it needs.

    A message that fails because the component cannot be reached, or died, is sent once more.

    Args:
        known: what is known; the answers are added to it.
        requests: one per site.
        needed: for every request, the positions of those that come before it.
        workers: how many messages are under way at the same time; `None`: one request after the other.

    Raises:
        TransportError: a message failed twice; with the site and the product.
        Exception: what a component raised, with a note of the site and the product.
    """
    if workers is not None:
        _ask_concurrently(known, requests, needed, workers)
        return
    for request in requests:
        vectors = known.vectors(request)
        known.absorb(
            request, _answer(request, vectors, f"{_NAMES[request.way]}s of {request.site}")
        )


def _ask_concurrently(
    known: Known, requests: Sequence[Request], needed: Sequence[frozenset[int]], workers: int
) -> None:
    """Send the messages of all requests as soon as what they need is known.

    At most `workers` of them are under way at a time. When one has failed, the others that are under way are
    waited for before the error is raised.
    """
    answers: dict[int, list[Any]] = {}
    messages: dict[Future[Any], tuple[int, int]] = {}
    done: set[int] = set()
    has_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    with ThreadPoolExecutor(workers, "chainrule-plan") as pool:

        def send(position: int) -> None:
            request = requests[position]
            parts = _messages(request, known.vectors(request))
            answers[position] = [None] * len(parts)
            for number, part in enumerate(parts):
                place = f"{_NAMES[request.way]} {number + 1} of {len(parts)} of {request.site}"
                future = pool.submit(_answer_on_a_thread, request, part, place, has_x64)
                messages[future] = position, number
            if not parts:
                finish(position)

        def finish(position: int) -> None:
            parts = answers[position]
            known.absorb(requests[position], _joined(requests[position].way, parts))
            done.add(position)
            for other, before in enumerate(needed):
                if other not in answers and before <= done:
                    send(other)

        try:
            for position, before in enumerate(needed):
                if not before and position not in answers:
                    send(position)
            while messages:
                ready, _ = wait(messages, return_when=FIRST_COMPLETED)
                for future in sorted(ready, key=messages.__getitem__):
                    position, number = messages.pop(future)
                    answers[position][number] = future.result()
                    if not any(other == position for other, _ in messages.values()):
                        finish(position)
        finally:
            for future in messages:
                future.cancel()


_NAMES: dict[Way, str] = {
    "columns": "JVP",
    "rows": "VJP",
    "jacobian": "Jacobian",
    "coloured columns": "JVP",
    "coloured rows": "VJP",
}


def _messages(request: Request, vectors: Mapping[int, Any]) -> list[Mapping[int, Any]]:
    """The vectors of each message: all of them where the component takes batches, else one."""
    if request.way == "jacobian" or not vectors:
        return [vectors] if request.way == "jacobian" else []
    if request.in_one:
        return [vectors]
    (size,) = {vector.shape[0] for vector in vectors.values()}
    return [{k: vector[n : n + 1] for k, vector in vectors.items()} for n in range(size)]


def _answer_on_a_thread(
    request: Request, vectors: Mapping[int, Any], place: str, has_x64: bool
) -> Any:
    """The answer to one message. The precision of JAX belongs to a thread."""
    with enable_x64(has_x64):
        return _answer(request, vectors, place)


def _answer(request: Request, vectors: Mapping[int, Any], place: str) -> Any:
    """The answer to vectors, at the first or the second attempt."""
    try:
        return _answer_once(request, vectors, place)
    except TransportError as first:
        _log.warning("The request for the %s failed and is repeated: %s", place, first)
    try:
        return _answer_once(request, vectors, place)
    except TransportError as error:
        raise TransportError(
            f"The request for the {place} failed twice: {error.message}",
            code=error.code,
            details=error.details,
        ) from error


def _answer_once(request: Request, vectors: Mapping[int, Any], place: str) -> Any:
    try:
        return request.answer(vectors)
    except Exception as error:
        note = f"Raised in the request for the {place}."
        # A transport error gets a message of its own; an author may raise one object again and again.
        if not isinstance(error, TransportError) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _joined(way: Way, parts: Sequence[Any]) -> Any:
    if way == "jacobian" or len(parts) == 1:
        return parts[0]
    return [jnp.concatenate(each) for each in zip(*parts, strict=True)] if parts else None
