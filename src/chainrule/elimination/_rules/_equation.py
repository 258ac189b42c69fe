"""What a rule is given and what it gives back.

A complex array is a pair of real ones here, along a last axis of two (`real_shape`, `as_real`), so that every
block is a real matrix: multiplication by a + bi is [[a, -b], [b, a]], and a function that is not holomorphic,
such as conjugation, has a Jacobian like any other. Only at the end is the block of a complex output made
complex again, Re + i·Im of its rows, as `jax.jacfwd` gives it for real inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from chainrule._jaxpr import JaxprEqn
from chainrule.elimination._blocks import where_nonzero
from chainrule.elimination._structure import Axis, Structure, canonical_term, structure_of

Edge = tuple[int, int]
"""(result, operand) of an equation, by position."""


@dataclass(frozen=True)
class Equation:
    """An equation whose partials are wanted.

    Attributes:
        eqn: the equation.
        known: from the position of an operand to its value, where that is known before anything runs,
            else `None`.
        wanted: per operand, whether a derivative with respect to it is needed.
    """

    eqn: JaxprEqn
    known: Callable[[int], Any]
    wanted: tuple[bool, ...]

    @property
    def wanted_operands(self) -> list[int]:
        return [position for position, wanted in enumerate(self.wanted) if wanted]

    def operand(self, position: int) -> Any:
        """The abstract value of an operand: shape and dtype."""
        return self.eqn.invars[position].aval

    def result(self, position: int = 0) -> Any:
        """The abstract value of a result."""
        return self.eqn.outvars[position].aval

    def operand_shape(self, position: int) -> tuple[int, ...]:
        return tuple(self.operand(position).shape)

    def result_shape(self, position: int = 0) -> tuple[int, ...]:
        return tuple(self.result(position).shape)

    def known_scalar(self, position: int) -> float | None:
        """The operand as a number, when it is a known real scalar."""
        aval = self.operand(position)
        if aval.shape or is_complex(aval):
            return None
        value = self.known(position)
        return None if value is None else float(value)


@dataclass(frozen=True)
class LocalJacobian:
    """The partials of one equation; edges that are missing are structurally zero.

    Attributes:
        structures: the structure of every edge.
        evaluate: from the values of operands and results, the values of the edges' terms. It may leave
            out edges whose terms have no values.
        not_linear: where a rule of the user's is no derivative of anything, because it changes tangents or
            cotangents in a way that is not linear: what in it is not. Else `None`.
    """

    structures: Mapping[Edge, Structure]
    evaluate: Callable[[Sequence[Any], Sequence[Any]], Mapping[Edge, tuple[Any, ...]]]
    not_linear: str | None = None


Rule = Callable[[Equation], LocalJacobian]

NOTHING = LocalJacobian({}, lambda operands, results: {})


def constant(structures: Mapping[Edge, Structure]) -> LocalJacobian:
    """Partials without values: moves, sums, sign flips."""
    return LocalJacobian(structures, lambda operands, results: {})


def selecting(local: LocalJacobian) -> LocalJacobian:
    """Partials that are 0 exactly where no path leads through: there they cut instead of multiplying."""

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        return {
            edge: tuple(where_nonzero(value) for value in values)
            for edge, values in local.evaluate(operands, results).items()
        }

    return replace(local, evaluate=evaluate)


def is_complex(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.complexfloating)


def real_shape(aval: Any) -> tuple[int, ...]:
    """The shape of a value seen as real numbers: complex ones have a last axis (real, imaginary)."""
    return (*aval.shape, 2) if is_complex(aval) else tuple(aval.shape)


def real_size(aval: Any) -> int:
    """The number of real numbers in an array."""
    return math.prod(real_shape(aval))


def as_real(value: Any) -> Any:
    """A value as real numbers; the last axis of what was complex is (real, imaginary)."""
    if jnp.iscomplexobj(value):
        return jnp.stack([value.real, value.imag], axis=-1)
    return value


def complex_dtype(real: Any) -> Any:
    """The complex dtype with the precision of a real one, also where promotion is not allowed."""
    return jnp.complex128 if real == jnp.float64 else jnp.complex64


def term_structure(
    out_shape: Sequence[int],
    in_shape: Sequence[int],
    sizes: Sequence[int],
    out_axes: Sequence[Axis],
    in_axes: Sequence[Axis],
    *,
    stored: Sequence[int] | None = None,
    coefficient: float = 1.0,
    index_map: bool = False,
) -> tuple[Structure, tuple[int, ...]] | None:
    """A structure of one term, and the stored variables in the order of its value's axes.

    `stored=None` means that there is no value. Returns `None` where there is no entry at all.
    """
    if math.prod(sizes) == 0:
        return None
    term, order = canonical_term(
        tuple(out_shape), tuple(in_shape), dict(enumerate(sizes)), out_axes, in_axes, stored or (),
        valued=stored is not None, coefficient=coefficient,
    )  # fmt: skip
    return structure_of([term], index_map=index_map), order


def transposition(held: Sequence[int], order: Sequence[int]) -> list[int]:
    """How to transpose a value, whose axes are the variables `held`, for a term that stores `order`.

    Variables of length 1 have no stored axis. They come last, where a reshape drops them.
    """
    trivial = [v for v in held if v not in order]
    return [held.index(v) for v in (*order, *trivial)]
