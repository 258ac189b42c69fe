"""How much work a program, a sweep of derivatives or an elimination is, and what that costs by backend.

The kinds of work are those whose price differs by orders of magnitude between machines: arithmetic in a fused
loop, transcendental functions, multiply-adds in a matrix product, kernels that are launched, components that
are called.

The prices decide between ways of computing a Jacobian that differ by the number of sweeps, by what is shared,
or by whether a kernel is launched at all, so they only have to be right to a factor of two or so. They are
constants: a call of `jacobian` never measures the machine that it runs on. `explain_jacobian(measure=True)`
measures the ways themselves. `python -m benchmarks.device_elimination` measures prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import jax

from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, equations_inside, outside_call_of, subprograms
from chainrule.elimination._arithmetic import plan_product, plan_sum
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._eliminate import EdgeAlgebra, eliminate
from chainrule.elimination._graph import Graph
from chainrule.elimination._rules import real_size
from chainrule.elimination._rules._elementwise import ELEMENTWISE_RULES
from chainrule.elimination._rules._moving import MOVING_RULES
from chainrule.elimination._search import OrderStep
from chainrule.elimination._structure import Structure

_WHILE_ITERATIONS = 10
"""How often a `while` is taken to run: the program does not say."""

_TRANSCENDENTAL = frozenset(
    "sin cos tan exp exp2 log log1p expm1 tanh sinh cosh asin acos atan atan2 asinh acosh atanh pow erf "
    "erfc erf_inv logistic lgamma digamma cbrt igamma igammac".split()
)
_CUBIC = frozenset("cholesky lu qr eigh svd triangular_solve householder_product".split())
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split()
)
_FUSED = frozenset(ELEMENTWISE_RULES) | frozenset(MOVING_RULES) | _REDUCTIONS
"""What XLA computes in the same loop as its neighbours."""


@dataclass(frozen=True)
class Work:
    """Amounts of work, by kind.

    Attributes:
        arithmetic: scalar operations in fused loops.
        transcendental: evaluations of sine, logarithm and the like.
        contraction: multiply-adds in matrix products, convolutions and factorisations.
        kernels: parts of the program that are launched one by one, each time they run.
        calls: of components and other functions on the host.
        placed: entries that are only laid out anew, for a sum of blocks at different places.
        entries: numbers held at once, at most.
    """

    arithmetic: float = 0.0
    transcendental: float = 0.0
    contraction: float = 0.0
    kernels: float = 0.0
    calls: float = 0.0
    placed: float = 0.0
    entries: float = 0.0

    def __add__(self, other: Work) -> Work:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Work(**{**sums, "entries": max(self.entries, other.entries)})

    def times(self, factor: float) -> Work:
        """The same work over and over; what is held at once stays."""
        scaled = {f.name: getattr(self, f.name) * factor for f in fields(self)}
        return Work(**{**scaled, "entries": self.entries})

    @property
    def operations(self) -> float:
        """Scalar operations of all kinds."""
        return self.arithmetic + self.transcendental + self.contraction


def program_work(program: ClosedJaxpr) -> float:
    """Scalar operations of one evaluation."""
    return work_of_program(program).operations


def work_of_program(program: ClosedJaxpr) -> Work:
    """The work of one evaluation."""
    return sum((equation_work(eqn) for eqn in program.jaxpr.eqns), Work())


def equation_work(eqn: JaxprEqn) -> Work:
    """The work of one equation."""
    inner = subprograms(eqn)
    if inner:
        once = sum((work_of_program(sub.program) for sub in inner), Work(kernels=1.0))
        repeats = {"scan": eqn.params.get("length", 1), "while": _WHILE_ITERATIONS}
        return once.times(repeats.get(eqn.primitive.name, 1))
    name = eqn.primitive.name
    written = sum(_size(var.aval) for var in eqn.outvars)
    touched = max(written, sum(_size(atom.aval) for atom in eqn.invars))
    kernels = 0.0 if name in _FUSED else 1.0
    outside = outside_call_of(eqn)
    if outside is not None:
        return Work(calls=outside.count, entries=written)
    if name in _TRANSCENDENTAL:
        return Work(transcendental=written, kernels=kernels, entries=written)
    contracted = _contracted(eqn)
    if contracted:
        return Work(contraction=written * contracted, kernels=1.0, entries=written)
    return Work(arithmetic=touched, kernels=kernels, entries=written)


def _contracted(eqn: JaxprEqn) -> float:
    """Multiply-adds per entry that the equation writes; 0 for equations that contract nothing."""
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left: Any = eqn.invars[0].aval
        return math.prod(left.shape[d] for d in contracted)
    if name == "conv_general_dilated":
        features = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel: Any = eqn.invars[1].aval
        return _size(kernel) / max(1, kernel.shape[features])
    if name in _CUBIC:
        matrix: Any = eqn.invars[0].aval
        return matrix.shape[-1]
    return 0


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


_PER_DIRECTION = 2.0
"""A derivative along one direction takes about twice the arithmetic of the function."""


def sweep_work(graph: Graph, directions: int, *, reverse: bool) -> Work:
    """Derivatives along some directions, all at once, by `jax.jvp` or `jax.vjp`.

    The transcendental functions of the partials are shared by all directions. A component that is asked
    for products answers one direction per call.
    """
    # A sweep is linear in the direction: per direction it multiplies by partials and adds, about twice the
    # arithmetic of the function, while sines and the like in the partials are computed once. Forward mode
    # launches the program and its tangents (2), reverse mode the program, what it keeps for later, and the
    # way back (3).
    once = work_of_program(graph.program)
    per_direction = Work(
        arithmetic=_PER_DIRECTION * (once.arithmetic + once.transcendental),
        contraction=_PER_DIRECTION * once.contraction,
        calls=once.calls,
    )
    passes = 3.0 if reverse else 2.0
    shared = Work(transcendental=once.transcendental, kernels=(passes - 1) * once.kernels)
    held = Work(entries=directions * once.entries)
    return once + shared + per_direction.times(directions) + held


def elimination_work(graph: Graph, order: tuple[OrderStep, ...]) -> Work:
    """The primal, the local Jacobians, and the products and sums of an order."""
    total = [partials_work(graph)]

    def multiply(outer: Structure, inner: Structure) -> Structure:
        total.append(product_work(outer, inner))
        return product_structure(outer, inner)

    def add(first: Structure, second: Structure) -> Structure:
        total.append(sum_work(first, second))
        return sum_structure(first, second)

    algebra = EdgeAlgebra(multiply, add, lambda structure: structure.is_zero)
    eliminate(graph, graph.structures, order, algebra)
    return sum(total, Work())


def partials_work(graph: Graph) -> Work:
    """The primal and the local Jacobians, which every order needs."""
    total = [work_of_program(graph.program)]
    for vertex, local in graph.partials.items():
        eqn = graph.equation(vertex)
        held = Work(entries=sum(s.entries for s in local.structures.values()))
        if vertex in graph.without_rule or _holds_a_loop(eqn):
            total.append(_fallback_work(graph, vertex) + held)
        else:
            once = equation_work(eqn)
            written = sum(_size(var.aval) for var in graph.nodes(vertex))
            # A partial takes about one operation per entry, of the same kind as the function itself.
            total.append(Work(written, once.transcendental) + held)
    return sum(total, Work())


def _holds_a_loop(eqn: JaxprEqn) -> bool:
    """Whether there is a loop inside of a branch or of a function with a rule: it is swept through, too."""
    return any(inner.primitive.name in ("scan", "while") for inner in equations_inside(eqn))


def _fallback_work(graph: Graph, vertex: int) -> Work:
    """Sweeps through one equation, or products of a component: as many as its smaller side has entries.

    A `custom_vjp` function can only be pulled back through.
    """
    eqn = graph.equation(vertex)
    operands = {operand for _, operand in graph.partials[vertex].structures}
    columns = sum(real_size(eqn.invars[p].aval) for p in operands)
    rows = sum(real_size(var.aval) for var in graph.nodes(vertex))
    once = equation_work(eqn)
    directions = rows if "custom_vjp" in eqn.primitive.name else min(rows, columns)
    if once.calls:
        return Work(calls=once.calls * directions)
    swept = once.times(_PER_DIRECTION * directions)
    return Work(swept.arithmetic, swept.transcendental, swept.contraction, 2 * once.kernels)


@lru_cache(maxsize=1 << 16)
def product_work(outer: Structure, inner: Structure) -> Work:
    """What the compiled program does for `outer · inner`; nothing when one side has no values."""
    arithmetic = contraction = kernels = 0.0
    for left in outer.terms:
        for right in inner.terms:
            plan = plan_product(left, right) if left.valued and right.valued else None
            if plan is None:
                continue
            read = {v for axis in (*plan.left, *plan.right) for v in axis.variables}
            # One multiplication for every iteration that reads something. More of them than entries in the
            # result means that some are summed: a matrix product, which XLA launches as a kernel of its own.
            multiplied = math.prod(plan.sizes[v] for v in read)
            if multiplied > math.prod(plan.result.stored_shape):
                contraction, kernels = contraction + multiplied, kernels + 1
            else:
                arithmetic += multiplied
    stored = product_structure(outer, inner).stored
    return Work(arithmetic, 0.0, contraction, kernels, entries=stored)


@lru_cache(maxsize=1 << 16)
def sum_work(first: Structure, second: Structure) -> Work:
    """What the compiled program does for `first + second`: blocks at different places are laid out anew."""
    if not first.terms or not second.terms:
        return Work()
    arithmetic = placed = entries = 0.0
    for merge in plan_sum((*first.terms, *second.terms)):
        stored = math.prod(merge.result.stored_shape)
        entries += stored
        if merge.spreads:
            placed += stored * len(merge.sources)
        elif merge.result.valued:
            arithmetic += stored * (len(merge.sources) - 1)
    return Work(arithmetic, placed=placed, entries=entries)


# It only has to be far above what JAX operations cost: it decides that components are asked for few products.
# Which products, a plan decides by the prices of the components themselves (`_planning`).
COMPONENT_CALL_S = 5e-4
"""What asking a component is taken to cost: between one in this process and one on another host."""


@dataclass(frozen=True)
class Prices:
    """Seconds per unit of work.

    Attributes:
        call: one call of a compiled program.
        result: every array that it returns beside the first.
        kernel: launching one part of the program.
        arithmetic: one operation on one number in a fused loop.
        transcendental: one sine or the like.
        contraction: one multiply-add of a matrix product.
        written: one number written to a result.
    """

    call: float
    result: float
    kernel: float
    arithmetic: float
    transcendental: float
    contraction: float
    written: float

    def seconds(self, work: Work) -> float:
        """What some work takes, calling and returning aside."""
        return (
            (work.arithmetic + work.placed) * self.arithmetic
            + work.transcendental * self.transcendental
            + work.contraction * self.contraction
            + work.kernels * self.kernel
            + work.calls * COMPONENT_CALL_S
        )


# Each price is the time of a small program that is dominated by one kind of work, less that of an empty call,
# by its amount: 32 more results; 32 dependent products of 4 × 4 matrices, a launch each; 64 multiply-adds, or
# 8 sines, on 2¹⁵ numbers, which stay in the cache; a product of 192 × 192 matrices; 32 copies of an array.
CPU_PRICES = Prices(
    call=6e-6, result=1.3e-6, kernel=4e-7, arithmetic=1e-10, transcendental=2e-9,
    contraction=5e-11, written=5e-10,
)  # fmt: skip
"""Those of a core of an ordinary server, in float32, rounded."""

GPU_PRICES = Prices(
    call=8.2e-5, result=4.7e-6, kernel=6.7e-7, arithmetic=4.5e-14, transcendental=6.1e-13,
    contraction=1.2e-14, written=2e-12,
)  # fmt: skip
"""Those of an NVIDIA H200 with JAX 0.11, float32; see docs/benchmarks.md."""


def prices() -> Prices:
    """The prices of the default backend. Every accelerator counts as a GPU."""
    return CPU_PRICES if jax.default_backend() == "cpu" else GPU_PRICES
