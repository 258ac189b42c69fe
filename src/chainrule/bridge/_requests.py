"""Requests and their rules: what can be asked of a site, and which request answers a derivative of which.

A *request* is a form that is linear in each of its *slots*. Let f be the flat function of a site from its
inputs to its outputs, J(x) its Jacobian and H(x) its second derivative:

    slots                 result     meaning                                        name
    ()                    outputs    f(x)                                           apply
    (inputs,)             outputs    J(x) v                                         jvp
    (outputs,)            inputs     J(x)ᵀ u                                        vjp
    (inputs, inputs)      outputs    H(x)[v, w]                                     second_jvp
    (outputs, inputs)     inputs     H(x)ᵀ[u, w], the derivative of J(x)ᵀ u         hvp

A request with `columns` returns all of J(x) at once (jacobian). A *call* is a request at a site over a batch:
all that one equation of a program says. Its operands are the arrays of the site's inputs (the *primals*),
then the vectors of the slots in order.

Two rules generate the table, and with them every first and second derivative. Both are methods of `Call`, for
every framework: JAX's rules are in `_primitive`, torch's in `chainrule.torch`.

    push_forward    along tangents of the primals a slot is appended; along those of a slot it is replaced
    pull_back       with respect to the primals the cotangents fill a new slot, with respect to a slot its own

Conventions:
    Cotangents of complex numbers are JAX's: the pairing of u and z is Re(Σ u z), without conjugation, and
    Jᵀ is the transpose in that pairing, Re⟨u, J v⟩ = Re⟨Jᵀ u, v⟩. torch conjugates on its way in and out.
    A tangent or cotangent that is known to be zero is left out: its array is not in the slot's space. What is
    left out of a result's space is not computed. No array of zeros is sent for either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from chainrule._device import broadcast_to
from chainrule._endpoints import HVP, JACOBIAN, JVP, VJP, DerivativeKind
from chainrule._errors import CapabilityError, InputError
from chainrule.bridge._site import Port, Site
from chainrule.bridge._types import ArrayType

Side = Literal["inputs", "outputs"]

_NAMES: dict[tuple[int, Side], str] = {
    (0, "outputs"): "apply",
    (1, "outputs"): "jvp",
    (1, "inputs"): "vjp",
    (2, "outputs"): "second_jvp",
    (2, "inputs"): "hvp",
}

_ANSWERED_BY: dict[str, tuple[DerivativeKind, ...]] = {
    "jvp": (JVP, JACOBIAN, VJP),
    "vjp": (VJP, JACOBIAN, JVP),
    "second_jvp": (HVP,),
    "hvp": (HVP,),
}
"""The endpoints that lead to an answer, best first; `_routes` has the ways.

