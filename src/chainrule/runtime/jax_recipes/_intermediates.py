"""What a JAX function sows on its way, for callers who ask a component for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from chainrule._errors import InputError
from chainrule.runtime.jax_recipes._abstract import abstract_arrays, describe_arrays
from chainrule.runtime.jax_recipes._boundary import seal, split, unseal
from chainrule.runtime.jax_recipes._narrowing import fit, narrow
from chainrule.runtime.jax_recipes._programs import Selection, prepare


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
        frame, shapes = split(abstract_arrays(inputs))
        found = jax.eval_shape(partial(_values, Selection(apply_jit, frame), tag), shapes)
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
        selection.apply_jit(selection.frame.join(arrays))

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
