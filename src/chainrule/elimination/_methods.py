"""The ways of computing a Jacobian: what each is expected to take, and running one of them.

An estimate is the work of a way at the prices of the backend (`_work`), times the batch that the `vmap`s
around the call carry, plus calling, writing and returning the blocks. It is an estimate of one compiled call;
searching and compiling are paid once and are not in it.

Cheap decisions come first. One product gives a Jacobian with one row, or with one column: no order is
searched and no pattern is proved for it. What cannot be done, or cannot pay, is left out with the reason;
JAX's sweeps remain.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from chainrule._describe import describe_error
from chainrule._errors import CapabilityError, ChainruleError, InputError
from chainrule._jaxpr import (
    close_program,
    hidden_batch_size,
    trace_avals,
)
from chainrule.elimination._counting import count_operations
from chainrule.elimination._graph import holder_of_a_callback
from chainrule.elimination._linearize import Traced, is_being_eliminated, linearize_traced
from chainrule.elimination._native import NativeUnavailableError, may_be_native, native_function
from chainrule.elimination._orders import choose_order
from chainrule.elimination._planning import (
    pipeline_work,
    plan_and_run,
    why_not_planned,
)
from chainrule.elimination._search import OrderStep
from chainrule.elimination._sweeps import (
    SWEEPS,
    Outcome,
    colour,
    compressed,
    sweep,
    why_no_sweep,
)
from chainrule.elimination._work import (
    Prices,
    Work,
    elimination_work,
    partials_work,
    prices,
    sweep_work,
)

_log = logging.getLogger(__name__)

_LANES = 16
"""A kernel on a CPU computes this many batch elements at once, also for a smaller batch: 512 bits."""

_MOST_KERNEL_OPERATIONS = 3000
"""Beyond this many operations and entries a straight-line kernel takes seconds to compile."""

_MOST_KERNEL_ENTRIES = 1000
"""Compiling takes time as the square of what is written: a second for a thousand entries."""

_WORTH_DETECTING_S = 2e-3
"""Proving a pattern takes up to a second, once per trace. It is tried for Jacobians that take longer than
this per call: after some hundred calls it has paid."""

_FEW_SWEEPS = 16
"""Jacobians with fewer rows, or fewer columns, have little to gain from a pattern."""

_MARGIN = 1.1
"""An elimination through XLA has to be better than a sweep by this factor: it takes longer to compile."""

_MARGIN_OF_CUTS = 0.5
"""The same for a program that selects by values. Elimination cuts what is not chosen; `jacrev` multiplies 0
by a partial before the selection, `jacfwd` by one behind it, which gives NaN if that is infinite."""

_MANY_ENTRIES = 1e8
"""A way that holds more numbers than this is left out if another one needs a tenth."""


@dataclass(frozen=True)
class Candidate:
    """One way of computing a Jacobian.

    Attributes:
        method: `"planned"`, `"elimination"`, `"jacrev"`, `"jacfwd"` or `"compressed"`.
        backend: `"xla"` or `"native"`.
        estimated_s: expected seconds of a compiled call.
        operations: scalar operations, per batch element.
        entries: numbers held at once, per batch element.
        multiplications: of the elimination, by the convention of the literature; `None` for other methods,
            and where every way is not priced.
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


@dataclass(frozen=True)
class Ways:
    """The ways of computing one Jacobian.

    Attributes:
        candidates: what can be done, by expected time; sweeps come first where it is about the same.
        left_out: method → why it is not among the candidates.
        order: of the elimination; empty when none was looked for.
    """

    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, str]
    order: tuple[OrderStep, ...] = ()


def _warn(error: Exception, what: str) -> None:
    """Say in the log what went wrong and what is done instead; where, for those who debug this package."""
    is_debugged = _log.isEnabledFor(logging.DEBUG)
    _log.warning("%s: %s", what, describe_error(error), exc_info=error if is_debugged else None)


