"""The Jacobian of a JAX function, in whichever direction is cheaper."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from chainrule.runtime._derivatives._layout import canonical
from chainrule.runtime.jax_recipes._boundary import Selection, split
from chainrule.runtime.jax_recipes._narrowing import Narrowed, narrow

__all__ = ["Mode", "choose_mode", "jax_jacobian"]

Mode = Literal["auto", "forward", "reverse"]


def jax_jacobian(
    apply_jit: Callable[[Any], Any],
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    mode: Mode = "auto",
) -> dict[str, dict[str, jax.Array]]:
    """The Jacobian of a JAX function.

    Args:
        apply_jit: a jitted function `dict -> dict`; `equinox.filter_jit` where leaves are not arrays.
        inputs: the endpoint's inputs, a model or nested mappings.
        jac_inputs: paths of the inputs.
        jac_outputs: paths of the outputs.
        mode: how to accumulate; `"auto"` takes what is cheapest for these shapes.

    Returns:
        `{output path: {input path: array of output shape + input shape}}`.

    Raises:
        PathError: a path does not exist or is not an array.
    """
    frame, arrays = split(inputs)
    selection = Selection(apply_jit, frame, canonical(jac_inputs), canonical(jac_outputs))
    return _jacobian(selection, mode, arrays)


def choose_mode(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Mode:
    """Forward or reverse, from the shapes and dtypes of the selected inputs and outputs.

    Forward costs one evaluation per input element, reverse a little more than one per output element,
    so forward takes ties. Complex numbers leave no choice: JAX pushes forward from real inputs and
    pulls back from real outputs.
    """
    if any(jnp.iscomplexobj(output) for output in outputs.values()):
        return "forward"
    if any(jnp.iscomplexobj(array) for array in inputs.values()):
        return "reverse"
    return "forward" if _size(inputs) <= _size(outputs) else "reverse"


def _size(arrays: Mapping[str, Any]) -> int:
    return sum(math.prod(array.shape) for array in arrays.values())


@partial(jax.jit, static_argnums=(0, 1))
def _jacobian(selection: Selection, mode: Mode, arrays: Any) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, (exact, _) = jax.eval_shape(narrowed.function, narrowed.primals)
    if mode == "auto":
        mode = choose_mode(narrowed.primals, outputs)
    blocks = _accumulate(narrowed, mode, outputs) if narrowed.primals and outputs else {}
    everything = narrowed.primals | narrowed.exact
    return {
        out_path: {
            in_path: blocks[out_path][in_path]
            if out_path in outputs and in_path in narrowed.primals
            else jnp.zeros((outputs | exact)[out_path].shape + everything[in_path].shape)
            for in_path in selection.inputs
        }
        for out_path in selection.outputs
    }


def _accumulate(narrowed: Narrowed, mode: Mode, outputs: Mapping[str, Any]) -> Any:
    transform = jax.jacfwd if mode == "forward" else jax.jacrev
    holomorphic = all(
        jnp.iscomplexobj(array) for array in (*narrowed.primals.values(), *outputs.values())
    )
    differentiated = transform(narrowed.function, has_aux=True, holomorphic=holomorphic)
    return differentiated(narrowed.primals)[0]
