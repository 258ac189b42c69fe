"""Running a way of computing a Jacobian: JAX's own sweeps, compressed ones, an elimination."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from chainrule._errors import CapabilityError, ChainruleError, InputError
from chainrule._jaxpr import close_program, evaluate, trace_avals
from chainrule.elimination._compressed import compressed_jacobian
from chainrule.elimination._eliminate import Step
from chainrule.elimination._linearize import Traced, linearize_traced
from chainrule.elimination._methods import Plan, describe_error
from chainrule.elimination._native import NativeUnavailableError, native_function
from chainrule.elimination._rules import as_real, complex_dtype

Method = Literal["auto", "elimination", "jacrev", "jacfwd", "compressed"]
Backend = Literal["auto", "xla", "native"]
Outcome = tuple[Any, Any, Any]
"""The value (`None` if not wanted), the auxiliary result, the dense Jacobian."""

_log = logging.getLogger(__name__)


def check_method(method: str) -> None:
    """Refuse a method that does not exist."""
    known = ("auto", "elimination", *_SWEEPS, "compressed")
    if method not in known:
        names = ", ".join(map(repr, known))
        raise InputError(
            f"There is no method {method!r}; it is one of {names}.", code="unknown_method"
        )


def check_backend(backend: str) -> None:
    """Refuse a backend that does not exist."""
    if backend not in ("auto", "xla", "native"):
        raise InputError(
            f"There is no backend {backend!r}; it is 'auto', 'xla' or 'native'.",
            code="unknown_backend",
        )


def run_method(
    traced: Traced, order: tuple[Step, ...], method: str, backend: str, *, wants_value: bool
) -> Outcome:
    """The value, the auxiliary result and the dense Jacobian, in one way."""
    if method in _SWEEPS:
        return _sweep(method, traced)
    if method == "compressed":
        return _arranged(traced, *compressed_jacobian(traced.graph, traced.operands))
    if backend == "native":
        try:
            return run_native(traced, order, wants_value)
        except NativeUnavailableError as error:
            _log.info("No native kernel for this Jacobian, XLA computes it: %s", error)
    found = linearize_traced(traced, order)
    return found.value, found.aux, found.jacobian


def run_plan(traced: Traced, plan: Plan, *, wants_value: bool) -> Outcome:
    """The first candidate of a plan; if it fails for a reason of ours, JAX's sweeps."""
    best, *others = plan.candidates
    ways = [best, *(candidate for candidate in others if candidate.method in _SWEEPS)]
    while True:
        way = ways.pop(0)
        try:
            return run_method(traced, plan.order, way.method, way.backend, wants_value=wants_value)
        except Exception as error:
            if not ways or not is_about_the_way(error):
                raise
            _log.warning(
                "The Jacobian by %s failed, JAX computes it by %s: %s",
                way.name, ways[0].name, describe_error(error), exc_info=True,
            )  # fmt: skip


def is_about_the_way(error: Exception) -> bool:
    """Whether another way of computing a Jacobian may succeed where this error occurred.

    Not if the program ran and failed: a callback that raised would run, and raise, again.
    """
    if isinstance(error, ChainruleError):
        return isinstance(error, CapabilityError)
    return not isinstance(error, jax.errors.JaxRuntimeError)


_SWEEPS: dict[str, Callable[..., Any]] = {"jacrev": jax.jacrev, "jacfwd": jax.jacfwd}


def _sweep(method: str, traced: Traced) -> Outcome:
    """JAX's own Jacobian of the traced program, in our arrangement."""
    n_targets = traced.out_tree.num_leaves

    def targets_and_all(*operands: Any) -> tuple[list[Any], list[Any]]:
        outputs = evaluate(traced.graph.program, operands)
        return [as_real(_as_inexact(value)) for value in outputs[:n_targets]], outputs

    positions = tuple(range(len(traced.operands)))
    rows, outputs = _SWEEPS[method](targets_and_all, positions, has_aux=True)(*traced.operands)
    return _arranged(traced, outputs, rows)


