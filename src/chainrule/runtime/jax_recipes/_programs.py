"""What the recipes compile: a derivative of a function, for selected paths and one template of the inputs.

    split       an endpoint's inputs as a template and arrays
    Selection   what a derivative is taken of: everything that decides what is compiled, array shapes aside
    prepare     the compiled program of a call
    narrow      a function of a whole tree as a function of just the selected leaves

Selected leaves that are integer or boolean have derivative zero; they are kept out of JAX's differentiation
(which would want `float0`) and answered with zeros of their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._lru_cache import LRUCache
from chainrule._partition import Template, is_array_or_number, partition, seal
from chainrule._partition import is_array as is_concrete
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime._derivatives._layout import (
    canonical,
    check_real,
    check_shape,
    not_differentiable,
)
from chainrule.runtime._schema._plain import dumped

MAX_PROGRAMS = 1024


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a numeric array, or the shape of one."""
    return is_concrete(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def split(inputs: Any) -> tuple[Template, tuple[Any, ...]]:
    """Inputs (a model or nested data) as a template and its arrays."""
    return partition(dumped(inputs), is_array)


@dataclass(frozen=True)
class Selection:
    """What a derivative is taken of: everything that decides what is compiled, array shapes aside."""

    # Hashing an Equinox wrapper walks its leaves at every call; comparing it with itself is free.
    apply_jit: Callable[[Any], Any] = field(hash=False)
    template: Template
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled derivative of a selection: `run(arrays, ...)`."""

    selection: Selection
    run: Callable[..., Any]


_programs: LRUCache[Any, Program] = LRUCache(MAX_PROGRAMS)


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
    template, arrays = split(inputs)
    # By identity where possible, see `Selection`: a kept program holds on to the function, so its id is not
    # given to another one. A method is a new object at every access.
    identity = apply_jit if type(apply_jit) is MethodType else id(apply_jit)
    key = (derivative, identity, template, _key(input_paths), _key(output_paths), options)
    program = _programs.get(key)
    if program is None:
        selection = Selection(apply_jit, template, canonical(input_paths), canonical(output_paths))
        program = Program(selection, jax.jit(partial(derivative, selection, *options)))
        _programs.put(key, program)
    return program, arrays


def _key(paths: Collection[str]) -> frozenset[str] | str:
    return paths if isinstance(paths, str) else frozenset(paths)


@dataclass(frozen=True)
class Narrowed:
    """A selection, ready for JAX's transformations.

    Attributes:
        function: `{input path: array}` → `({output path: array}, (exact outputs, all outputs))`; the
            second part is for `has_aux=True`.
        primals: the selected inputs that can vary.
        exact: the selected inputs that are integer or boolean.
    """

    function: Callable[[dict[str, Any]], tuple[dict[str, Any], tuple[dict[str, Any], Any]]]
    primals: dict[str, jax.Array]
    exact: dict[str, jax.Array]


def is_inexact(array: Any) -> bool:
    """Whether an array is real or complex floating point."""
    return jnp.issubdtype(array.dtype, jnp.inexact)


def narrow(selection: Selection, arrays: tuple[Any, ...]) -> Narrowed:
    """Fix all leaves but the selected ones. Meant to run under `jit`, once per compilation."""
    tree = selection.template.join(arrays)
    primals, exact = _by_exactness(select(tree, selection.inputs))

    def function(values: dict[str, Any]) -> tuple[dict[str, Any], tuple[dict[str, Any], Any]]:
        outputs = selection.apply_jit(set_at_path(tree, values))
        varying, fixed = _by_exactness(select(outputs, selection.outputs))
        return varying, (fixed, seal(outputs))

    return Narrowed(function, primals, exact)


def select(tree: Any, paths: tuple[str, ...]) -> dict[str, jax.Array]:
    """The arrays at some paths; Python numbers become arrays.

    Raises:
        PathError: something that is not numeric.
    """
    return {path: _numeric(get_at_path(tree, path), path) for path in paths}


def _numeric(leaf: Any, path: str) -> jax.Array:
    if not is_array_or_number(leaf):
        raise not_differentiable(path, type(leaf).__name__)
    return jnp.asarray(leaf)


def _by_exactness(
    arrays: Mapping[str, jax.Array],
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    inexact = {path: array for path, array in arrays.items() if is_inexact(array)}
    return inexact, {path: array for path, array in arrays.items() if path not in inexact}


def fit(
    vector: Mapping[str, Any], like: Mapping[str, Any], *, batched: bool = False
) -> dict[str, jax.Array]:
    """Tangents or cotangents in the shapes and dtypes of what they belong to.

    Raises:
        InputError: another shape (`vector_shape_mismatch`).
    """
    return {path: _fit_one(vector[path], array, path, batched) for path, array in like.items()}


def _fit_one(value: Any, like: Any, path: str, batched: bool) -> jax.Array:
    value = jnp.asarray(value)
    check_real(jnp.iscomplexobj(value), jnp.iscomplexobj(like), path)
    check_shape(value.shape, like.shape, path, batched=batched)
    return value.astype(like.dtype)


def zeros_like_all(arrays: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Zeros for every array."""
    return {path: jnp.zeros(array.shape, array.dtype) for path, array in arrays.items()}
