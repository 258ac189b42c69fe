"""More than one vector at a time, and value and gradient together, for endpoints that know neither."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._own_arrays import own_copy


def batch_length(vector: Mapping[str, Any]) -> int:
    """How many vectors a batch has.

    Raises:
        InputError: the lengths differ between paths, or there is no vector (`batch_mismatch`).
    """
    lengths = {np.shape(array)[0] if np.ndim(array) else None for array in vector.values()}
    if len(lengths) != 1 or not all(lengths):
        shapes = {path: np.shape(array) for path, array in vector.items()}
        raise InputError(
            f"Batched vectors need one leading axis of the same length ≥ 1 for every path: {shapes}.",
            code="batch_mismatch",
        )
    (length,) = lengths
    assert length is not None
    return length


def batched_product(
    product_fn: Callable[..., Mapping[str, Any]],
    inputs: Any,
    input_paths: Collection[str],
    output_paths: Collection[str],
    vector: Mapping[str, Any],
    *,
    can_batch: bool = False,
) -> dict[str, Any]:
    """A JVP or VJP for a batch of tangents or cotangents.

    Args:
        product_fn: the author's product endpoint.
        inputs: passed on.
        input_paths: passed on.
        output_paths: passed on.
        vector: `{path: array with a leading batch axis}`, the same length for every path.
        can_batch: whether `product_fn` takes `batched=True`; it is called once for each vector otherwise.

    Returns:
        `{path: array with a leading batch axis}`.

    Raises:
        InputError: the vectors' batches have different lengths, or there is none.
    """
    if can_batch:
        return dict(product_fn(inputs, input_paths, output_paths, vector, batched=True))
    arrays = {path: np.asarray(array) for path, array in vector.items()}

    def product(index: int) -> dict[str, np.ndarray]:
        vector = {path: array[index].copy() for path, array in arrays.items()}
        answer = product_fn(own_copy(inputs), set(input_paths), set(output_paths), vector)
        # The author may return the same buffer every time.
        return {path: np.array(block) for path, block in answer.items()}

    answers = [product(index) for index in range(batch_length(arrays))]
    return {path: np.stack([answer[path] for answer in answers]) for path in answers[0]}


def value_and_vjp(
    apply_fn: Callable[[Any], Any],
    vjp_fn: Callable[..., Mapping[str, Any]],
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The outputs and the vector-Jacobian product, from the two endpoints.

    A recipe does the same in one pass (`jax_value_and_vjp`); this is for components without one.
    """
    # Copied, since the VJP may write to a buffer that `apply_fn` has returned.
    outputs = own_copy(apply_fn(own_copy(inputs)))
    return outputs, dict(vjp_fn(inputs, vjp_inputs, vjp_outputs, cotangent_vector))
