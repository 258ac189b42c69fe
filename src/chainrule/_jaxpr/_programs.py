"""Programs as data: their sub-programs, every equation, and where an equation comes from.

One table (`_READERS`) says, per higher-order primitive, where its sub-programs are in the parameters, how
often they run and how their inputs and outputs map to the operands and results of the equation. A primitive
that is not in the table but carries a program is still seen, with the role `"unknown"`, so that no caller can
overlook one. `walk` and `equations_inside` visit all equations at any depth; `locate` and `component_of` say
which line of the user and which component made one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from chainrule._jaxpr._names import constants_first, name_stack_of, user_frames_of

Role = Literal[
    "call",  # runs once, exactly the equation: jit, remat, custom_jvp, custom_vjp, shard_map, …
    "body",  # runs once per iteration of a loop
    "condition",  # runs once per iteration of a loop and once more; its result only steers
    "branch",  # one of several, of which one runs
    "operator",  # a linear map or solver of custom_linear_solve; runs as often as the solver likes
    "combiner",  # a scalar function of reduce, scatter, …; runs per element
    "unknown",  # a program in a primitive that the table does not know
]


@dataclass(frozen=True)
class SubProgram:
    """A program inside an equation.

    Attributes:
        role: how it runs.
        parameter: name of the equation's parameter that holds it.
        index: position inside that parameter when it holds several, else `None`.
        program: the program itself, closed. The constants of an open program are its first inputs.
        operands: per input of the program, the operand of the equation that feeds it (in a loop: at
            the first iteration; for scanned inputs: of which it is a slice); `None` when no operand does.
        results: per output, the result of the equation it becomes (in a loop: at the last iteration, or
            stacked); `None` when it becomes none.
    """

    role: Role
    parameter: str
    index: int | None
    program: ClosedJaxpr
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


def subprograms(eqn: JaxprEqn) -> tuple[SubProgram, ...]:
    """The sub-programs of an equation; empty for a first-order primitive."""
    reader = _READERS.get(eqn.primitive.name)
    return tuple(reader(eqn) if reader else _read_unknown(eqn))


def _closed(program: Any) -> ClosedJaxpr:
    # A primitive may keep an open program and pass the values of its constants as operands. Which
    # operands these are only the primitive knows (lineax: leaves of its operator), so they count as
    # inputs, in front of the others. (From JAX 0.12 on there is one class, and every program is closed.)
    return program if isinstance(program, ClosedJaxpr) else constants_first(program)


def _sub(
    eqn: JaxprEqn, role: Role, parameter: str, operands: Any, results: Any, index: int | None = None
) -> SubProgram:
    held = eqn.params[parameter]
    program = _closed(held if index is None else held[index])
    return SubProgram(role, parameter, index, program, tuple(operands), tuple(results))


def _call(parameter: str) -> Callable[[JaxprEqn], Iterator[SubProgram]]:
    def read(eqn: JaxprEqn) -> Iterator[SubProgram]:
        yield _sub(eqn, "call", parameter, range(len(eqn.invars)), range(len(eqn.outvars)))

    return read


def _scan(eqn: JaxprEqn) -> Iterator[SubProgram]:
    yield _sub(eqn, "body", "jaxpr", range(len(eqn.invars)), range(len(eqn.outvars)))


def _while(eqn: JaxprEqn) -> Iterator[SubProgram]:
    # Operands are laid out as [condition's constants, body's constants, carry].
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carry = range(n_cond + n_body, len(eqn.invars))
    yield _sub(eqn, "condition", "cond_jaxpr", (*range(n_cond), *carry), (None,))
    constants = range(n_cond, n_cond + n_body)
    yield _sub(eqn, "body", "body_jaxpr", (*constants, *carry), range(len(eqn.outvars)))


def _cond(eqn: JaxprEqn) -> Iterator[SubProgram]:
    # Operand 0 selects the branch.
    for index in range(len(eqn.params["branches"])):
        operands, results = range(1, len(eqn.invars)), range(len(eqn.outvars))
        yield _sub(eqn, "branch", "branches", operands, results, index)


def _linear_solve(eqn: JaxprEqn) -> Iterator[SubProgram]:
    # Operands are laid out as [constants of each operator in turn, right-hand side].
    start = 0
    lengths = eqn.params["const_lengths"]
    for index, (length, program) in enumerate(zip(lengths, eqn.params["jaxprs"], strict=True)):
        if program is not None:
            n_vectors = len(_closed(program).jaxpr.invars) - length
            operands = (*range(start, start + length), *(None,) * n_vectors)
            results = (None,) * len(_closed(program).jaxpr.outvars)
            yield _sub(eqn, "operator", "jaxprs", operands, results, index)
        start += length


def _read_unknown(eqn: JaxprEqn) -> Iterator[SubProgram]:
    role: Role = "combiner" if eqn.primitive.name in _COMBINING else "unknown"
    for parameter, value in eqn.params.items():
        several = isinstance(value, (tuple, list))
        for position, item in enumerate(value if several else (value,)):
            if isinstance(item, (Jaxpr, ClosedJaxpr)):
                program = _closed(item)
                yield SubProgram(
                    role, parameter, position if several else None, program,
                    (None,) * len(program.jaxpr.invars), (None,) * len(program.jaxpr.outvars),
                )  # fmt: skip


_COMBINING = frozenset(
    {"reduce", "reduce_window", "select_and_scatter", "scatter", "scatter-add", "scatter-mul",
     "scatter-min", "scatter-max", "scatter_add", "scatter_mul", "scatter_min", "scatter_max",
     "scatter-sub", "scatter_sub", "reduce_and", "reduce_or", "reduce_xor"}
)  # fmt: skip

# Several names per primitive: JAX has renamed some of them over the versions we support.
_READERS: dict[str, Callable[[JaxprEqn], Iterator[SubProgram]]] = {
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "core_call": _call("call_jaxpr"),
    "call": _call("call_jaxpr"),
    "eval_jaxpr": _call("call_jaxpr"),
    "remat": _call("jaxpr"),
    "remat2": _call("jaxpr"),
    "checkpoint": _call("jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "custom_vjp_call_jaxpr": _call("fun_jaxpr"),
    "shard_map": _call("jaxpr"),
    "linear_call": _call("callee"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
}


def walk(program: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Every equation in program order; an equation comes before those of its sub-programs."""
    for eqn in program.jaxpr.eqns:
        yield eqn
        yield from equations_inside(eqn)


