"""The engine in C, seen from Python."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chainrule._c_library import load_c_library
from chainrule.elimination._search._problem import OutOfBudgetError, Problem
from chainrule.elimination._search._python_engine import PythonEngine

_UNKNOWN, _STOPPED = -2, -1
_GO_ON, _PRODUCT = 0, 1

MOST_STRUCTURES = 4096
"""The tables are square: 200 MB each at this size."""


def load_engine() -> ctypes.CDLL | None:
    """The functions of the engine; `None` where it cannot be built."""
    return load_c_library(Path(__file__).with_name("_engine.c"))


_Ask = ctypes.CFUNCTYPE(None, ctypes.c_int32)


class _CProblem(ctypes.Structure):
    """Mirrors `Problem` in _engine.c."""

    _fields_ = (
        ("size", ctypes.c_int32),
        ("words", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("kept", ctypes.c_void_p),
        ("eliminable", ctypes.c_void_p),
        ("predecessors", ctypes.c_void_p),
        ("successors", ctypes.c_void_p),
        ("edges", ctypes.c_void_p),
        ("product_structure", ctypes.c_void_p),
        ("sum_structure", ctypes.c_void_p),
        ("product_cost", ctypes.c_void_p),
        ("sum_cost", ctypes.c_void_p),
        ("ask", _Ask),
        ("first", ctypes.c_int32),
        ("second", ctypes.c_int32),
        ("goes_on", ctypes.c_int32),
        ("chosen", ctypes.c_int32),
        ("evaluations", ctypes.c_int64),
    )


class _NoRoomError(OutOfBudgetError):
    """There are more structures than the tables have room for."""


class _Table:
    """Answers of the algebra as a square array; -2 where it was not asked yet.

    Args:
        question: the algebra's product or sum.
        capacity: structures there is room for.
        make_room: called with a structure for which there is none.
    """

    def __init__(
        self,
        question: Callable[[int, int], tuple[int, int]],
        capacity: int,
        make_room: Callable[[int], None],
    ) -> None:
        self._question, self._make_room = question, make_room
        self.structure = np.full((capacity, capacity), _UNKNOWN, np.int32)
        self.cost = np.zeros((capacity, capacity), np.int64)

    def fill(self, first: int, second: int) -> None:
        """Ask for structure and cost of a pair."""
        structure, cost = self._question(first, second)
        if structure >= MOST_STRUCTURES:
            raise _NoRoomError
        if structure >= len(self.structure):
            self._make_room(structure)
        self.structure[first, second] = structure
        self.cost[first, second] = cost

    def grow(self, capacity: int) -> None:
        extra = capacity - len(self.structure)
        margins = ((0, extra), (0, extra))
        self.structure = np.pad(self.structure, margins, constant_values=_UNKNOWN)
        self.cost = np.pad(self.cost, margins)


class NativeEngine:
    """Costs of orders, greedy construction and improvement, in C. Deterministic for a seed."""

    exact_width = 12

    def __init__(self, problem: Problem, library: ctypes.CDLL) -> None:
        self.problem = problem
        self.deadline = math.inf
        self.sweeps_per_call = max(1, min(16, 1600 // max(1, len(problem.eliminable))))
        self._library = library
        most = max((structure for *_, structure in problem.edges), default=0)
        self._capacity = 2 ** (most + 1).bit_length()
        self._products = _Table(problem.algebra.product, self._capacity, self._make_room)
        self._sums = _Table(problem.algebra.sum, self._capacity, self._make_room)
        self._walker = PythonEngine(problem)
        self._arrays = _arrays(problem)
        words = self._arrays["successors"].shape[1]
        answers = self._answers()
        next(answers)
        self._c = _CProblem(size=problem.size, words=words, ask=_Ask(answers.send))
        self._stopped: BaseException | None = None
        for name, array in self._arrays.items():
            setattr(self._c, name, array.ctypes.data)
        self._point_at_tables()

    @property
    def evaluations(self) -> int:
        """Eliminations tried so far."""
        return self._c.evaluations

    def costs(self, order: Sequence[int]) -> list[int]:
        """What every step of an order costs."""
        vertices, costs = _vertices(order), np.zeros(len(order), np.int64)
        try:
            self._call("chainrule_costs", _at(vertices), len(order), _at(costs))
        except _NoRoomError:
            self._walker.deadline = self.deadline
            return self._walker.costs(order)
        return costs.tolist()

    def greedy(self, look_ahead: float, noise: float, seed: int) -> list[int]:
        """An order by repeatedly taking the vertex with the smallest score."""
        order = _vertices(self.problem.eliminable)
        weights = ctypes.c_double(look_ahead), ctypes.c_double(noise)
        try:
            self._call("chainrule_greedy", _at(order), len(order), *weights, ctypes.c_uint64(seed))
        except OutOfBudgetError:
            raise OutOfBudgetError(order[: self._c.chosen].tolist()) from None
        return order.tolist()

    def anneal(
        self,
        order: Sequence[int],
        temperatures: Sequence[float],
        window: int,
        tries: int,
        seed: int,
    ) -> tuple[list[int], list[int]]:
        """One pass per temperature: the order after the last, and the best after any."""
        current, best = _vertices(order), _vertices(order)
        heat = np.asarray(temperatures, np.float64)
        schedule = _at(heat), len(heat), window, tries, ctypes.c_uint64(seed)
        self._call("chainrule_anneal", _at(current), len(current), *schedule, _at(best))
        return current.tolist(), best.tolist()

    def windows(self, order: Sequence[int], width: int) -> list[int]:
        """Every window of an order put into its best order."""
        result = _vertices(order)
        self._call("chainrule_windows", _at(result), len(result), width)
        return result.tolist()

    def _call(self, name: str, *arguments: Any) -> None:
        """Call into C, and raise what stopped it."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        status = function(ctypes.byref(self._c), *arguments)
        if status == _STOPPED:
            stopped, self._stopped = self._stopped, None
            raise stopped or KeyboardInterrupt  # a second interrupt, while the first was kept
        if status < _STOPPED:
            raise MemoryError("the order search ran out of memory")

    def _answers(self) -> Generator[None, int, None]:
        """Answer the questions of C: for an entry of a table or, now and then, only whether to go on.

        A generator, because it waits inside of `try`. Exceptions do not pass through C, and an interrupt
        is raised as soon as Python runs: in a function that would be before its first line.
        """
        while True:
            try:
                while True:
                    kind = yield
                    if time.perf_counter() > self.deadline:
                        raise OutOfBudgetError
                    if kind != _GO_ON:
                        table = self._products if kind == _PRODUCT else self._sums
                        table.fill(self._c.first, self._c.second)
                    self._c.goes_on = 1
            except GeneratorExit:
                return
            except BaseException as error:
                self._stopped = error

    def _make_room(self, structure: int) -> None:
        self._capacity = 2 ** (structure + 1).bit_length()
        self._products.grow(self._capacity)
        self._sums.grow(self._capacity)
        self._point_at_tables()

    def _point_at_tables(self) -> None:
        self._c.capacity = self._capacity
        self._c.product_structure = self._products.structure.ctypes.data
        self._c.product_cost = self._products.cost.ctypes.data
        self._c.sum_structure = self._sums.structure.ctypes.data
        self._c.sum_cost = self._sums.cost.ctypes.data


def _vertices(order: Sequence[int]) -> np.ndarray:
    return np.array(order, np.int32)


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _arrays(problem: Problem) -> dict[str, np.ndarray]:
    words = (problem.size + 63) // 64
    arrays: dict[str, np.ndarray] = {
        "kept": np.zeros(problem.size, np.uint8),
        "eliminable": np.zeros(problem.size, np.uint8),
        "predecessors": np.zeros((problem.size, words), np.uint64),
        "successors": np.zeros((problem.size, words), np.uint64),
        "edges": np.zeros((problem.size, problem.size), np.int32),
    }
    arrays["kept"][list(problem.kept)] = 1
    arrays["eliminable"][list(problem.eliminable)] = 1
    for source, target, structure in problem.edges:
        arrays["edges"][source, target] = structure
        arrays["successors"][source, target // 64] |= np.uint64(1 << target % 64)
        arrays["predecessors"][target, source // 64] |= np.uint64(1 << source % 64)
    return arrays
