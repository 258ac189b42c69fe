"""Finite-difference formulas as data.

A stencil is a weighted sum of difference quotients along a direction d with step h:

    f'(x) d  ≈  Σ  weight · (f(x + plus·h·d) − f(x + minus·h·d)) / ((plus − minus)·h)

Where an input is at a bound, all nodes lie on one side. With F(h) the forward quotient, whose error is
c₁h + c₂h² + …, 2F(h) − F(2h) loses the first term, and (8F(h) − 6F(2h) + F(4h))/3 the first two.

The complex step is the quotient over ±ih. For code that is real on the real axis f(x − ih) is the
conjugate of f(x + ih), so the second evaluation is not made and nothing cancels: the step can be tiny.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._schema import number_kind, rounding_unit

Algorithm = Literal["central", "forward", "stochastic", "complex_step", "richardson"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
Eps = float | Literal["auto"] | Mapping[str, float | Literal["auto"]]

COMPLEX_STEP = 1e-100
"""Far below any rounding unit, far above underflow of its square times ordinary numbers."""


@dataclass(frozen=True)
class Stencil:
    """One formula.

    Attributes:
        terms: `(plus, minus, weight)` of each quotient; steps are multiples of h.
        order: the truncation error is of this order in h.
        is_complex: the quotient is taken along the imaginary axis.
        at_bound: the formula with all nodes on one side; `None` where this one has them there already.
    """

    terms: tuple[tuple[int, int, float], ...]
    order: int
    is_complex: bool = False
    at_bound: Stencil | None = None

    @property
    def one_sided(self) -> Stencil:
        """The formula for inputs that can move one way only."""
        return self.at_bound or self

    @property
    def nodes(self) -> tuple[int, ...]:
        """The distinct multiples of h at which the program runs, the base point 0 aside."""
        if self.is_complex:
            return (1,)
        return tuple(dict.fromkeys(node for term in self.terms for node in term[:2] if node))

    @property
    def needs_base(self) -> bool:
        """Whether the unperturbed program has to run (once for all directions)."""
        return any(0 in term[:2] for term in self.terms)


STENCILS: Mapping[str, Stencil] = {
    "forward": Stencil(((1, 0, 1.0),), order=1),
    "central": Stencil(
        ((1, -1, 1.0),), order=2, at_bound=Stencil(((1, 0, 2.0), (2, 0, -1.0)), order=2)
    ),
    # The central quotient is C(h) = f′ + c h² + O(h⁴), so (4 C(h) - C(2h)) / 3 has no h². At a bound the
    # weights w of F(h), F(2h), F(4h) solve Σw = 1, w₁ + 2w₂ + 4w₃ = 0 and w₁ + 4w₂ + 16w₃ = 0: (8, -6, 1) /
    # 3.
    "richardson": Stencil(
        ((1, -1, 4 / 3), (2, -2, -1 / 3)),
        order=4,
        at_bound=Stencil(((1, 0, 8 / 3), (2, 0, -2.0), (4, 0, 1 / 3)), order=3),
    ),
    "complex_step": Stencil(((1, -1, 1.0),), order=2, is_complex=True),
}


def find_stencil(algorithm: str) -> Stencil:
    """The stencil of an algorithm; the stochastic one uses central differences.

    Raises:
        InputError: no such algorithm.
    """
    try:
        return STENCILS["central" if algorithm == "stochastic" else algorithm]
    except KeyError:
        raise InputError(
            f"Expected algorithm to be one of {sorted(ALGORITHMS)}, found {algorithm!r}.",
            code="unknown_algorithm",
        ) from None


def choose_steps(
    stencil: Stencil, eps: Eps, base: Mapping[str, np.ndarray], precision: Mapping[str, np.dtype]
) -> dict[str, np.ndarray]:
    """The step of every element of every path, where a program computes in some precision with values `base`.

    Raises:
        InputError: a mapping that does not name exactly the differentiated paths, or a step that is not a
            positive number (`bad_eps`).
    """
    if stencil.is_complex:
        return {path: np.full(x.shape, COMPLEX_STEP) for path, x in base.items()}
    if not is_eps(eps):
        raise InputError(
            f'eps must be a positive number, a mapping of one per path, or "auto"; found {eps!r}.',
            code="bad_eps",
        )
    per_path = dict(eps) if isinstance(eps, Mapping) else dict.fromkeys(base, eps)
    if set(per_path) != set(base):
        raise InputError(
            f"eps must name exactly the differentiated paths {sorted(base)}; found {sorted(per_path)}.",
            code="bad_eps",
        )
    return {
        path: _automatic(stencil, x, precision[path])
        if per_path[path] == "auto"
        else np.full(x.shape, float(per_path[path]))
        for path, x in base.items()
    }


def is_eps(eps: Any) -> bool:
    """Whether this is a positive number or `"auto"`, or a mapping of such."""
    return all(map(_is_step, eps.values() if isinstance(eps, Mapping) else [eps]))


def is_automatic(eps: Eps) -> bool:
    """Whether a step is left to us, for one path at least."""
    return "auto" in eps.values() if isinstance(eps, Mapping) else eps == "auto"


def _is_step(step: Any) -> bool:
    if isinstance(step, str):
        return step == "auto"
    return isinstance(step, Real) and 0 < float(step) < np.inf


def coarsest(*dtypes: np.dtype) -> np.dtype:
    """The floating-point dtype with the largest rounding unit; exact dtypes do not count."""
    inexact = [dtype for dtype in map(np.dtype, dtypes) if number_kind(dtype) in "fc"]
    return max(inexact, key=rounding_unit, default=np.dtype(float))


def _automatic(stencil: Stencil, x: np.ndarray, precision: np.dtype) -> np.ndarray:
    # Truncation grows like h^order, rounding like unit/h; they balance at unit^(1/(order + 1)) times the
    # scale on which the program varies with x. That is the element's own magnitude; its neighbours may be
    # other quantities. Zero has no magnitude: it takes that of its neighbours up to one, or else one.
    unit = rounding_unit(precision)
    largest = np.max(np.abs(x), initial=0.0)
    scale = np.where(x != 0, np.abs(x), min(largest, 1.0) or 1.0)
    # A subnormal step would be lost in rounding.
    return np.maximum(unit ** (1 / (stencil.order + 1)) * scale, np.finfo(float).tiny)