def list_ways(traced: Traced, *, compiled: bool, thorough: bool = False) -> Ways:
    """Price the ways of computing a Jacobian.

    Args:
        traced: the function at a point.
        compiled: whether what is chosen is compiled once and called often: then a kernel may pay.
        thorough: price every way that there is, also where it cannot be the best.
    """
    planner = _Planner(traced, compiled=compiled, thorough=thorough)
    try:
        planner.plan_products()
        planner.sweep()
        if thorough or not planner.is_one_sweep():
            planner.eliminate()
            planner.compress()
            planner.leave_out_what_holds_too_much()
    except Exception as error:
        _warn(error, "The methods could not be priced, one of JAX's sweeps is used")
        return _ways_without_prices(traced, f"it could not be priced: {describe_error(error)}")
    if not planner.candidates:
        return _ways_without_prices(traced, planner.left_out["elimination"])
    return Ways(tuple(planner.candidates), planner.left_out, planner.order)


def _ways_without_prices(traced: Traced, reason: str) -> Ways:
    """JAX's sweeps, the one with fewer products first."""
    offer = _Offer.of(traced)
    sweeps = [
        Candidate(method, "xla", math.inf, math.inf, math.inf, sweeps=directions)
        for method, directions in (("jacrev", offer.rows), ("jacfwd", offer.columns))
    ]
    sweeps.sort(key=lambda candidate: candidate.sweeps or 0)
    return Ways(tuple(sweeps), dict.fromkeys(("elimination", "compressed"), reason))