A product is asked for, or made of the Jacobian, or of one product with the transpose per element. A
`second_jvp` is the transpose of an `hvp` in its first slot.
"""


@dataclass(frozen=True)
class Space:
    """Some of the arrays of one side, by position."""

    side: Side
    positions: tuple[int, ...]

    def ports(self, site: Site) -> tuple[Port, ...]:
        """The arrays themselves."""
        ports = site.inputs if self.side == "inputs" else site.outputs
        return tuple(ports[position] for position in self.positions)

    def paths(self, site: Site) -> tuple[str, ...]:
        """Their paths."""
        return tuple(port.path for port in self.ports(site))

    def types(self, site: Site) -> tuple[ArrayType, ...]:
        """Their types, which are also those of tangents and cotangents."""
        return tuple(port.type for port in self.ports(site))

    def size(self, site: Site) -> int:
        """Number of scalars."""
        return sum(type_.size for type_ in self.types(site))

    def keep(self, wanted: Sequence[bool]) -> Space:
        """The part of the space that is wanted."""
        kept = tuple(p for p, keep in zip(self.positions, wanted, strict=True) if keep)
        return Space(self.side, kept)

    def differentiable(self, site: Site) -> Space:
        """The part of the space that can carry derivatives."""
        return self.keep([port.differentiable for port in self.ports(site)])


@dataclass(frozen=True)
class Request:
    """One row of the table in the module's docstring, restricted to some arrays.

    Attributes:
        slots: the spaces of the vectors that are given.
        result: the space of what comes back.
        columns: for the Jacobian only: the inputs; the result then is one block for every pair of
            `result` and `columns`, row by row, of shape output + input.
    """

    slots: tuple[Space, ...]
    result: Space
    columns: Space | None = None

    @cached_property
    def name(self) -> str:
        """For messages, and which row of the table it is."""
        if self.columns is not None:
            return "jacobian"
        return _NAMES.get((len(self.slots), self.result.side), "third derivative")

    def result_types(self, site: Site) -> tuple[ArrayType, ...]:
        """The types of what comes back."""
        rows = self.result.types(site)
        if self.columns is None:
            return rows
        columns = self.columns.types(site)
        return tuple(ArrayType(r.shape + c.shape, r.dtype) for r in rows for c in columns)

    def transposed(self) -> Request:
        """The request in which the first slot and the result have changed places.

        For jvp and vjp that is ⟨u, J v⟩ = ⟨Jᵀ u, v⟩. For a second_jvp it is ⟨u, H[v, w]⟩ = ⟨Hᵀ[u, w], v⟩:
        the second slot stays, since H is symmetric in its two input directions.
        """
        first, *others = self.slots
        return replace(self, slots=(self.result, *others), result=first)

    def split(self, site: Site, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """The primals among a call's operands, and the vectors of each slot."""
        rest = list(operands)
        primals, rest = rest[: len(site.inputs)], rest[len(site.inputs) :]
        vectors = []
        for slot in self.slots:
            count = len(slot.positions)
            vectors.append(rest[:count])
            rest = rest[count:]
        return primals, vectors


def endpoint_for(site: Site, request: Request) -> DerivativeKind:
    """The best endpoint that the target has for a request with slots.

    It is looked for when a program is traced, so that a missing derivative is an error there and not in the
    middle of a run.

    Raises:
        CapabilityError: it has none of them; says which one would help.
    """
    candidates = _ANSWERED_BY.get(request.name, ())
    for kind in candidates:
        if kind.endpoint in site.target.endpoints:
            return kind
    order = {1: "first", 2: "second"}.get(len(request.slots), "third")
    needed = (
        " or ".join(f"`{kind.endpoint}`" for kind in candidates) or "more than any endpoint gives"
    )
    raise CapabilityError(
        f"{site.target.name} cannot answer a {request.name}: that needs {needed}, and it offers "
        f"{', '.join(sorted(site.target.endpoints))}. {_ADVICE[order]}",
        code=f"no_{order}_derivative",
    )


def require_own_endpoint(site: Site, request: Request) -> None:
    """Refuse a request that another endpoint than its own would answer, where the target must not derive.

    This is asked when a request is to run. Before, transposition may still turn it into one that is answered.

    Raises:
        CapabilityError: the target has no endpoint for this request.
    """
    own = _ANSWERED_BY.get(request.name, ())[:1]
    if request.columns is not None or site.target.derives or not own:
        return
    if own[0].endpoint not in site.target.endpoints:
        raise CapabilityError(
            f"`{own[0].endpoint}` is not implemented by the author of {site.target.name}, who wrote "
            f"{', '.join(sorted(site.target.endpoints))}, and the caller wants nothing derived.",
            code="no_first_derivative",
        )


_ADVICE = {
    "first": "Add one to the component (`jvp=` or `vjp=` to a callable), let it be made of differences "
    '(`@component(derivatives="finite")`, with `Differentiable` on both sides), or wrap the call in '
    "`jax.lax.stop_gradient`.",
    "second": "Add it to the component (`hvp=` to a callable), or let it be made of differences (the setting "
    "`derive_hvp`). A component written in JAX that runs in this process has derivatives of every order.",
    "third": "A component written in JAX that runs in this process has derivatives of every order.",
}


