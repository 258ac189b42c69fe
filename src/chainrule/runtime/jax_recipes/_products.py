"""Jacobian-vector, vector-Jacobian and Hessian-vector products of a JAX function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from chainrule.runtime._derivatives._kinds import JVP, VJP
from chainrule.runtime._derivatives._layout import check_keys
from chainrule.runtime.jax_recipes._boundary import unseal
from chainrule.runtime.jax_recipes._narrowing import fit, narrow, zeros_like_all
from chainrule.runtime.jax_recipes._programs import Selection, prepare
from chainrule.runtime.jax_recipes._residuals import reuse_residuals

__all__ = ["jax_hessian_vector_product", "jax_jvp", "jax_value_and_vjp", "jax_vjp"]

Apply = Callable[[Any], Any]


def jax_jvp(
    apply_jit: Apply,
    inputs: Any,
    jvp_inputs: Collection[str],
    jvp_outputs: Collection[str],
    tangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, jax.Array]:
    """The Jacobian-vector product of a JAX function.

    Args:
        apply_jit: a jitted function `dict -> dict`; `equinox.filter_jit` where leaves are not arrays.
        inputs: the endpoint's inputs, a model or nested mappings.
        jvp_inputs: paths of the inputs.
        jvp_outputs: paths of the outputs.
        tangent_vector: `{input path: array}` in the shape of the input, cast to its dtype.
        batched: whether tangents carry a leading batch axis; all are pushed forward in one call, and the
            result has that axis too.

    Returns:
        `{output path: array}`.

    Raises:
        PathError: a path does not exist or is not an array.
        InputError: the tangent's keys or shapes do not fit.
    """
    program, arrays = prepare(_jvp, apply_jit, inputs, jvp_inputs, jvp_outputs, batched)
    check_keys(tangent_vector, program.selection.inputs, str(JVP.vector))
    return program.run(arrays, dict(tangent_vector))


def jax_vjp(
    apply_jit: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, jax.Array]:
    """The vector-Jacobian product of a JAX function.

    Args:
        cotangent_vector: `{output path: array}` in the shape of the output, cast to its dtype.

    The other arguments are those of `jax_jvp`. With `set_jax_vjp_cache_size` on, a call after a
    `jax_apply` of the same inputs starts from what that call kept and skips the forward pass.

    Returns:
        `{input path: array}`.
    """
    program, arrays = prepare(_vjp, apply_jit, inputs, vjp_inputs, vjp_outputs, batched)
    check_keys(cotangent_vector, program.selection.outputs, str(VJP.vector))
    cotangents = dict(cotangent_vector)
    reused = reuse_residuals(program.selection, arrays, cotangents, batched)
    return program.run(arrays, cotangents) if reused is None else reused


def jax_value_and_vjp(
    apply_jit: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
) -> tuple[Any, dict[str, jax.Array]]:
    """All outputs and the vector-Jacobian product, from one forward and one backward pass.

    Returns:
        The outputs, as `jax_apply` returns them, and `{input path: array}`.
    """
    program, arrays = prepare(_value_and_vjp, apply_jit, inputs, vjp_inputs, vjp_outputs)
    check_keys(cotangent_vector, program.selection.outputs, str(VJP.vector))
    outputs, gradient = program.run(arrays, dict(cotangent_vector))
    return unseal(outputs), gradient


def jax_hessian_vector_product(
    apply_jit: Apply,
    inputs: Any,
    hvp_inputs: Collection[str],
    hvp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    tangent_vector: Mapping[str, Any],
) -> dict[str, jax.Array]:
    """The Hessian of ⟨cotangent, outputs⟩ times the tangent: d/dt of the VJP at x + t·tangent.

    Args:
        apply_jit: as in `jax_jvp`.
        inputs: as in `jax_jvp`.
        hvp_inputs: paths of the inputs, in which the Hessian is taken.
        hvp_outputs: paths of the outputs that are weighed.
        cotangent_vector: `{output path: array}`, the weights.
        tangent_vector: `{input path: array}`, the direction.

    Returns:
        `{input path: array}`.
    """
    program, arrays = prepare(_hvp, apply_jit, inputs, hvp_inputs, hvp_outputs)
    check_keys(cotangent_vector, program.selection.outputs, "cotangent_vector")
    check_keys(tangent_vector, program.selection.inputs, "tangent_vector")
    return program.run(arrays, dict(cotangent_vector), dict(tangent_vector))


def _jvp(selection: Selection, batched: bool, arrays: Any, tangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    tangents = fit(tangents, narrowed.primals, batched=batched)

    def push(tangent: dict[str, Any]) -> Any:
        _, pushed, (exact, _) = jax.jvp(
            narrowed.function, (narrowed.primals,), (tangent,), has_aux=True
        )
        return pushed | zeros_like_all(exact)

    return jax.vmap(push)(tangents) if batched else push(tangents)


def _vjp(selection: Selection, batched: bool, arrays: Any, cotangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, pull, _ = jax.vjp(narrowed.function, narrowed.primals, has_aux=True)
    cotangents = fit(cotangents, outputs, batched=batched)

    def pull_back(cotangent: dict[str, Any]) -> Any:
        return pull(cotangent)[0] | zeros_like_all(narrowed.exact)

    return jax.vmap(pull_back)(cotangents) if batched else pull_back(cotangents)


def _value_and_vjp(selection: Selection, arrays: Any, cotangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, pull, (_, everything) = jax.vjp(narrowed.function, narrowed.primals, has_aux=True)
    (gradient,) = pull(fit(cotangents, outputs))
    return everything, gradient | zeros_like_all(narrowed.exact)


def _hvp(
    selection: Selection, arrays: Any, cotangents: dict[str, Any], tangents: dict[str, Any]
) -> Any:
    narrowed = narrow(selection, arrays)

    def gradient(primals: dict[str, Any]) -> Any:
        outputs, pull, _ = jax.vjp(narrowed.function, primals, has_aux=True)
        return pull(fit(cotangents, outputs))[0]

    directions = fit(tangents, narrowed.primals)
    _, product = jax.jvp(gradient, (narrowed.primals,), (directions,))
    return product | zeros_like_all(narrowed.exact)