def sweep_untraced(
    fun: Callable[..., Any], argnums: Any, args: Any, kwargs: dict[str, Any], reason: Exception,
    *, has_aux: bool,
) -> Outcome:  # fmt: skip
    """JAX's own Jacobian of a function that cannot become a program, or not one that can be differentiated.

    Outside of `jit`, JAX differentiates functions that look at their arguments (`if x > 0`), that make shapes
    of values, and whose derivative rules close over a value that is being traced.

    Raises:
        Exception: JAX cannot either; `reason` says why.
    """

    def both(*arguments: Any) -> tuple[Any, tuple[Any, Any]]:
        result = fun(*arguments, **kwargs)
        value, aux = result if has_aux else (result, None)
        return value, (value, aux)

    for sweep in _SWEEPS.values():
        try:
            rows, (value, aux) = sweep(both, argnums, has_aux=True)(*args)
        except Exception as error:
            _log.debug("JAX cannot sweep through the function itself: %s", describe_error(error))
        else:
            _log.info("Only JAX itself can differentiate this function: %s", describe_error(reason))
            return value, aux, _in_input_dtypes(rows, value, argnums, args)
    raise reason


def _in_input_dtypes(rows: Any, value: Any, argnums: Any, args: Any) -> Any:
    """Blocks in the dtypes of the inputs; that of a complex output stays complex."""
    chosen = args[argnums] if isinstance(argnums, int) else tuple(args[k] for k in argnums)

    def cast(output: Any, row: Any) -> Any:
        if jnp.iscomplexobj(output):
            return row
        return jax.tree.map(lambda block, x: block.astype(jnp.result_type(x)), row, chosen)

    return jax.tree.map(cast, value, rows)


def _as_inexact(value: Any) -> Any:
    """Integer results have the derivative zero, which JAX takes only of floats."""
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(float)


def _arranged(traced: Traced, outputs: Any, rows: Any) -> Outcome:
    """Flat outputs and blocks in the function's trees."""
    n_targets = traced.out_tree.num_leaves
    blocks = [
        jax.tree.unflatten(
            traced.in_tree,
            [
                # `jacfwd` gives the dtype of the output; ours is that of `jacrev`, the input's.
                _complex_again(output, block.astype(operand.dtype))
                for block, operand in zip(row, traced.operands, strict=True)
            ],
        )
        for output, row in zip(outputs, rows, strict=False)
    ]
    value = jax.tree.unflatten(traced.out_tree, outputs[:n_targets])
    aux = None
    if traced.aux_tree is not None:
        aux = jax.tree.unflatten(traced.aux_tree, outputs[n_targets:])
    return value, aux, jax.tree.unflatten(traced.out_tree, blocks)


def _complex_again(output: Any, block: Any) -> Any:
    """The block of a complex output, from that of its real and imaginary part."""
    if not jnp.iscomplexobj(output):
        return block
    parts = jnp.moveaxis(block, jnp.ndim(output), 0)
    dtype = jnp.finfo(complex_dtype(block.dtype)).dtype
    return jax.lax.complex(parts[0].astype(dtype), parts[1].astype(dtype))


def run_native(traced: Traced, order: tuple[Step, ...], wants_value: bool) -> Outcome:
    """The eliminated program, traced once more without batch axes, as a kernel.

    A kernel computes all its outputs, so nothing may be among them that nobody reads.

    Raises:
        NativeUnavailableError: the eliminated program cannot become a kernel.
    """
    trees = []

    def flat(*operands: Any) -> list[Any]:
        found = linearize_traced(replace(traced, operands=operands), order)
        value = found.value if wants_value else None
        leaves, tree = jax.tree.flatten((value, found.aux, found.jacobian))
        trees.append(tree)
        return leaves

    program = trace_avals(flat, [jax.typeof(operand) for operand in traced.operands])
    operands = list(traced.operands)
    if any(isinstance(const, jax.core.Tracer) for const in program.consts):
        # What the function closes over is being traced too: to the kernel these are inputs.
        operands = [*program.consts, *operands]
        jaxpr = program.jaxpr
        variables = (*jaxpr.constvars, *jaxpr.invars)
        program = close_program(variables, jaxpr.outvars, jaxpr.eqns, like=jaxpr)
    return jax.tree.unflatten(trees[-1], native_function(program)(*operands))