@dataclass(frozen=True)
class Batch:
    """Batch axes that the host loops over, outermost first.

    Attributes:
        sizes: one per axis.
        mapped: for every operand, which of these axes it has; those it has are in front, in order.
    """

    sizes: tuple[int, ...]
    mapped: tuple[tuple[bool, ...], ...]

    @classmethod
    def none(cls, operand_count: int) -> Batch:
        """No batch."""
        return cls((), ((),) * operand_count)

    def select(self, operands: Sequence[np.ndarray], index: tuple[int, ...]) -> list[np.ndarray]:
        """One example; with fewer indices than axes, the examples of the remaining axes."""
        return [
            operand[tuple(i for i, has in zip(index, mapped, strict=False) if has)]
            for operand, mapped in zip(operands, self.mapped, strict=True)
        ]

    def within(self, count: int) -> Batch:
        """The batch without its first axes."""
        return Batch(self.sizes[count:], tuple(axes[count:] for axes in self.mapped))

    def flatten(self, operand: np.ndarray, mapped: tuple[bool, ...]) -> np.ndarray:
        """An operand with one batch axis for all, repeated along those that it does not have."""
        shape = operand.shape[sum(mapped) :]
        ones = (n if has else 1 for n, has in zip(self.sizes, mapped, strict=True))
        full = broadcast_to(operand.reshape(*ones, *shape), (*self.sizes, *shape))
        return full.reshape(math.prod(self.sizes), *shape)

    def with_outer(self, size: int, mapped: Sequence[bool]) -> Batch:
        """The batch with one more axis around it."""
        pairs = zip(mapped, self.mapped, strict=True)
        return Batch((size, *self.sizes), tuple((outer, *inner) for outer, inner in pairs))


@dataclass(frozen=True)
class Vectors:
    """Arrays over a space, and for each of them which axes of the call's batch it has."""

    space: Space
    values: tuple[Any, ...]
    mapped: tuple[tuple[bool, ...], ...]

    def keep(self, is_wanted: Callable[[Any], bool]) -> Vectors:
        """Those whose value is wanted."""
        wanted = [is_wanted(value) for value in self.values]
        return Vectors(
            self.space.keep(wanted),
            tuple(v for v, keep in zip(self.values, wanted, strict=True) if keep),
            tuple(m for m, keep in zip(self.mapped, wanted, strict=True) if keep),
        )

    def with_mapped(self, change: Callable[[tuple[bool, ...]], tuple[bool, ...]]) -> Vectors:
        """The same with other batch axes."""
        return Vectors(self.space, self.values, tuple(change(each) for each in self.mapped))