class _Planner:
    """A plan while it is being made."""

    def __init__(self, traced: Traced, *, compiled: bool, thorough: bool) -> None:
        self.candidates: list[Candidate] = []
        self.left_out: dict[str, str] = {}
        self.order: tuple[OrderStep, ...] = ()
        self._traced, self._graph = traced, traced.graph
        self._compiled, self._thorough = compiled, thorough
        self._offer = _Offer.of(traced)

    def _add(self, candidate: Candidate) -> None:
        self.candidates.append(candidate)
        self.candidates.sort(key=self._rank)

    def _rank(self, candidate: Candidate) -> float:
        """The estimate, with a margin for compiling. Planned products of components always come first."""
        if candidate.method == "planned":
            return 0.0
        is_plain = candidate.name == "elimination"
        return candidate.estimated_s * (self._margin if is_plain else 1.0)

    @property
    def _margin(self) -> float:
        return _MARGIN_OF_CUTS if self._graph.selects else _MARGIN

    def plan_products(self) -> None:
        """The cheapest products of the components of a pipeline."""
        if not self._graph.sites:
            return
        reason = why_not_planned(self._traced)
        if reason is None:
            self._add(self._offer.candidate("planned", pipeline_work(self._traced)))
        else:
            self.left_out["planned"] = reason

    def sweep(self) -> None:
        """JAX's own sweeps."""
        for method, directions in (("jacrev", self._offer.rows), ("jacfwd", self._offer.columns)):
            reverse = method == "jacrev"
            obstacle = why_no_sweep(self._graph, reverse=reverse)
            if obstacle is None:
                work = sweep_work(self._graph, directions, reverse=reverse)
                self._add(self._offer.candidate(method, work, sweeps=directions))
            else:
                self.left_out[method] = obstacle

    def is_one_sweep(self) -> bool:
        """Whether one product gives the whole Jacobian, and a kernel is out of the question."""
        if not self.candidates or self.candidates[0].sweeps != 1:
            return False
        is_short = self.candidates[0].operations <= _MOST_KERNEL_OPERATIONS
        if self._compiled and is_short and self._traced.obstacle is None:
            return False
        self.left_out |= dict.fromkeys(
            ("elimination", "compressed"), "one sweep gives the whole Jacobian"
        )
        return True

    def eliminate(self) -> None:
        """An elimination, through XLA and as a kernel."""
        obstacle = self._why_no_elimination()
        if obstacle is not None:
            self.left_out["elimination"] = obstacle
            return
        try:
            self.order = choose_order(self._graph, "auto")
            eliminated = elimination_work(self._graph, self.order)
            # Only a table shows the count, no estimate needs it.
            counted = count_operations(self._graph, self.order) if self._thorough else None
        except Exception as error:
            if not self.candidates:
                raise
            _warn(error, "An elimination could not be planned, one of JAX's sweeps is used")
            self.left_out["elimination"] = f"it could not be planned: {describe_error(error)}"
            return
        muls = None if counted is None else counted.multiplications
        self._add(self._offer.candidate("elimination", eliminated, multiplications=muls))
        if self._compiled and _fits_a_kernel(self._traced, eliminated):
            self._add(
                self._offer.candidate("elimination", eliminated, "native", multiplications=muls)
            )

    def _why_no_elimination(self) -> str | None:
        graph = self._graph
        if self._traced.obstacle is not None:
            return f"its graph could not be built: {describe_error(self._traced.obstacle)}"
        if not self.candidates:  # there is nothing else
            return None
        if graph.nonlinear:
            named = ", ".join(map(graph.describe, graph.nonlinear[:3]))
            return f"a `custom_vjp` rule is not linear in the cotangent: {named}"
        holder = holder_of_a_callback(graph)
        if holder is not None:
            return f"the callback inside equation {graph.describe(holder)} would run twice"
        if not self._thorough:
            partials = self._offer.candidate("elimination", partials_work(graph))
            if partials.estimated_s * min(1.0, self._margin) > self.candidates[0].estimated_s:
                return "its local Jacobians alone take longer than the best sweep"
        return None

    def compress(self) -> None:
        """Products of which several columns, or rows, share one."""
        if self._traced.obstacle is not None:
            self.left_out["compressed"] = self.left_out["elimination"]
            return
        fewest = min((c.sweeps for c in self.candidates if c.sweeps is not None), default=math.inf)
        is_cheap = bool(self.candidates) and self.candidates[0].estimated_s <= _WORTH_DETECTING_S
        if not self._thorough and (is_cheap or fewest < _FEW_SWEEPS):
            self.left_out["compressed"] = (
                "the Jacobian is too small or cheap for a sparsity pattern to pay"
            )
            return
        try:
            plan = colour(self._graph)
        except CapabilityError as error:
            self.left_out["compressed"] = str(error)
            return
        work = sweep_work(self._graph, plan.count, reverse=plan.reverse)
        gathered = Work(arithmetic=4.0 * len(plan.rows), kernels=2.0)
        self._add(self._offer.candidate("compressed", work + gathered, sweeps=plan.count))

    def leave_out_what_holds_too_much(self) -> None:
        """Ways that need far more memory than another one."""
        least = min((candidate.entries for candidate in self.candidates), default=0.0)
        for candidate in self.candidates[:]:
            if candidate.entries > max(_MANY_ENTRIES, 10 * least):
                self.candidates.remove(candidate)
                self.left_out[candidate.method] = (
                    f"it holds {candidate.entries:,.0f} numbers at once, another method {least:,.0f}"
                )


def pays_native(traced: Traced, order: tuple[OrderStep, ...]) -> bool:
    """Whether a native kernel of an elimination is expected to be faster than its XLA program."""
    if not is_being_compiled(traced):
        return False
    work = elimination_work(traced.graph, order)
    if not _fits_a_kernel(traced, work):
        return False
    offer = _Offer.of(traced)
    native = offer.candidate("elimination", work, "native")
    return native.estimated_s < offer.candidate("elimination", work).estimated_s


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
            rows=graph.rows,
            columns=graph.columns,
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
            # A vector instruction takes as long for one element as for a full register.
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
        # XLA puts all that a few results need into one loop; further results get loops of their own, which
        # compute again what they share with the first. So work grows with the number of results: by one for
        # every six, and four at most, because XLA stores what many loops read. (Rough, as the prices: see
        # `_work`.)
        repeats = min(4.0, 1.0 + (self.results - 1) / 6)
        return replace(
            work,
            arithmetic=work.arithmetic * repeats,
            transcendental=work.transcendental * repeats,
        )


