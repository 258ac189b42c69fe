"""Compiled derivatives, one for each combination of function, frame and selected paths.

A call should cost what calling a jitted function costs. So the way to a compiled program is one lookup with
a key of plain tuples; everything that can be said about a selection is worked out when it is first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from types import MethodType
from typing import Any

import jax

from chainrule.runtime._derivatives._layout import canonical
from chainrule.runtime.jax_recipes._boundary import Frame, split

__all__ = ["Program", "Selection", "prepare"]

MAX_PROGRAMS = 1024


@dataclass(frozen=True)
class Selection:
    """What a derivative is taken of: everything that decides what is compiled, array shapes aside."""

    # Hashing an Equinox wrapper walks its leaves at every call; comparing it with itself is free.
    apply_jit: Callable[[Any], Any] = field(hash=False)
    frame: Frame
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled derivative of a selection: `run(arrays, ...)`."""

    selection: Selection
    run: Callable[..., Any]


_programs: dict[Any, Program] = {}
_writing = Lock()


def prepare(
    derivative: Callable[..., Any],
    apply_jit: Callable[[Any], Any],
    inputs: Any,
    input_paths: Collection[str],
    output_paths: Collection[str],
    *options: Any,
) -> tuple[Program, tuple[Any, ...]]:
    """The compiled program for a call, and the arrays to run it with.

    Args:
        derivative: `derivative(selection, *options, arrays, ...)`, traceable in `arrays` and what follows.
        apply_jit: the author's function.
        inputs: the endpoint's inputs.
        input_paths: selected inputs, in any order.
        output_paths: selected outputs, in any order.
        options: hashable choices that are compiled in.
    """
    frame, arrays = split(inputs)
    # A method is a new object at every access; anything else is itself. A kept program holds on to the
    # function, so its id is not given to another one.
    identity = apply_jit if type(apply_jit) is MethodType else id(apply_jit)
    key = (derivative, identity, frame, _key(input_paths), _key(output_paths), options)
    program = _programs.get(key)
    if program is None:
        selection = Selection(apply_jit, frame, canonical(input_paths), canonical(output_paths))
        program = Program(selection, jax.jit(partial(derivative, selection, *options)))
        _keep(key, program)
    return program, arrays


def _key(paths: Collection[str]) -> Any:
    return paths if isinstance(paths, str) else frozenset(paths)


def _keep(key: Any, program: Program) -> None:
    with _writing:
        while len(_programs) >= MAX_PROGRAMS:
            del _programs[next(iter(_programs))]
        _programs[key] = program
