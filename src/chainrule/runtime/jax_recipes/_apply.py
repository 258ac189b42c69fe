"""What a function gives without a derivative: its outputs, their shapes, what it sows on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import InputError
from chainrule._partition import seal, unseal
from chainrule.runtime._derivatives._layout import is_abstract, shape_and_dtype
from chainrule.runtime.jax_recipes._programs import Selection, fit, is_array, narrow, prepare, split
from chainrule.runtime.jax_recipes._residuals import apply_and_keep


def jax_apply(apply_jit: Callable[[Any], Any], inputs: Any) -> Any:
    """Call a jitted function `dict -> dict` with an endpoint's inputs.

    With `set_jax_vjp_cache_size` on, the backward function is kept for a `jax_vjp` of the same inputs.

    Args:
        apply_jit: the function; `equinox.filter_jit` where some leaves are not arrays.
        inputs: a model or nested mappings.

    Returns:
        What `apply_jit` returns.
    """
    template, arrays = split(inputs)
    kept = apply_and_keep(Selection(apply_jit, template), arrays)
    return apply_jit(template.join(arrays)) if kept is None else unseal(kept)


def jax_abstract_eval(apply_jit: Callable[[Any], Any], abstract_inputs: Any) -> Any:
    """Evaluate a jitted function on shapes.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        abstract_inputs: inputs whose arrays are `{"shape": ..., "dtype": ...}`, as a model or nested
            mappings; other leaves keep their values and are static.

    Returns:
        The outputs, arrays again as `{"shape": ..., "dtype": ...}`.

    Example:
        >>> jax_abstract_eval(lambda d: {"y": d["x"].sum()}, {"x": {"shape": (3,), "dtype": "float32"}})
        {'y': {'shape': (), 'dtype': 'float32'}}
    """
    template, shapes = split(abstract_arrays(abstract_inputs))
    outputs = jax.eval_shape(lambda arrays: seal(apply_jit(template.join(arrays))), shapes)
    return describe_arrays(unseal(outputs))


def abstract_arrays(abstract_inputs: Any) -> Any:
    """Inputs with JAX's `ShapeDtypeStruct` in place of every `{"shape": ..., "dtype": ...}`."""
    dumped = hasattr(abstract_inputs, "model_dump")
    tree = abstract_inputs.model_dump() if dumped else abstract_inputs
    return jax.tree_util.tree_map(_to_shape, tree, is_leaf=is_abstract)


def describe_arrays(tree: Any) -> Any:
    """A tree with `{"shape": ..., "dtype": ...}` in place of every array."""
    return jax.tree_util.tree_map(_from_shape, tree)


def _to_shape(node: Any) -> Any:
    if not is_abstract(node):
        return node
    shape, dtype = shape_and_dtype(node)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _from_shape(leaf: Any) -> Any:
    return {"shape": leaf.shape, "dtype": leaf.dtype.name} if is_array(leaf) else leaf


def jax_tagged_intermediates(
    apply_jit: Callable[[Any], Any],
    inputs: Any,
    tag: str = "intermediates",
    tangent_vector: Mapping[str, Any] | None = None,
    cotangent_vector: Mapping[str, Any] | None = None,
    *,
    abstract: bool = False,
) -> dict[str, dict[str, Any]]:
    """The values that a function tags with `sow`, and their tangents or cotangents.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        inputs: the endpoint's inputs; with `abstract` as in `jax_abstract_eval`.
        tag: the sows to look for.
        tangent_vector: `{input path: array}`: push it forward and give tangents too.
        cotangent_vector: `{output path: array}`: pull it back and give cotangents too.
        abstract: give `{"shape": …, "dtype": …}` in place of every array, and compute nothing.

    Returns:
        `{name: {"primal": …, "tangent" or "cotangent": …}}`, as `save_intermediates` gives it.

    Raises:
        InputError: both a tangent and a cotangent.

    Example:
        >>> import jax
        >>> from chainrule.harvest import sow
        >>> square = jax.jit(lambda d: {"y": sow(d["x"] ** 2, "square") * 3})
        >>> found = jax_tagged_intermediates(square, {"x": jax.numpy.float32(2)}, cotangent_vector={"y": 1})
        >>> {mode: float(value) for mode, value in found["square"].items()}
        {'cotangent': 3.0, 'primal': 4.0}
    """
    if tangent_vector is not None and cotangent_vector is not None:
        raise InputError(
            "Expected a tangent_vector, a cotangent_vector or neither; found both.",
            code="bad_argument",
            path="cotangent_vector",
        )
    if abstract:
        template, shapes = split(abstract_arrays(inputs))
        found = jax.eval_shape(partial(_values, Selection(apply_jit, template), tag), shapes)
        return describe_arrays(unseal(found))
    tangents, cotangents = dict(tangent_vector or {}), dict(cotangent_vector or {})
    derivative = _tangents if tangents else _cotangents if cotangents else _values
    program, arrays = prepare(derivative, apply_jit, inputs, tangents, cotangents, tag)
    return unseal(program.run(arrays, *filter(None, (tangents, cotangents))))


def _captured(function: Callable[..., Any], tag: str, *args: Any) -> Any:
    from chainrule.harvest import save_intermediates

    return seal(save_intermediates(function, tag=tag)(*args)[1])


def _values(selection: Selection, tag: str, arrays: Any) -> Any:
    def run(arrays: Any) -> None:
        selection.apply_jit(selection.template.join(arrays))

    return _captured(run, tag, arrays)


def _tangents(selection: Selection, tag: str, arrays: Any, tangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)

    def push(primals: Any, tangents: Any) -> None:
        jax.jvp(narrowed.function, (primals,), (tangents,), has_aux=True)

    return _captured(push, tag, narrowed.primals, fit(tangents, narrowed.primals))


def _cotangents(selection: Selection, tag: str, arrays: Any, cotangents: dict[str, Any]) -> Any:
    def outputs_of(arrays: Any) -> Any:
        narrowed = narrow(selection, arrays)
        return narrowed.function(narrowed.primals)

    def pull(arrays: Any, cotangents: dict[str, Any]) -> None:
        outputs, pull_back, _ = jax.vjp(outputs_of, arrays, has_aux=True)
        pull_back(fit(cotangents, outputs))

    return _captured(pull, tag, arrays, cotangents)
