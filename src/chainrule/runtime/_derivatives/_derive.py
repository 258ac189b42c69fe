"""A missing derivative endpoint from one that the author has.

JVP or VJP          from the Jacobian: its blocks are contracted with the vector
Jacobian            from a JVP or VJP: one unit vector per input (output) element is asked for;
                    elements whose answers cannot overlap share a vector when the sparsity is known
a batch of vectors  from a product that takes one vector
value and VJP       from the two endpoints
Hessian product     from differences of the VJP
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from chainrule._device import own_copy
from chainrule._endpoints import JVP, VJP, DerivativeKind
from chainrule._errors import InputError
from chainrule._paths import Key, join_path
from chainrule._patterns import Pattern
from chainrule._progress import track
from chainrule._trees import get_at_path
from chainrule.runtime._derivatives._differences import finite_difference_jvp
from chainrule.runtime._derivatives._layout import (
    Entries,
    Layout,
    answered,
    as_cotangent,
    canonical,
    check_keys,
    complex_paths,
    contract,
    dense_blocks,
    is_abstract,
    read_arrays,
    read_pattern,
    shape_and_dtype,
    sparse_blocks,
    with_real_blocks,
)
from chainrule.runtime._derivatives._stencils import Algorithm, Eps


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
                    _block_for(jacobian, kind, given, answer),
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
    # A real input has a real cotangent also where an output is complex: the pairing is Re Σ u·t.
    return {path: as_cotangent(arrays[path], product) for path, product in products.items()}


def _block_for(jacobian: Any, kind: DerivativeKind, given: str, answer: str) -> Any:
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
    ask = UnitVectors(jvp_fn, inputs, columns.paths, outputs, arrays, outputs, batched=batched)
    pattern = None
    if sparsity is not None:
        pattern = read_pattern(sparsity, columns, outputs, lambda: ask.answers)
    entries = ask.entries(pattern, transposed=False, show_progress=show_progress)
    collect = dense_blocks if pattern is None else sparse_blocks
    blocks = collect(entries, lambda: ask.answers, columns)
    return with_real_blocks(blocks, ask.complex_answers, complex_paths(arrays))


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
    arrays = read_arrays(inputs, canonical(jac_inputs))
    columns = Layout.of(arrays)
    shapes = _read_shapes(eval_fn(own_copy(inputs)), canonical(jac_outputs))
    rows = Layout.of(shapes)
    pattern = (
        None if sparsity is None else read_pattern(sparsity, columns, rows.paths, lambda: rows)
    )
    ask = UnitVectors(
        vjp_fn, inputs, columns.paths, rows.paths, shapes, columns.paths, batched=batched
    )
    across = None if pattern is None else pattern.transpose
    entries = ask.entries(across, transposed=True, show_progress=show_progress)
    collect = dense_blocks if pattern is None else sparse_blocks
    blocks = collect(entries, lambda: rows, columns)
    return with_real_blocks(blocks, complex_paths(shapes), complex_paths(arrays))


def _read_shapes(outputs: Any, paths: tuple[str, ...]) -> dict[str, Any]:
    """Zeros in the shape and dtype of each output, from a result or from an abstract evaluation."""
    zeros = {}
    for path in paths:
        leaf = get_at_path(outputs, path)
        if is_abstract(leaf):
            zeros[path] = np.zeros(*shape_and_dtype(leaf))
        else:
            zeros[path] = np.zeros(np.shape(leaf), complex if np.iscomplexobj(leaf) else float)
    return zeros


BATCH = 64
"""Unit vectors per call of an endpoint that takes batches: enough to amortise, small enough to hold."""


class UnitVectors:
    """A product endpoint with everything but the vector filled in.

    Its answers to unit vectors are the columns (or rows) of a matrix A: a(v) = A v. Where a vector is complex
    and an answer real, the endpoint gives a(v) = Re(A v), which one unit vector e does not determine: a(e) is
    the real part of its column, and a(-i e) = Re(-i A e) the imaginary one. Such answers are asked for twice.
    (A complex answer to a complex vector is taken to be linear over the complex numbers, as JAX takes it.)

    Args:
        product: the endpoint: `product(inputs, input_paths, output_paths, vector)`.
        inputs: passed on.
        input_paths: passed on, as a set.
        output_paths: passed on, as a set.
        like: arrays in the shapes and dtypes of the vectors.
        answer_paths: which paths the answers are keyed by, in order.
        batched: whether `product` takes `batched=True` and vectors with a leading axis.

    Attributes:
        complex_answers: the paths at which the endpoint itself gave complex numbers.
    """

    def __init__(
        self,
        product: Callable[..., Mapping[str, Any]],
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        like: Mapping[str, np.ndarray],
        answer_paths: Sequence[str],
        *,
        batched: bool,
    ) -> None:
        self._product = product
        self._arguments = (inputs, tuple(input_paths), tuple(output_paths))
        self._dtypes = {path: array.dtype for path, array in like.items()}
        self._seeds = Layout.of(like)
        self._answer_paths = answer_paths
        self._batched = batched
        self._answers: Layout | None = None
        self.complex_answers: set[str] = set()

    @property
    def answers(self) -> Layout:
        """The layout of the answers, known from the first one on."""
        if self._answers is None:
            next(self._ask([np.zeros(0, np.int64)]))
        assert self._answers is not None
        return self._answers

    def entries(
        self, pattern: Pattern | None, *, transposed: bool, show_progress: bool
    ) -> Iterator[Entries]:
        """The entries of the Jacobian.

        Args:
            pattern: where answers may be non-zero, seeds as columns; `None` for anywhere.
            transposed: whether the answers are rows of the Jacobian rather than columns.
            show_progress: whether long work shows a bar.
        """
        groups: Sequence[Any] = (
            range(self._seeds.size) if pattern is None else pattern.column_groups
        )
        answers = track(self._ask(groups), "jacobian", len(groups), show=show_progress)
        for group, answer in zip(groups, answers, strict=True):
            if pattern is None:
                yield Entries(*_ordered(slice(None), group, transposed), answer)
            else:
                places, seeds = pattern.entries_in(group)
                yield Entries(*_ordered(places, seeds, transposed), answer[places])

    def _ask(self, groups: Sequence[Any]) -> Iterator[np.ndarray]:
        """The answer to each group of seeds, as a long vector."""
        size = BATCH if self._batched else 1
        for start in range(0, len(groups), size):
            chunk = groups[start : start + size]
            vectors = np.zeros((len(chunk), self._seeds.size))
            for vector, group in zip(vectors, chunk, strict=True):
                vector[group] = 1.0
            yield from self._call(vectors if self._batched else vectors[0])

    def _call(self, vectors: np.ndarray) -> np.ndarray:
        parts = self._seeds.split(vectors)
        answers = self._answer(parts)
        self.complex_answers = complex_paths(answers)
        is_complex = {path: dtype.kind == "c" for path, dtype in self._dtypes.items()}
        if any(is_complex.values()) and len(self.complex_answers) < len(answers):
            # Real parts of the seeds are zero here: their answers are complete after the first call, and
            # would be added twice.
            turned = {path: part * (-1j if is_complex[path] else 0) for path, part in parts.items()}
            imaginary = self._answer(turned)
            answers = {
                path: each if path in self.complex_answers else each + 1j * imaginary[path]
                for path, each in answers.items()
            }
        lead = int(self._batched)
        self._answers = Layout(
            tuple(answers), tuple(answer.shape[lead:] for answer in answers.values())
        )
        rows = [answer.reshape(len(answer) if lead else 1, -1) for answer in answers.values()]
        return np.concatenate(rows, axis=1)

    def _answer(self, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        vector = {path: part.astype(self._dtypes[path]) for path, part in parts.items()}
        options = {"batched": True} if self._batched else {}
        inputs, *paths = self._arguments
        result = self._product(own_copy(inputs), *map(set, paths), vector, **options)
        # Copied: an author may return the same buffer every time.
        return {
            path: np.array(answered(result, path, "derivative endpoint"))
            for path in self._answer_paths
        }


def _ordered(answer: Any, seed: Any, transposed: bool) -> tuple[Any, Any]:
    return (seed, answer) if transposed else (answer, seed)


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
        InputError: the vectors' batches have different lengths, or there are no vectors.
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

    Raises:
        InputError: a cotangent has another shape than its output (`vector_shape_mismatch`).
    """
    # Copied, since the VJP may write to a buffer that `apply_fn` has returned.
    outputs = own_copy(apply_fn(own_copy(inputs)))
    for path, cotangent in cotangent_vector.items():
        expected = np.shape(get_at_path(outputs, path))
        if np.shape(cotangent) != expected:
            raise InputError(
                f"cotangent_vector at {path!r} has shape {list(np.shape(cotangent))}, expected "
                f"{list(expected)}.",
                code="vector_shape_mismatch",
                path=path,
            )
    return outputs, dict(vjp_fn(inputs, vjp_inputs, vjp_outputs, cotangent_vector))


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
    # Results are keyed by input paths, which need not be paths of the result: give them names, by which a
    # warning calls them.
    names = {join_path(Key(f"gradient by {path}")): path for path in paths}

    def gradient(at: Any) -> dict[str, Any]:
        found = vjp_fn(at, set(paths), set(hvp_outputs), own_copy(cotangent_vector))
        return {f"gradient by {path}": found[path] for path in paths}

    product = finite_difference_jvp(
        gradient, inputs, paths, tuple(names), tangent_vector, algorithm=algorithm, eps=eps
    )
    return {path: product[name] for name, path in names.items()}
