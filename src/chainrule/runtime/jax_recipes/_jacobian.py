"""The Jacobian of a JAX function: dense, or sparse from a few products.

`jax_jacobian` goes by forward mode, reverse mode, elimination or compressed products: `chainrule.elimination`
estimates what each would take and chooses, or measures it when asked to, once per program and shapes.

`jax_sparse_jacobian` proves from the program where entries are, or is told. Columns (or rows) that cannot
overlap share one JVP (or VJP), whichever needs fewer; all products run as one batch in one compiled call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._codec import SparseArray
from chainrule._errors import CapabilityError, InputError
from chainrule._jaxpr import derivative_pattern
from chainrule._lru_cache import LRUCache
from chainrule._patterns import Pattern
from chainrule.runtime._derivatives._layout import Entries, Layout, read_pattern, sparse_blocks
from chainrule.runtime.jax_recipes._programs import Narrowed, Selection, narrow, prepare

logger = logging.getLogger(__name__)

Mode = Literal["auto", "forward", "reverse", "elimination", "measure"]
Method = Literal["auto", "planned", "elimination", "jacrev", "jacfwd", "compressed"]

_MODES = get_args(Mode)
_METHODS: dict[Mode, Method] = {
    "auto": "auto", "forward": "jacfwd", "reverse": "jacrev", "elimination": "elimination",
}  # fmt: skip
SWEEPS: dict[str, Callable[..., Any]] = {"jacrev": jax.jacrev, "jacfwd": jax.jacfwd}
_measured: LRUCache[Any, Method] = LRUCache(256)


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
            `"measure"` compiles and times these at the first call with these shapes, and keeps the fastest
            (`explain_jacobian(measure=True)`).

    Returns:
        `{output path: {input path: array of output shape + input shape}}`.

    Raises:
        PathError: a path does not exist or is not an array.
        InputError: there is no such mode (`unknown_method`).
    """
    if mode not in _MODES:
        raise InputError(
            f"There is no mode {mode!r}; it is one of {', '.join(map(repr, _MODES))}.",
            code="unknown_method",
        )
    call = (apply_jit, inputs, jac_inputs, jac_outputs)
    method = _fastest(*call) if mode == "measure" else _METHODS[mode]
    program, arrays = prepare(_jacobian, *call, method)
    return program.run(arrays)


def _fastest(*call: Any) -> Method:
    """The method of the fastest candidate of `explain_jacobian`; `"auto"` where it cannot measure."""
    from chainrule.elimination import explain_jacobian

    program, arrays = prepare(_jacobian, *call, "auto")
    key = (program.selection, tuple((np.shape(a), a.dtype) for a in arrays))
    known = _measured.get(key)
    if known is not None:
        return known
    narrowed = narrow(program.selection, arrays)
    fastest: Method = "auto"
    try:
        explained = explain_jacobian(_differentiated(narrowed), narrowed.primals, measure=True)
    except (CapabilityError, InputError) as error:
        logger.info("The ways of this Jacobian cannot be measured: %s", error)
    else:
        logger.info("The ways of this Jacobian:\n%s", explained)
        seconds = {c.method: c.seconds for c in explained.candidates if c.seconds is not None}
        fastest = cast(Method, min(seconds, key=seconds.__getitem__, default="auto"))
    _measured.put(key, fastest)
    return fastest


def _jacobian(selection: Selection, method: Method, arrays: Any) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, (exact, _) = jax.eval_shape(narrowed.function, narrowed.primals)
    blocks = _accumulate(narrowed, method, outputs) if narrowed.primals and outputs else {}
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


def _differentiated(narrowed: Narrowed) -> Callable[[Any], Any]:
    return lambda primals: narrowed.function(primals)[0]


def _accumulate(narrowed: Narrowed, method: Method, outputs: Mapping[str, Any]) -> Any:
    has_complex = [
        any(map(jnp.iscomplexobj, side.values())) for side in (narrowed.primals, outputs)
    ]
    if method == "auto" and any(has_complex):
        # JAX pushes forward from real inputs and pulls back from real outputs.
        method = "jacfwd" if has_complex[1] else "jacrev"
    if method not in SWEEPS:
        from chainrule.elimination import jacobian

        try:
            return jacobian(_differentiated(narrowed), method=method)(narrowed.primals)
        except CapabilityError:
            if method != "auto":
                raise
            # What elimination cannot take apart, reverse mode may still differentiate as a whole.
            method = "jacrev"
    # JAX differentiates complex inputs by complex outputs only as a holomorphic function, and asks for it to
    # be said.
    holomorphic = all(map(jnp.iscomplexobj, (*narrowed.primals.values(), *outputs.values())))
    transform = SWEEPS[method](narrowed.function, has_aux=True, holomorphic=holomorphic)
    return transform(narrowed.primals)[0]


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
        # A group's product is the sum of its columns. In each row at most one of them is non-zero, so the sum
        # is that entry itself, and `entries_in` says of which column. With as many groups either way a JVP is
        # taken: it keeps no values of the forward pass.
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
