"""The Jacobian of a JAX function: dense, or sparse from a few products.

`jax_jacobian` goes by forward mode, reverse mode, elimination or compressed products: `chainrule.elimination`
estimates what each would take and chooses. Estimates can be wrong; what is really fastest is measured, when
asked for, once per program and shapes.

`jax_sparse_jacobian` proves from the program where entries are, or is told. Columns (or rows) that cannot
overlap share one JVP (or VJP), whichever needs fewer; all products run as one batch in one compiled call.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._codec import SparseArray
from chainrule._errors import CapabilityError
from chainrule._jaxpr import derivative_pattern
from chainrule._lru_cache import LRUCache
from chainrule._patterns import Pattern
from chainrule.runtime._derivatives._layout import Entries, Layout, read_pattern, sparse_blocks
from chainrule.runtime.jax_recipes._programs import Narrowed, Selection, narrow, prepare

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


# --- sparse --------------------------------------------------------------------------------------


def jax_sparse_jacobian(
    apply_jit: Callable[[Any], Any],
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    sparsity: Any = "detect",
) -> dict[str, dict[str, SparseArray]]:
    """The Jacobian of a JAX function as sparse blocks.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        inputs: the endpoint's inputs, a model or nested mappings.
        jac_inputs: paths of the inputs.
        jac_outputs: paths of the outputs.
        sparsity: `"detect"` proves a pattern from the program, which holds for all inputs; otherwise as in
            `finite_difference_jacobian`.

    Returns:
        `{output path: {input path: SparseArray of output shape + input shape}}`.

    Raises:
        CapabilityError: the pattern cannot be proved (`no_pattern`); give it, or use `jax_jacobian`.
    """
    forward, arrays = prepare(_compressed, apply_jit, inputs, jac_inputs, jac_outputs, False)
    selection = forward.selection
    if isinstance(sparsity, str) and sparsity == "detect":
        shapes = tuple((np.shape(a), np.dtype(a.dtype).name) for a in arrays)
        products = _detected_products(selection, shapes)
    else:
        rows, columns = _sides(selection, arrays)
        pattern = read_pattern(sparsity, columns.varying, rows.varying.paths, lambda: rows.varying)
        products = _Products.of(pattern, rows, columns)
    call = (apply_jit, inputs, jac_inputs, jac_outputs)
    program, _ = prepare(_compressed, *call, True) if products.reverse else (forward, arrays)
    values = np.asarray(program.run(arrays, products.seeds))
    entries = [
        Entries(*products.ordered(places, seeds), values[index][places])
        for index, (places, seeds) in enumerate(products.places)
    ]
    blocks = sparse_blocks(entries, lambda: products.rows, products.columns)
    return {
        out: {
            path: blocks.get(out, {}).get(path) or products.empty(out, path)
            for path in selection.inputs
        }
        for out in selection.outputs
    }


@dataclass(frozen=True, eq=False)
class _Side:
    """The selected inputs or outputs: those that vary, and the shapes of all."""

    varying: Layout
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, varying: dict[str, Any], exact: dict[str, Any]) -> _Side:
        shapes = {path: tuple(leaf.shape) for path, leaf in (varying | exact).items()}
        return cls(Layout.of(varying), shapes)


@dataclass(frozen=True, eq=False)
class _Products:
    """Which products to take, and where their entries belong.

    Attributes:
        all_rows: the outputs.
        all_columns: the inputs.
        reverse: whether the products are VJPs.
        seeds: one vector per product.
        places: for each product, the answered elements and the seed that each belongs to.
    """

    all_rows: _Side
    all_columns: _Side
    reverse: bool
    seeds: np.ndarray
    places: tuple[tuple[np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, pattern: Pattern, rows: _Side, columns: _Side) -> _Products:
        reverse = len(pattern.transpose.column_groups) < len(pattern.column_groups)
        chosen = pattern.transpose if reverse else pattern
        seeds = np.zeros((len(chosen.column_groups), chosen.shape[1]))
        for seed, group in zip(seeds, chosen.column_groups, strict=True):
            seed[group] = 1.0
        places = tuple(chosen.entries_in(group) for group in chosen.column_groups)
        return cls(rows, columns, reverse, seeds, places)

    @property
    def rows(self) -> Layout:
        """Layout of the matrix's rows."""
        return self.all_rows.varying

    @property
    def columns(self) -> Layout:
        """Layout of the matrix's columns."""
        return self.all_columns.varying

    def empty(self, out_path: str, in_path: str) -> SparseArray:
        """The block of an integer or boolean output or input."""
        shape = self.all_rows.shapes[out_path] + self.all_columns.shapes[in_path]
        return SparseArray(shape, np.zeros((0, len(shape)), np.int64), np.zeros(0))

    def ordered(self, answered: np.ndarray, seeded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of some entries."""
        return (seeded, answered) if self.reverse else (answered, seeded)


@lru_cache(maxsize=64)
def _detected_products(
    selection: Selection, shapes: tuple[tuple[tuple[int, ...], str], ...]
) -> _Products:
    arrays = tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)
    rows, columns = _sides(selection, arrays)
    vector = jax.ShapeDtypeStruct((columns.varying.size,), jnp.result_type(float))

    # The arrays are inputs, not constants: an index among them is not known.
    def function(vector: Any, *arrays: Any) -> list[Any]:
        return [_flat_function(narrow(selection, arrays), columns.varying)(vector)]

    pattern = derivative_pattern(function, [vector], arrays)
    return _Products.of(pattern, rows, columns)


def _sides(selection: Selection, arrays: tuple[Any, ...]) -> tuple[_Side, _Side]:
    def facts(values: Any) -> Any:
        narrowed = narrow(selection, values)
        varying, (exact, _) = narrowed.function(narrowed.primals)
        return (varying, exact), (narrowed.primals, narrowed.exact)

    outputs, inputs = jax.eval_shape(facts, arrays)
    return _Side.of(*outputs), _Side.of(*inputs)


def _flat_function(narrowed: Narrowed, columns: Layout) -> Callable[[jax.Array], jax.Array]:
    def function(vector: jax.Array) -> jax.Array:
        parts = {
            path: vector[part].reshape(shape).astype(narrowed.primals[path].dtype)
            for (path, part), shape in zip(columns.slices().items(), columns.shapes, strict=True)
        }
        outputs = narrowed.function(parts)[0]
        return jnp.concatenate([outputs[path].ravel() for path in sorted(outputs)])

    return function


def _compressed(selection: Selection, reverse: bool, arrays: Any, seeds: jax.Array) -> jax.Array:
    narrowed = narrow(selection, arrays)
    columns = Layout.of(narrowed.primals)
    function = _flat_function(narrowed, columns)
    point = jnp.concatenate([narrowed.primals[path].ravel() for path in columns.paths])
    if reverse:
        outputs, pull = jax.vjp(function, point)
        return jax.vmap(lambda seed: pull(seed.astype(outputs.dtype))[0])(seeds)
    return jax.vmap(lambda seed: jax.jvp(function, (point,), (seed.astype(point.dtype),))[1])(seeds)