def equations_inside(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """Every equation of the sub-programs of an equation, at any depth."""
    for sub in subprograms(eqn):
        yield from walk(sub.program)


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's program. `str()` gives `file:line (function)`."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def locate(eqn: JaxprEqn) -> SourceLocation | None:
    """The user's line that made an equation; `None` when JAX kept no traceback."""
    return next(iter(call_sites(eqn, 1)), None)


def call_sites(eqn: JaxprEqn, count: int) -> tuple[SourceLocation, ...]:
    """The user's line that made an equation and the calls that led there, innermost first."""
    return tuple(
        SourceLocation(frame.file_name, frame.start_line, frame.function_name)
        for frame in itertools.islice(user_frames_of(eqn), count)
    )


def plain_text(jaxpr: Jaxpr) -> str:
    """A program as JAX prints it, never in colours: `str` writes those on a terminal and in a notebook."""
    return jaxpr.pretty_print(use_color=False)


_PREFIX = "component:"
_FOUND = re.compile(rf"{_PREFIX}([^()/]*)")


def component_scope(name: str) -> AbstractContextManager[None]:
    """Equations traced inside belong to the component of this name."""
    return jax.named_scope(_PREFIX + re.sub(r"[()/]", "_", name))


def component_of(eqn: JaxprEqn) -> str | None:
    """The component that an equation belongs to, also after transformations; the outermost of several."""
    found = _FOUND.search(name_stack_of(eqn))
    return None if found is None else found[1]
