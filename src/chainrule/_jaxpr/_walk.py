"""Visiting every equation of a program, however deeply nested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.core import ClosedJaxpr, JaxprEqn

from chainrule._jaxpr._programs import SubProgram, subprograms


@dataclass(frozen=True)
class Site:
    """An equation and the way to it.

    Attributes:
        equation: the equation.
        position: its position in the program that holds it.
        within: the (equation, sub-program) pairs that lead there, outermost first.
    """

    equation: JaxprEqn
    position: int
    within: tuple[tuple[JaxprEqn, SubProgram], ...] = ()


def walk(program: ClosedJaxpr) -> Iterator[Site]:
    """Every equation in program order; an equation comes before those of its sub-programs."""
    stack: list[Iterator[Site]] = [_sites(program, ())]
    while stack:
        site = next(stack[-1], None)
        if site is None:
            stack.pop()
            continue
        yield site
        for sub in reversed(subprograms(site.equation)):
            stack.append(_sites(sub.program, (*site.within, (site.equation, sub))))


def _sites(program: ClosedJaxpr, within: tuple[tuple[JaxprEqn, SubProgram], ...]) -> Iterator[Site]:
    return (Site(eqn, position, within) for position, eqn in enumerate(program.jaxpr.eqns))
