"""Hessian-vector products by differencing the vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from chainrule.runtime._derivatives._differences import finite_difference_jvp
from chainrule.runtime._derivatives._layout import canonical, check_keys
from chainrule.runtime._derivatives._stencils import Algorithm, Eps
from chainrule.runtime._own_arrays import own_copy


def hvp_from_vjp(
    vjp_fn: Callable[..., Mapping[str, Any]],
    inputs: Any,
    hvp_inputs: Collection[str],
    hvp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    tangent_vector: Mapping[str, Any],
    *,
    algorithm: Algorithm = "central",
    eps: Eps = "auto",
) -> dict[str, np.ndarray]:
    """The Hessian of ⟨cotangent, outputs⟩ times the tangent, d/dt VJP(x + t·tangent): two VJP calls.

    Args:
        vjp_fn: the author's `vector_jacobian_product`.
        inputs: a model or nested mappings.
        hvp_inputs: paths of the inputs, in which the Hessian is taken.
        hvp_outputs: paths of the outputs that are weighed.
        cotangent_vector: `{output path: array}`, the weights.
        tangent_vector: `{input path: array}`, the direction.
        algorithm: as in `finite_difference_jvp`.
        eps: as in `finite_difference_jvp`.

    Returns:
        `{input path: array}` in float64.

    Example:
        >>> def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):  # of y = x³
        ...     return {"x": 3 * inputs["x"] ** 2 * cotangent_vector["y"]}
        >>> hvp_from_vjp(vjp, {"x": 2.0}, {"x"}, {"y"}, {"y": 1.0}, {"x": 1.0})["x"].round(6)
        np.float64(12.0)
    """
    paths = canonical(hvp_inputs)
    check_keys(cotangent_vector, canonical(hvp_outputs), "cotangent_vector")
    # Results are keyed by input paths, which need not be paths of the result: give them plain names.
    names = {f"gradient{i}": path for i, path in enumerate(paths)}

    def gradient(at: Any) -> dict[str, Any]:
        found = vjp_fn(at, set(paths), set(hvp_outputs), own_copy(cotangent_vector))
        return {name: found[path] for name, path in names.items()}

    product = finite_difference_jvp(
        gradient, inputs, paths, tuple(names), tangent_vector, algorithm=algorithm, eps=eps
    )
    return {path: product[name] for name, path in names.items()}