Method = Literal["auto", "planned", "elimination", "jacrev", "jacfwd", "compressed"]


Backend = Literal["auto", "xla", "native"]


def check_method(method: str) -> None:
    """Refuse a method that does not exist."""
    known = ("auto", "planned", "elimination", *SWEEPS, "compressed")
    if method not in known:
        names = ", ".join(map(repr, known))
        raise InputError(
            f"There is no method {method!r}; it is one of {names}.", code="unknown_method"
        )


def check_backend(backend: str) -> None:
    """Refuse a backend that does not exist."""
    if backend not in ("auto", "xla", "native"):
        raise InputError(
            f"There is no backend {backend!r}; it is 'auto', 'xla' or 'native'.",
            code="unknown_backend",
        )


def run_method(
    traced: Traced, order: tuple[OrderStep, ...], method: str, backend: str, *, wants_value: bool
) -> Outcome:
    """The value, the auxiliary result and the dense Jacobian, in one way."""
    if method in SWEEPS:
        return sweep(method, traced)
    if method == "compressed":
        return compressed(traced)
    if method == "planned":
        return plan_and_run(traced, sparse=False)
    if backend == "native":
        try:
            return run_native(traced, order, wants_value)
        except NativeUnavailableError as error:
            _log.info("No native kernel for this Jacobian, XLA computes it: %s", error)
    found = linearize_traced(traced, order)
    return found.value, found.aux, found.jacobian


def run_best(traced: Traced, listed: Ways, *, wants_value: bool) -> Outcome:
    """The first of some ways; if it fails for a reason of ours, JAX's sweeps."""
    best, *others = listed.candidates
    ways = [best, *(candidate for candidate in others if candidate.method in SWEEPS)]
    while True:
        way = ways.pop(0)
        try:
            return run_method(
                traced, listed.order, way.method, way.backend, wants_value=wants_value
            )
        except Exception as error:
            if not ways or not is_about_the_way(error):
                raise
            _warn(error, f"The Jacobian by {way.name} failed, JAX computes it by {ways[0].name}")


def is_about_the_way(error: Exception) -> bool:
    """Whether another way of computing a Jacobian may succeed where this error occurred.

    Not if the program ran and failed: a callback that raised would run, and raise, again.
    """
    if isinstance(error, ChainruleError):
        return isinstance(error, CapabilityError)
    return not isinstance(error, jax.errors.JaxRuntimeError)


def run_native(traced: Traced, order: tuple[OrderStep, ...], wants_value: bool) -> Outcome:
    """The eliminated program, traced once more without batch axes, as a kernel.

    A kernel computes all its outputs, so only what is wanted may be among them.

    Raises:
        NativeUnavailableError: the eliminated program cannot become a kernel.
    """
    trees = []

    def flat(*operands: Any) -> list[Any]:
        found = linearize_traced(replace(traced, operands=operands), order)
        value = found.value if wants_value else None
        leaves, tree = jax.tree.flatten((value, found.aux, found.jacobian))
        trees.append(tree)
        return leaves

    program = trace_avals(flat, [jax.typeof(operand) for operand in traced.operands])
    operands = list(traced.operands)
    if any(isinstance(const, jax.core.Tracer) for const in program.consts):
        # What the function closes over is being traced too: to the kernel these are inputs.
        operands = [*program.consts, *operands]
        jaxpr = program.jaxpr
        variables = (*jaxpr.constvars, *jaxpr.invars)
        program = close_program(variables, jaxpr.outvars, jaxpr.eqns, like=jaxpr)
    return jax.tree.unflatten(trees[-1], native_function(program)(*operands))
