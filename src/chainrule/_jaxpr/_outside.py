"""Calls that leave the compiled program: whom an equation calls, and how its derivatives can be asked for.

The package that makes such calls (`bridge`) registers its primitive here. What shows or prices programs, and
what plans Jacobians over several of such calls, needs to know no more about them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax.extend.core import JaxprEqn, Primitive

from chainrule._patterns import Pattern

Request = Literal["jvp", "vjp", "jacobian"]


@dataclass(frozen=True)
class Offer:
    """How one kind of derivative of a call is available.

    Attributes:
        evaluations: how often the program behind the call runs for one request.
        batches: whether one message carries many vectors.
        derived: whether it is made of other requests.
        residuals: whether it goes on from what the call itself has kept.
    """

    evaluations: float
    batches: bool = False
    derived: bool = False
    residuals: bool = False


@dataclass(frozen=True)
class Dependence:
    """Which elements of a result depend on which elements of an operand.

    Attributes:
        shared_axes: how many axes in front of both arrays are the same cases: an element depends on
            elements of its own case alone.
        pattern: within a case, by the flat positions of what is left of both arrays; `None`: on all.
    """

    shared_axes: int = 0
    pattern: Pattern | None = None


class Products(ABC):
    """Products with the Jacobian of a call at a point. Asking for them does not make the call again.

    Operands and results are named by their positions in the equation. Vectors have one more axis in front,
    along which there is one vector after the other; so have the results.

    Attributes:
        operands: for every operand, whether derivatives with respect to it are declared.
        results: for every result, whether derivatives of it are declared.
    """

    operands: tuple[bool, ...]
    results: tuple[bool, ...]

    @abstractmethod
    def offers(self, operands: Sequence[int], results: Sequence[int]) -> Mapping[Request, Offer]:
        """What can be asked about these operands and results.

        Raises:
            ChainruleError: nothing can; or one of the operands has no derivative.
        """

    @abstractmethod
    def columns(
        self, primals: Sequence[Any], tangents: Mapping[int, Any], results: Sequence[int]
    ) -> list[Any]:
        """The tangents of some results along tangents of some operands; the other operands stand still."""

    @abstractmethod
    def rows(
        self, primals: Sequence[Any], cotangents: Mapping[int, Any], operands: Sequence[int]
    ) -> list[Any]:
        """The cotangents of some operands, from cotangents of some results; the others have none."""

    @abstractmethod
    def jacobian(
        self, primals: Sequence[Any], operands: Sequence[int], results: Sequence[int]
    ) -> dict[tuple[int, int], Any]:
        """The blocks of the Jacobian by (result, operand), of shape result + operand."""


@dataclass(frozen=True)
class OutsideCall:
    """What an equation calls outside of the compiled program.

    Attributes:
        name: of the component or function; `None` when the equation does not say.
        request: what is asked of it.
        framework: what it is written in; `None` when that is not known.
        place: where it runs, for people.
        operands: the path of every operand; empty when the equation does not say.
        results: the path of every result, likewise.
        count: how many evaluations that is.
        products: how to ask for its derivatives; `None` when only JAX's rules lead there.
        prices: what the author says that calls cost, by the names of `chainrule._call_prices`.
        measure: the mean seconds of calls so far, by the same names, as far as there were any.
        dependence: of a result (its position) on an operand (its position), where it is known.
    """

    name: str | None
    request: str
    framework: str | None = None
    place: str = "in this process"
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    count: int = 1
    products: Products | None = field(default=None, compare=False)
    prices: Mapping[str, float] = field(default_factory=dict, compare=False)
    measure: Callable[[], Mapping[str, float]] = field(default=dict, compare=False)
    dependence: Callable[[int, int], Dependence | None] = field(
        default=lambda result, operand: None, compare=False
    )


_outside: dict[str, Callable[[Mapping[str, Any]], OutsideCall]] = {
    "pure_callback": lambda _: OutsideCall(None, "pure_callback"),
    "io_callback": lambda _: OutsideCall(None, "io_callback"),
}


def register_outside_call(
    primitive: Primitive, describe: Callable[[Mapping[str, Any]], OutsideCall]
) -> None:
    """Say that equations of a primitive leave the compiled program, and what they call.

    Args:
        primitive: of the package that registers it.
        describe: from an equation's parameters to what it calls.
    """
    _outside[primitive.name] = describe


def outside_call_of(eqn: JaxprEqn) -> OutsideCall | None:
    """What an equation calls outside of the compiled program: a component, a host function; or `None`."""
    describe = _outside.get(eqn.primitive.name)
    return None if describe is None else describe(eqn.params)
