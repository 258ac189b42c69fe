"""Compiled derivatives, one for each combination of function, frame and selected paths.

A call should cost what calling a jitted function costs: after a large program every line of Python has to be
fetched into the caches again. So everything that can be said about a selection is worked out when it is first
seen, and a call like an earlier one finds its program by a lookup and two comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from types import MethodType
from typing import Any, NamedTuple

import jax

from chainrule.runtime._derivatives._layout import canonical
from chainrule.runtime.jax_recipes._boundary import Frame, arrays_in, flat_frame, split

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


class _Usual(NamedTuple):
    """How one function is usually called with one type of inputs: arrays side by side, the same paths."""

    names: list[str]
    input_paths: frozenset[str] | str
    output_paths: frozenset[str] | str
    program: Program


_programs: dict[Any, Program] = {}
_usual: dict[Any, _Usual] = {}
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
    # A kept program holds on to the function, so its id is not given to another one.
    kind = (derivative, id(apply_jit), type(inputs), options)
    usual = _usual.get(kind)
    if (
        usual is not None
        and usual.input_paths == input_paths
        and usual.output_paths == output_paths
        and (found := arrays_in(inputs, usual.names)) is not None
    ):
        return usual.program, found
    frame, arrays = split(inputs)
    # A method is a new object at every access; anything else is itself.
    identity = apply_jit if type(apply_jit) is MethodType else id(apply_jit)
    paths = _key(input_paths), _key(output_paths)
    key = (derivative, identity, frame, *paths, options)
    program = _programs.get(key)
    if program is None:
        selection = Selection(apply_jit, frame, canonical(input_paths), canonical(output_paths))
        program = Program(selection, jax.jit(partial(derivative, selection, *options)))
        _keep(_programs, key, program)
    names = _names_in(inputs, frame)
    if names is not None and identity is not apply_jit:
        _keep(_usual, kind, _Usual(names, *paths, program))
    return program, arrays


def _names_in(inputs: Any, frame: Frame) -> list[str] | None:
    """The names of arrays side by side, in the order of the frame; other keys than texts have twins."""
    flat = flat_frame(inputs)
    if flat is None or flat[0] is not frame or not all(type(name) is str for name in flat[1]):
        return None
    return flat[1]


def _key(paths: Collection[str]) -> frozenset[str] | str:
    return paths if isinstance(paths, str) else frozenset(paths)


def _keep(memory: dict[Any, Any], key: Any, value: Any) -> None:
    with _writing:
        while len(memory) >= MAX_PROGRAMS:
            del memory[next(iter(memory))]
        memory[key] = value
