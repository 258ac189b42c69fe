"""The Jacobian of a JAX function, by forward mode, reverse mode, elimination or compressed products.

`chainrule.elimination` estimates what each would take on this machine and takes the best. Estimates can be
wrong; what is really fastest is measured, when asked for, once per program and shapes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import CapabilityError
from chainrule._lru_cache import LRUCache
from chainrule.runtime.jax_recipes._narrowing import Narrowed, narrow
from chainrule.runtime.jax_recipes._programs import Selection, prepare

logger = logging.getLogger(__name__)

Mode = Literal["auto", "forward", "reverse", "elimination", "measure"]

_CANDIDATES: tuple[Mode, ...] = ("forward", "reverse", "elimination")
_measured: LRUCache[Any, Mode] = LRUCache(256)


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
        mode: how to accumulate. `"auto"` takes what `chainrule.elimination.jacobian` estimates to be
            fastest: forward or reverse mode, vertex elimination, or products compressed by colouring.
            `"measure"` compiles forward, reverse and elimination at the first call with these shapes, times
            them and keeps the fastest.

    Returns:
        `{output path: {input path: array of output shape + input shape}}`.

    Raises:
        PathError: a path does not exist or is not an array.
    """
    if mode == "measure":
        mode = _fastest(apply_jit, inputs, jac_inputs, jac_outputs)
    program, arrays = prepare(_jacobian, apply_jit, inputs, jac_inputs, jac_outputs, mode)
    return program.run(arrays)


def _fastest(*call: Any) -> Mode:
    program, arrays = prepare(_jacobian, *call, "auto")
    key = (program.selection, tuple((np.shape(a), a.dtype) for a in arrays))
    known = _measured.get(key)
    if known is not None:
        return known
    seconds: dict[Mode, float] = {}
    for mode in _CANDIDATES:
        program, _ = prepare(_jacobian, *call, mode)
        try:
            seconds[mode] = _time(partial(program.run, arrays))
        except Exception as error:
            # Not every program has every derivative: a while loop has no reverse mode.
            logger.info("Jacobian by %s: not possible (%s)", mode, type(error).__name__)
    if not seconds:
        return "auto"
    fastest = min(seconds, key=lambda mode: seconds[mode])
    _measured.put(key, fastest)
    shown = ", ".join(f"{mode} {took * 1e3:.3g} ms" for mode, took in seconds.items())
    logger.info("Jacobian by %s: %s", fastest, shown)
    return fastest


def _time(call: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of a few runs, the first (which compiles) aside."""
    jax.block_until_ready(call())
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        took.append(time.perf_counter() - start)
    return min(took)


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


def _jacobian(selection: Selection, mode: Mode, arrays: Any) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, (exact, _) = jax.eval_shape(narrowed.function, narrowed.primals)
    if mode == "auto" and _is_complex(narrowed.primals, outputs):
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


def _is_complex(*sides: Mapping[str, Any]) -> bool:
    return any(jnp.iscomplexobj(array) for side in sides for array in side.values())


def _accumulate(narrowed: Narrowed, mode: Mode, outputs: Mapping[str, Any]) -> Any:
    if mode in ("auto", "elimination"):
        from chainrule.elimination import jacobian

        differentiated = jacobian(lambda primals: narrowed.function(primals)[0], method=mode)
        try:
            return differentiated(narrowed.primals)
        except CapabilityError:
            if mode == "elimination":
                raise
            # What elimination cannot take apart, reverse mode may still differentiate as a whole.
            mode = "reverse"
    transform = jax.jacfwd if mode == "forward" else jax.jacrev
    holomorphic = all(
        jnp.iscomplexobj(array) for array in (*narrowed.primals.values(), *outputs.values())
    )
    differentiated = transform(narrowed.function, has_aux=True, holomorphic=holomorphic)
    return differentiated(narrowed.primals)[0]