@dataclass(frozen=True, repr=False)
class Call:
    """All that one equation says: which request, at which site, over which batch.

    Calls of one site, request and batch are equal, so that equal equations are compiled to equal
    instructions, which XLA merges.
    """

    site: Site
    request: Request
    batch: Batch

    @classmethod
    def apply(cls, site: Site) -> Call:
        """All outputs of a site."""
        outputs = Space("outputs", tuple(range(len(site.outputs))))
        return cls(site, Request((), outputs), Batch.none(len(site.inputs)))

    @classmethod
    def make(
        cls,
        site: Site,
        sizes: tuple[int, ...],
        primals: Vectors,
        slots: Sequence[Vectors],
        result: Space,
        columns: Space | None = None,
    ) -> tuple[Call, list[Any]]:
        """A call and its operands.

        Raises:
            CapabilityError: the target has no endpoint that leads to an answer.
        """
        # In the table a cotangent is written before the tangents; the order of tangents does not matter,
        # since H is symmetric in them. (Sorting is stable.)
        ordered = sorted(slots, key=lambda slot: slot.space.side == "inputs")
        request = Request(tuple(slot.space for slot in ordered), result, columns)
        if request.slots:
            endpoint_for(site, request)
        operands = [value for part in (primals, *ordered) for value in part.values]
        mapped = tuple(axes for part in (primals, *ordered) for axes in part.mapped)
        return cls(site, request, Batch(sizes, mapped)), operands

    def __repr__(self) -> str:
        batch = f", batch {list(self.batch.sizes)}" if self.batch.sizes else ""
        return f"{self.request.name} of {self.site.target.name}{batch}"

    @property
    def operand_types(self) -> tuple[ArrayType, ...]:
        """The types of the operands, batch axes included."""
        spaces = (types for slot in self.request.slots for types in slot.types(self.site))
        types = (*(port.type for port in self.site.inputs), *spaces)
        sizes = self.batch.sizes
        return tuple(
            type_.with_leading(*(size for size, has in zip(sizes, axes, strict=True) if has))
            for type_, axes in zip(types, self.batch.mapped, strict=True)
        )

    @property
    def result_types(self) -> tuple[ArrayType, ...]:
        """The types of the results, batch axes included."""
        types = self.request.result_types(self.site)
        return tuple(type_.with_leading(*self.batch.sizes) for type_ in types)

    def batched(self, size: int, mapped: Sequence[bool]) -> Call:
        """The call with one more batch axis around it, which some operands have."""
        return replace(self, batch=self.batch.with_outer(size, mapped))

    def open(self, operands: Sequence[Any]) -> tuple[Vectors, list[Vectors]]:
        """The primals and the contents of the slots, of the operands or of something for each operand."""
        primals, slots = self.request.split(self.site, operands)
        primals_mapped, slots_mapped = self.request.split(self.site, self.batch.mapped)
        everything = Space("inputs", tuple(range(len(self.site.inputs))))
        filled = [
            Vectors(space, tuple(values), tuple(mapped))
            for space, values, mapped in zip(self.request.slots, slots, slots_mapped, strict=True)
        ]
        return Vectors(everything, tuple(primals), tuple(primals_mapped)), filled

    def push_forward(
        self, operands: Sequence[Any], tangents: Sequence[Any], is_moving: Callable[[Any], bool]
    ) -> Iterator[tuple[Call, list[Any]]]:
        """The calls whose sum is the derivative along tangents of the operands, with their operands.

        A request is a form F(x; a, b) that is linear in its slots, so by the product rule

            dF = ∂F/∂x [dx] (a, b) + F(x; da, b) + F(x; a, db):

        one call with a further slot for the moving primals, and one for each slot with moving vectors, in
        which these take the slot's place. Zero terms are left out. The results are those of the
        differentiable part of the call's own result (`place` puts them where they belong).

        Raises:
            InputError: an input moves that is not differentiable.
        """
        primals, slots = self.open(operands)
        primal_tangents, slot_tangents = self.open(tangents)
        result = self.request.result.differentiable(self.site)
        moving = primal_tangents.keep(is_moving)
        if moving.values:
            check_inputs(self.site, moving.space)
            yield Call.make(self.site, self.batch.sizes, primals, [*slots, moving], result)
        for number, each in enumerate(slot_tangents):
            moving = each.keep(is_moving)
            if moving.values:
                others = [*slots[:number], moving, *slots[number + 1 :]]
                yield Call.make(self.site, self.batch.sizes, primals, others, result)

    def place(self, tangents: Sequence[Any]) -> list[Any | None]:
        """Tangents of the differentiable results where they belong, `None` for the other results."""
        moving = self.request.result.differentiable(self.site).positions
        by_position = dict(zip(moving, tangents, strict=False))
        return [by_position.get(position) for position in self.request.result.positions]

    def pull_back(
        self,
        operands: Sequence[Any],
        cotangents: Sequence[Any | None],
        needed: Sequence[bool],
        run: Callable[[Call, list[Any]], Sequence[Any]],
    ) -> list[Any | None]:
        """The cotangents of the operands that are needed, `None` for the others.

        Let c be the cotangents of the results. With respect to a slot that holds a,

            Re⟨c, F(x; a)⟩ = Re⟨Fᵀ(x; c), a⟩:

        the slot and the result change places, and c fills the slot. With respect to the primals,

            d Re⟨c, F(x; a)⟩ = Re⟨c, ∂F/∂x [dx] (a)⟩ = Re⟨G(x; c, a), dx⟩,

        where G has c in a further slot and the inputs as result. For apply, G is the vjp J(x)ᵀ c. For a jvp
        it is the hvp Hᵀ[c, v]. For a vjp, c is a direction w of the inputs, and G is the hvp Hᵀ[u, w], again
        because H is symmetric in its two input directions.

        An operand without a batch axis was used by every example of that axis: its cotangent is the sum over
        the axis.

        Args:
            operands: of the call.
            cotangents: of its results, with all batch axes; `None` where zero. At least one is not.
            needed: for every operand, whether its cotangent is wanted.
            run: gives the results of a call.

        Raises:
            InputError: the cotangent of an input is needed that is not differentiable.
            CapabilityError: a result has a cotangent that is not differentiable, or the target has no
                endpoint for the derivative.
        """
        primals, slots = self.open(operands)
        wanted_primals, wanted_slots = self.open([need or None for need in needed])
        everywhere = ((True,) * len(self.batch.sizes),) * len(cotangents)
        given = Vectors(self.request.result, tuple(cotangents), everywhere).keep(_is_given)
        for port in given.space.ports(self.site):
            if not port.differentiable:
                raise not_differentiable(self.site.target.name, port)
        found: list[Any | None] = []
        for number, wanted in enumerate([wanted_primals, *wanted_slots]):
            others = slots if number == 0 else [*slots[: number - 1], *slots[number:]]
            part = wanted.keep(_is_given)
            if number == 0:
                check_inputs(self.site, part.space)
            answers: Iterator[Any] = iter(())
            if part.values:
                filled = [*others, given]
                call, arguments = Call.make(
                    self.site, self.batch.sizes, primals, filled, part.space
                )
                answers = iter(run(call, arguments))
            found += [
                None if need is None else _sum_unmapped(next(answers), axes)
                for need, axes in zip(wanted.values, wanted.mapped, strict=True)
            ]
        return found


