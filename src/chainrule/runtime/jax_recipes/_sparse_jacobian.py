"""The Jacobian of a JAX function with few non-zero entries, from a few products.

Where its entries are is proved from the program, or given. Columns (or rows) that cannot overlap share one
JVP (or VJP), whichever needs fewer; all products run as one batch in one compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._codec import SparseArray
from chainrule._jaxpr import derivative_pattern
from chainrule._patterns import Pattern
from chainrule.runtime._derivatives._layout import Entries, Layout, sparse_blocks
from chainrule.runtime._derivatives._sparsity import read_pattern
from chainrule.runtime.jax_recipes._narrowing import Narrowed, narrow
from chainrule.runtime.jax_recipes._programs import Selection, prepare


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
    if isinstance(sparsity, str):
        shapes = tuple((np.shape(a), np.dtype(a.dtype).name) for a in arrays)
        plan = _detected_plan(selection, shapes)
    else:
        rows, columns = _sides(selection, arrays)
        pattern = read_pattern(sparsity, columns.varying, rows.varying.paths)
        plan = _Plan.of(pattern, rows, columns)
    call = (apply_jit, inputs, jac_inputs, jac_outputs)
    program, _ = prepare(_compressed, *call, True) if plan.reverse else (forward, arrays)
    values = np.asarray(program.run(arrays, plan.seeds))
    entries = [
        Entries(*plan.ordered(places, seeds), values[index][places])
        for index, (places, seeds) in enumerate(plan.places)
    ]
    blocks = sparse_blocks(entries, lambda: plan.rows, plan.columns)
    return {
        out: {
            path: blocks.get(out, {}).get(path) or plan.empty(out, path)
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
class _Plan:
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
    def of(cls, pattern: Pattern, rows: _Side, columns: _Side) -> _Plan:
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
def _detected_plan(selection: Selection, shapes: tuple[tuple[tuple[int, ...], str], ...]) -> _Plan:
    arrays = tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)
    rows, columns = _sides(selection, arrays)
    vector = jax.ShapeDtypeStruct((columns.varying.size,), jnp.result_type(float))

    # The arrays are inputs, not constants: an index among them is not known.
    def function(vector: Any, *arrays: Any) -> list[Any]:
        return [_flat_function(narrow(selection, arrays), columns.varying)(vector)]

    pattern = derivative_pattern(function, [vector], arrays)
    return _Plan.of(pattern, rows, columns)


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
