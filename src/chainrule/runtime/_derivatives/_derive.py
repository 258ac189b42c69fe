"""A missing derivative endpoint from one that the author has.

A JVP or VJP follows from the Jacobian: its blocks are contracted with the vector. The Jacobian follows
from a JVP or VJP: one unit vector per input (output) element is asked for; elements whose answers cannot
overlap share a vector when the sparsity is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any

import numpy as np

from chainrule._trees import get_at_path
from chainrule.runtime._derivatives._blocks import dense_blocks, sparse_blocks
from chainrule.runtime._derivatives._kinds import JVP, VJP, DerivativeKind
from chainrule.runtime._derivatives._layout import (
    Layout,
    answered,
    canonical,
    check_keys,
    read_arrays,
)
from chainrule.runtime._derivatives._products import contract
from chainrule.runtime._derivatives._sparsity import read_pattern
from chainrule.runtime._derivatives._unit_vectors import UnitVectors
from chainrule.runtime._own_arrays import own_copy


def jvp_from_jacobian(
    jacobian_fn: Callable[..., Any],
    inputs: Any,
    jvp_inputs: Collection[str],
    jvp_outputs: Collection[str],
    tangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, np.ndarray]:
    """The Jacobian-vector product, from the full Jacobian.

    Args:
        jacobian_fn: the author's `jacobian(inputs, jac_inputs, jac_outputs)`; its blocks may be arrays
            or `SparseArray`s.
        inputs: passed on.
        jvp_inputs: paths of the inputs.
        jvp_outputs: paths of the outputs.
        tangent_vector: `{input path: array}`.
        batched: whether tangents carry a leading batch axis; the result then does too.

    Returns:
        `{output path: array}`.
    """
    paths = (jvp_inputs, jvp_outputs)
    return product_from_jacobian(JVP, jacobian_fn, inputs, *paths, tangent_vector, batched=batched)


def vjp_from_jacobian(
    jacobian_fn: Callable[..., Any],
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, np.ndarray]:
    """The vector-Jacobian product, from the full Jacobian; arguments as in `jvp_from_jacobian`.

    Returns:
        `{input path: array}`.
    """
    paths = (vjp_inputs, vjp_outputs)
    return product_from_jacobian(
        VJP, jacobian_fn, inputs, *paths, cotangent_vector, batched=batched
    )


def product_from_jacobian(
    kind: DerivativeKind,
    jacobian_fn: Callable[..., Any],
    inputs: Any,
    input_paths: Collection[str],
    output_paths: Collection[str],
    vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, np.ndarray]:
    """What `jvp_from_jacobian` and `vjp_from_jacobian` share: `kind` says which of them it is."""
    selected = {"inputs": canonical(input_paths), "outputs": canonical(output_paths)}
    assert kind.vector is not None
    assert kind.vector_over is not None
    check_keys(vector, selected[kind.vector_over], kind.vector)
    arrays = read_arrays(inputs, selected["inputs"])
    ranks = {path: x.ndim for path, x in arrays.items()}
    jacobian = jacobian_fn(inputs, set(selected["inputs"]), set(selected["outputs"]))
    products = {
        answer: reduce(
            np.add,
            (
                contract(
                    kind,
                    _block(jacobian, kind, given, answer),
                    vector[given],
                    input_rank=ranks[given if kind.vector_over == "inputs" else answer],
                    path=given,
                    batched=batched,
                )
                for given in selected[kind.vector_over]
            ),
        )
        for answer in selected[kind.result_over[0]]
    }
    if kind.vector_over == "inputs":
        return products
    # The cotangent of a real input is real, also where an output is complex.
    return {path: u if np.iscomplexobj(arrays[path]) else u.real for path, u in products.items()}


def _block(jacobian: Any, kind: DerivativeKind, given: str, answer: str) -> Any:
    out, path = (answer, given) if kind.vector_over == "inputs" else (given, answer)
    return answered(answered(jacobian, out, "jacobian"), path, f"jacobian of {out!r}")


def jacobian_from_jvp(
    jvp_fn: Callable[..., Any],
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    batched: bool = False,
    sparsity: Any = None,
    show_progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """The Jacobian, one column per Jacobian-vector product.

    Args:
        jvp_fn: the author's `jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector)`.
        inputs: a model or nested mappings.
        jac_inputs: paths of the inputs.
        jac_outputs: paths of the outputs.
        batched: whether `jvp_fn` takes `batched=True` and tangents with a leading axis; the columns
            are then asked for many at a time.
        sparsity: as in `finite_difference_jacobian`, `"detect"` aside. Columns that share no row are
            asked for together, and the blocks are `SparseArray`s.
        show_progress: show a bar on a terminal when it takes longer than two seconds.

    Returns:
        `{output path: {input path: block}}`.
    """
    arrays = read_arrays(inputs, canonical(jac_inputs))
    columns, outputs = Layout.of(arrays), canonical(jac_outputs)
    pattern = None if sparsity is None else read_pattern(sparsity, columns, outputs)
    ask = UnitVectors(jvp_fn, inputs, columns.paths, outputs, arrays, outputs, batched=batched)
    entries = ask.entries(pattern, transposed=False, show_progress=show_progress)
    collect = dense_blocks if pattern is None else sparse_blocks
    return collect(entries, lambda: ask.answers, columns)


def jacobian_from_vjp(
    vjp_fn: Callable[..., Any],
    eval_fn: Callable[[Any], Any],
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    batched: bool = False,
    sparsity: Any = None,
    show_progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """The Jacobian, one row per vector-Jacobian product.

    Args:
        vjp_fn: the author's `vector_jacobian_product(inputs, vjp_inputs, vjp_outputs,
            cotangent_vector)`.
        eval_fn: `apply` or `abstract_eval`; called once with `inputs` to learn the outputs' shapes.

    The other arguments and the result are those of `jacobian_from_jvp`.
    """
    columns = Layout.of(read_arrays(inputs, canonical(jac_inputs)))
    shapes = _read_shapes(eval_fn(own_copy(inputs)), canonical(jac_outputs))
    rows = Layout.of(shapes)
    pattern = None if sparsity is None else read_pattern(sparsity, columns, rows.paths)
    ask = UnitVectors(
        vjp_fn, inputs, columns.paths, rows.paths, shapes, columns.paths, batched=batched
    )
    across = None if pattern is None else pattern.transpose
    entries = ask.entries(across, transposed=True, show_progress=show_progress)
    collect = dense_blocks if pattern is None else sparse_blocks
    return collect(entries, lambda: rows, columns)


def _read_shapes(outputs: Any, paths: tuple[str, ...]) -> dict[str, Any]:
    """Zeros in the shape and dtype of each output, from a result or from an abstract evaluation."""
    zeros = {}
    for path in paths:
        leaf = get_at_path(outputs, path)
        facts = leaf if isinstance(leaf, Mapping) else {"shape": np.shape(leaf)}
        if hasattr(leaf, "shape"):
            facts = {"shape": leaf.shape, "dtype": leaf.dtype}
        zeros[path] = np.zeros(tuple(facts["shape"]), facts.get("dtype", np.float64))
    return zeros