def _is_given(value: Any) -> bool:
    return value is not None


def _sum_unmapped(answer: Any, mapped: tuple[bool, ...]) -> Any:
    axes = tuple(axis for axis, has in enumerate(mapped) if not has)
    return answer.sum(axes) if axes else answer


def check_inputs(site: Site, moving: Space) -> None:
    """Check that derivatives with respect to these inputs are declared.

    Raises:
        InputError: one of them is not.
    """
    fixed = [port for port in moving.ports(site) if not port.differentiable]
    if fixed:
        listed = ", ".join(f"`{port.path}` {port.type}" for port in fixed)
        raise InputError(
            f"A derivative with respect to {listed} was asked for (a non-symbolic-zero tangent), which "
            f"{site.target.name} does not mark `Differentiable`. Mark it in the component's InputSchema, or "
            "stop the gradient before the call (`jax.lax.stop_gradient`, `Tensor.detach`).",
            code="input_not_differentiable",
            path=fixed[0].path,
        )


def not_differentiable(name: str, port: Port) -> CapabilityError:
    """What to raise where the gradient of an output is asked for that has none: no silent zero."""
    return CapabilityError(
        f"The gradient of `{port.path}` {port.type} of {name} was asked for, which is not marked "
        "`Differentiable`. Mark it in the component's OutputSchema, or stop the gradient after the call "
        "(`jax.lax.stop_gradient`, `Tensor.detach`).",
        code="output_not_differentiable",
        path=port.path,
    )
