"""Evaluating a program around a point and taking differences: the numerical core of finite differences."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property

import numpy as np

from chainrule._errors import CapabilityError
from chainrule.runtime._derivatives._layout import Layout
from chainrule.runtime._derivatives._program import Program, evaluate_all
from chainrule.runtime._derivatives._progress import track
from chainrule.runtime._derivatives._stencils import Eps, Stencil, choose_steps, coarsest
from chainrule.runtime._progress import unheard

__all__ = ["Sampler"]


class Sampler:
    """Weighted differences of the program's outputs along directions, for one stencil.

    Args:
        program: what to evaluate.
        stencil: which differences.
        executor: where evaluations run.
        show_progress: whether long work shows a bar.
    """

    def __init__(
        self,
        program: Program,
        stencil: Stencil,
        *,
        executor: Executor | None = None,
        show_progress: bool = True,
    ) -> None:
        self.program = program
        self.stencil = stencil
        self.executor = executor
        self.show_progress = show_progress
        self.origin = program.layout.join(program.base)
        self._outputs: Layout | None = None

    @cached_property
    def base(self) -> dict[str, np.ndarray]:
        """The outputs of the unperturbed program."""
        point = self.origin.astype(complex) if self.stencil.is_complex else self.origin
        with unheard():
            return next(evaluate_all(self.program, [point]))

    @property
    def outputs(self) -> Layout:
        """The layout of the outputs, known from the first evaluation on."""
        return self._outputs or Layout.of(self.base)

    def steps(self, eps: Eps) -> np.ndarray:
        """The step of every input element as one vector.

        Automatic steps look at the outputs as well: a program that answers in float32 has the rounding
        errors of float32, whatever it was asked in.
        """
        program = self.program
        precision = program.precision
        if eps == "auto" and not self.stencil.is_complex:
            answered = [output.dtype for output in self.base.values()]
            precision = {path: coarsest(dtype, *answered) for path, dtype in precision.items()}
        return program.layout.join(choose_steps(self.stencil, eps, program.base, precision))

    def differences(
        self, moves: Sequence[np.ndarray]
    ) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """For every move: `(weighted output difference, input difference)` of each quotient.

        Args:
            moves: displacements of the inputs for a step of one, as long vectors.
        """
        nodes = self.stencil.nodes
        made: deque[np.ndarray] = deque()
        points = self._points(moves, nodes, made)
        results = evaluate_all(self.program, points, self.executor)
        total = len(moves) * len(nodes)
        results = track(results, "finite differences", total, show=self.show_progress)
        base = {0: (self.origin, self._flatten(self.base))} if self.stencil.needs_base else {}
        for move in moves:
            at = dict(base)
            for node in nodes:
                value = self._flatten(next(results))
                at[node] = (made.popleft(), value)
            if self.stencil.is_complex:
                yield [(at[1][1].imag, move)]
            else:
                yield [self._difference(at[p], at[m], w) for p, m, w in self.stencil.terms]

    def _points(
        self, moves: Sequence[np.ndarray], nodes: tuple[int, ...], made: deque[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Where to evaluate; `made` keeps the points until their results are there."""
        for move in moves:
            for node in nodes:
                made.append(self._point(move, node))
                yield made[-1]

    def _point(self, move: np.ndarray, node: int) -> np.ndarray:
        if self.stencil.is_complex:
            return self.origin + 1j * move
        return self.program.round(self.origin + node * move)

    @staticmethod
    def _difference(
        plus: tuple[np.ndarray, np.ndarray], minus: tuple[np.ndarray, np.ndarray], weight: float
    ) -> tuple[np.ndarray, np.ndarray]:
        return weight * (plus[1] - minus[1]), plus[0] - minus[0]

    def _flatten(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        layout = Layout.of(outputs)
        if self._outputs is None:
            self._outputs = layout
        elif layout != self._outputs:
            raise CapabilityError(
                "The outputs changed shape under a small step: "
                f"{dict(zip(layout.paths, layout.shapes, strict=True))} after "
                f"{dict(zip(self._outputs.paths, self._outputs.shapes, strict=True))}. "
                "A derivative needs outputs whose shape does not depend on the inputs' values.",
                code="output_shape_changed",
            )
        if self.stencil.is_complex:
            self._require_complex(outputs)
        return layout.join(outputs)

    @staticmethod
    def _require_complex(outputs: dict[str, np.ndarray]) -> None:
        for path, output in outputs.items():
            if output.dtype.kind != "c":
                raise CapabilityError(
                    f"Output {path!r} came back as {output.dtype} from complex inputs: the program "
                    "drops imaginary parts (a cast, abs or real storage), so the complex step would "
                    'report zero. Use algorithm="richardson", or leave this output out.',
                    code="complex_step_unsupported",
                    path=path,
                )
