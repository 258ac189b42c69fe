"""The ways of computing a Jacobian, and what each is expected to take here.

An estimate is the work of a way (`_work`) at the prices of this machine (`_calibration`), times the batch
that the `vmap`s around the call carry, plus calling, writing and returning the blocks. It is an estimate of
one compiled call; searching and compiling are paid once and are not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax

from chainrule._errors import CapabilityError
from chainrule._jaxpr import hidden_batch_size, walk
from chainrule.elimination._calibration import Prices, prices
from chainrule.elimination._compressed import colour, has_asdex
from chainrule.elimination._counting import count_operations
from chainrule.elimination._eliminate import Step
from chainrule.elimination._graph import Graph
from chainrule.elimination._linearize import Traced, is_being_eliminated
from chainrule.elimination._native import may_be_native
from chainrule.elimination._rules import real_shape
from chainrule.elimination._work import Work, elimination_work, sweep_work

__all__ = ["Candidate", "candidates", "is_being_compiled", "pays_native"]

_LANES = 16
"""A kernel on a CPU computes so many batch elements at once, wanted or not."""

_MOST_KERNEL_OPERATIONS = 3000
"""Beyond this many operations and entries a straight-line kernel takes seconds to compile."""

_MOST_KERNEL_ENTRIES = 1000
"""Compiling takes time as the square of what is written: a second for a thousand entries."""

_WORTH_DETECTING_S = 2e-3
"""Reading a pattern off a program takes a second: only for Jacobians that take longer than this."""


@dataclass(frozen=True)
class Candidate:
    """One way of computing a Jacobian.

    Attributes:
        method: `"elimination"`, `"jacrev"`, `"jacfwd"` or `"compressed"`.
        backend: `"xla"` or `"native"`.
        estimated_s: expected seconds of a compiled call.
        operations: scalar operations, per batch element.
        entries: numbers held at once, per batch element.
        multiplications: of the elimination, by the convention of the literature; else `None`.
        sweeps: products with the Jacobian or its transpose; `None` for elimination.
        seconds: measured time of a compiled call; `None` when not measured.
        setup_s: measured time of tracing and compiling; `None` when not measured.
        peak_bytes: what the compiled program holds at most, by its compiler; `None` when not measured.
    """

    method: str
    backend: str
    estimated_s: float
    operations: float
    entries: float
    multiplications: int | None = None
    sweeps: int | None = None
    seconds: float | None = None
    setup_s: float | None = None
    peak_bytes: int | None = None

    @property
    def name(self) -> str:
        """Method and, where it is not XLA, backend."""
        return self.method if self.backend == "xla" else f"{self.method} ({self.backend})"


def candidates(
    traced: Traced, order: tuple[Step, ...], *, compiled: bool, detect: bool = False
) -> list[Candidate]:
    """All ways that can be taken, the one with the least expected time first.

    Args:
        traced: the function at a point.
        order: for elimination.
        compiled: whether what is chosen is compiled once and called often: then a kernel may pay.
        detect: look for a compressed Jacobian in any case, not only where it may pay.
    """
    graph, offer = traced.graph, _Offer.of(traced)
    eliminated = elimination_work(graph, order)
    muls = count_operations(graph, order).multiplications
    found = [offer.candidate("elimination", eliminated, multiplications=muls)]
    if compiled and _fits_a_kernel(traced, eliminated):
        found.append(offer.candidate("elimination", eliminated, "native", multiplications=muls))
    for method, directions in (("jacrev", offer.rows), ("jacfwd", offer.columns)):
        reverse = method == "jacrev"
        if _can_sweep(graph, reverse=reverse):
            work = sweep_work(graph, directions, reverse=reverse)
            found.append(offer.candidate(method, work, sweeps=directions))
    if graph.nonlinear and len(found) > 1:
        found = [candidate for candidate in found if candidate.method != "elimination"]
    found.sort(key=lambda candidate: candidate.estimated_s)
    if detect or found[0].estimated_s > _WORTH_DETECTING_S:
        found += offer.compressed(graph)
    return sorted(found, key=lambda candidate: candidate.estimated_s)


def pays_native(traced: Traced, order: tuple[Step, ...]) -> bool:
    """Whether a native kernel of an elimination is expected to be faster than its XLA program."""
    if not is_being_compiled(traced):
        return False
    work = elimination_work(traced.graph, order)
    if not _fits_a_kernel(traced, work):
        return False
    offer = _Offer.of(traced)
    native = offer.candidate("elimination", work, "native")
    return native.estimated_s < offer.candidate("elimination", work).estimated_s


def _can_sweep(graph: Graph, *, reverse: bool) -> bool:
    """Whether JAX can: it cannot reverse a `while`, nor push through a rule that only pulls back.

    And whether it gives the Jacobian of this device: inside of `shard_map` JAX adds up, over the devices,
    what it pulls back to a value that they share.
    """
    names = {site.equation.primitive.name for site in walk(graph.program)}
    if not reverse:
        return not any("custom_vjp" in name for name in names)
    shared = [
        v for v, eqn in enumerate(graph.program.jaxpr.eqns, 1) if eqn.primitive.name == "pvary"
    ]
    return "while" not in names and graph.partials.keys().isdisjoint(shared)


def is_being_compiled(traced: Traced) -> bool:
    """Whether a kernel would be compiled once and called often.

    A plain call, operation by operation, wants no compiler; and inside a function whose own Jacobian is
    being taken a kernel would only hide the program.
    """
    is_traced = any(isinstance(operand, jax.core.Tracer) for operand in traced.operands)
    return is_traced and not is_being_eliminated()


def _fits_a_kernel(traced: Traced, work: Work) -> bool:
    offer = _Offer.of(traced)
    entries = offer.rows * offer.columns
    is_small = entries <= _MOST_KERNEL_ENTRIES
    is_small = is_small and work.operations + entries <= _MOST_KERNEL_OPERATIONS
    return is_small and may_be_native(traced.graph.program, batched=offer.batch > 1)


@dataclass(frozen=True)
class _Offer:
    """What all estimates for one Jacobian share."""

    rows: int
    columns: int
    results: int
    batch: int
    prices: Prices

    @classmethod
    def of(cls, traced: Traced) -> _Offer:
        graph = traced.graph
        return cls(
            rows=sum(math.prod(real_shape(atom.aval)) for atom in graph.targets),
            columns=sum(math.prod(real_shape(var.aval)) for var in graph.inputs),
            results=max(1, len(graph.targets) * len(graph.inputs)),
            batch=hidden_batch_size(traced.operands),
            prices=prices(),
        )

    def candidate(
        self, method: str, work: Work, backend: str = "xla", *,
        multiplications: int | None = None, sweeps: int | None = None,
    ) -> Candidate:  # fmt: skip
        if backend == "native":
            # One launch, and where an entry belongs is known when the kernel is compiled.
            elements, kernels = max(self.batch, _LANES), 0.0
            per_element = replace(work, placed=0.0, kernels=0.0)
        else:
            # Kernels are launched once for the whole batch; XLA makes one of every few results, too.
            elements, kernels = self.batch, work.kernels + self.results / 2
            per_element = replace(self._as_fused_by_xla(work), kernels=0.0)
        fixed = self.prices.call + (self.results - 1) * self.prices.result
        written = self.rows * self.columns * self.batch * self.prices.written
        launched = kernels * self.prices.kernel
        inside = self.prices.seconds(per_element) * elements
        return Candidate(
            method, backend, fixed + written + launched + inside, work.operations,
            work.entries + self.rows * self.columns, multiplications, sweeps,
        )  # fmt: skip

    def _as_fused_by_xla(self, work: Work) -> Work:
        """XLA on a CPU computes shared values again in the fusion of every few results."""
        repeats = min(4.0, 1.0 + (self.results - 1) / 6)
        return replace(
            work,
            arithmetic=work.arithmetic * repeats,
            transcendental=work.transcendental * repeats,
        )

    def compressed(self, graph: Graph) -> list[Candidate]:
        """One candidate, or none where there is no pattern."""
        if not has_asdex():
            return []
        try:
            plan = colour(graph)
        except (
            CapabilityError,
            NotImplementedError,
            TypeError,
            ValueError,
            jax.errors.JAXTypeError,
        ):
            return []
        if not _can_sweep(graph, reverse=plan.reverse):
            return []
        work = sweep_work(graph, plan.count, reverse=plan.reverse)
        gathered = Work(arithmetic=4.0 * len(plan.rows), kernels=2.0)
        return [self.candidate("compressed", work + gathered, sweeps=plan.count)]
