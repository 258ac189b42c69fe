"""Named arrays as long vectors, and the blocks of a Jacobian as a matrix.

A derivative is computed with matrices: rows are output elements, columns are input elements. A request and
its answer name paths. A `Layout` says where the elements of each path are in the long vector; `Entries` are
entries of the matrix, `dense_blocks` and `sparse_blocks` collect them into `{output path: {input path:
block}}`, and `contract` multiplies one such block with a tangent or a cotangent. `read_pattern` reads where a
user says that a Jacobian can be non-zero.

Convention: a block has the shape output shape + input shape. A Jacobian-vector product is J v, a
vector-Jacobian product is Jᵀ u, as in JAX: transposed, never conjugated, also for complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule._describe import describe_array
from chainrule._endpoints import DerivativeKind
from chainrule._errors import ComponentError, InputError, PathError
from chainrule._patterns import Pattern
from chainrule._sparsity import DIAGONAL, is_block, pattern_of, read_blocks
from chainrule._trees import get_at_path, is_arraylike
from chainrule.runtime._schema import number_kind


def canonical(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths once each, sorted, so that equal selections are equal tuples."""
    return tuple(sorted({paths} if isinstance(paths, str) else set(paths)))


def read_arrays(tree: Any, paths: Iterable[str]) -> dict[str, np.ndarray]:
    """The numeric leaves at some paths as NumPy arrays.

    Raises:
        PathError: nothing there, or something that is not numeric.
    """
    return {path: _numeric(get_at_path(tree, path), path) for path in paths}


def _numeric(leaf: Any, path: str) -> np.ndarray:
    array = None if leaf is None else np.asarray(leaf)
    if array is None or number_kind(array.dtype) not in "biufc":
        raise not_differentiable(path, describe_array(leaf))
    return array


def not_differentiable(path: str, found: str) -> PathError:
    """The error of a path at which there is no numeric array."""
    return PathError(
        f"Expected a numeric array at {path!r} to differentiate, found {found}. "
        "Leave this path out, or give it a value.",
        code="path_not_differentiable",
        path=path,
    )


def is_abstract(node: Any) -> bool:
    """Whether a node says the shape and dtype of an array: as a mapping of the two, or as an array does."""
    if isinstance(node, Mapping):
        return set(node) == {"shape", "dtype"} and isinstance(node["shape"], (tuple, list))
    return is_arraylike(node)


def shape_and_dtype(node: Any) -> tuple[tuple[int, ...], Any]:
    """What a node says for which `is_abstract` holds."""
    if isinstance(node, Mapping):
        return tuple(node["shape"]), node["dtype"]
    return tuple(node.shape), node.dtype


def answered(result: Any, path: str, who: str) -> Any:
    """What an author's endpoint returned for a path.

    Raises:
        ComponentError: nothing (`bad_output`).
    """
    if not isinstance(result, Mapping) or path not in result:
        found = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        raise ComponentError(
            f"Expected an entry for {path!r} from the {who}; found {found}.",
            code="bad_output",
            path=path,
        )
    return result[path]


def check_keys(given: Mapping[str, Any], expected: Iterable[str], argument: str) -> None:
    """Hold the rule that a vector names exactly the selected paths.

    Raises:
        InputError: the message names what is missing and what is not expected.
    """
    missing = sorted(set(expected) - set(given))
    extra = sorted(set(given) - set(expected))
    if missing or extra:
        raise InputError(
            f"{argument} must have one entry per selected path: missing {missing or 'none'}, "
            f"unexpected {extra or 'none'}.",
            code="vector_keys_mismatch",
            details={"missing": missing, "unexpected": extra},
        )


def check_shape(
    found: tuple[int, ...], expected: tuple[int, ...], path: str, *, batched: bool = False
) -> None:
    """Hold the rule that a tangent or cotangent has the shape of its array, behind a batch if there is one.

    Raises:
        InputError: it has another shape, also one that would broadcast (`vector_shape_mismatch`).
    """
    if found[int(batched) :] != expected or len(found) != len(expected) + int(batched):
        raise InputError(
            f"The vector at {path!r} has shape {list(found)}, expected "
            f"{'[batch] + ' if batched else ''}{list(expected)}.",
            code="vector_shape_mismatch",
            path=path,
        )


def check_real(is_complex: bool, is_complex_array: bool, path: str) -> None:
    """Hold the rule that the vector of a real array is real: its imaginary part would be lost.

    Raises:
        InputError: it is complex (`vector_not_real`).
    """
    if is_complex and not is_complex_array:
        raise InputError(
            f"The vector at {path!r} must be real, like its array; found complex numbers.",
            code="vector_not_real",
            path=path,
        )


def as_cotangent(array: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A product Jᵀ u as the cotangent of an array.

    JAX pairs a cotangent u with a tangent t as Re Σ u·t, without conjugation. Then Re Σ u·(J t) = Re(Jᵀu)·t
    for every real t: the cotangent of a real input is Re(Jᵀu), also where an output is complex.
    """
    return value if np.iscomplexobj(array) else value.real


def _flat(value: Any, shape: tuple[int, ...], path: str) -> np.ndarray:
    array = np.asarray(value)
    # Most arrays are right already, and this runs several times per evaluation of the program.
    if array.dtype != np.float64:
        array = array.astype(np.result_type(array, np.float64))
    check_shape(array.shape, shape, path)
    return array.ravel()


@dataclass(frozen=True)
class Layout:
    """Paths and shapes, in the order in which their elements lie in one long vector."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Layout:
        """The layout of named arrays, in the mapping's order."""
        return cls(tuple(arrays), tuple(tuple(np.shape(array)) for array in arrays.values()))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each path begins, and the end."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes], dtype=int)
        return (0, *map(int, ends))

    @property
    def size(self) -> int:
        """Number of elements of the long vector."""
        return self.offsets[-1]

    def slices(self) -> dict[str, slice]:
        """The part of the long vector that belongs to each path."""
        ends = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return {path: slice(*pair) for path, pair in zip(self.paths, ends, strict=True)}

    def locate(self, element: int) -> tuple[str, tuple[int, ...]]:
        """The path and index of one element of the long vector."""
        for (path, part), shape in zip(self.slices().items(), self.shapes, strict=True):
            if part.start <= element < part.stop:
                index = np.unravel_index(element - part.start, shape) if shape else ()
                return path, tuple(map(int, index))
        raise IndexError(element)

    def join(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """Named arrays as one vector in double precision.

        Raises:
            InputError: an array has another shape than its path (`vector_shape_mismatch`).
        """
        places = zip(self.paths, self.shapes, strict=True)
        parts = [_flat(arrays[path], shape, path) for path, shape in places]
        return np.concatenate(parts) if parts else np.zeros(0)

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector under their paths; leading axes are kept."""
        lead = vector.shape[:-1]
        return {
            path: vector[..., part].reshape((*lead, *shape))
            for (path, part), shape in zip(self.slices().items(), self.shapes, strict=True)
        }

    def split_matrix(self, matrix: np.ndarray, columns: Layout) -> dict[str, dict[str, np.ndarray]]:
        """A matrix (rows laid out by `self`) as `{row path: {column path: block}}`."""
        return {
            row: {
                column: matrix[rows, part].reshape(row_shape + column_shape)
                for (column, part), column_shape in zip(
                    columns.slices().items(), columns.shapes, strict=True
                )
            }
            for (row, rows), row_shape in zip(self.slices().items(), self.shapes, strict=True)
        }


@dataclass(frozen=True)
class Entries:
    """Some entries of a matrix: `matrix[rows, columns] = values`.

    A whole column has `rows = slice(None)` and an integer `columns`; a whole row the other way round.
    """

    rows: np.ndarray | slice | int
    columns: np.ndarray | slice | int
    values: np.ndarray

    def add_transposed(self, cotangent: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """`gradient + cotangent @ matrix` for these entries; `gradient` is reused where it can be."""
        products = cotangent[self.rows] * self.values
        gradient = gradient.astype(np.result_type(gradient, products), copy=False)
        if isinstance(self.columns, np.ndarray):
            np.add.at(gradient, self.columns, products)
        else:
            gradient[self.columns] += products.sum()
        return gradient


def dense_blocks(
    entries: Iterable[Entries], rows: Callable[[], Layout], columns: Layout
) -> dict[str, dict[str, Any]]:
    """Collect entries into arrays.

    Args:
        entries: each place of the matrix at most once; places that are missing are zero.
        rows: the layout of the rows, asked for only once the first entries have come.
        columns: the layout of the columns.
    """
    matrix: np.ndarray | None = None
    for entry in entries:
        if matrix is None:
            matrix = np.zeros((rows().size, columns.size), entry.values.dtype)
        # Some entries may be complex and others, which came first, real.
        matrix = matrix.astype(np.result_type(matrix, entry.values), copy=False)
        matrix[entry.rows, entry.columns] = entry.values
    if matrix is None:
        matrix = np.zeros((rows().size, columns.size))
    return rows().split_matrix(matrix, columns)


def sparse_blocks(
    entries: Iterable[Entries], rows: Callable[[], Layout], columns: Layout
) -> dict[str, dict[str, Any]]:
    """Collect entries, given by index arrays, into one `SparseArray` per block; arguments as above."""
    found = list(entries)
    r = np.concatenate([np.zeros(0, np.int64), *(entry.rows for entry in found)])
    c = np.concatenate([np.zeros(0, np.int64), *(entry.columns for entry in found)])
    values = np.concatenate([entry.values for entry in found]) if found else np.zeros(0)
    row_layout = rows()
    return {
        out_path: {
            in_path: _sparse_block(r, c, values, (height, out_shape), (width, in_shape))
            for (in_path, width), in_shape in zip(
                columns.slices().items(), columns.shapes, strict=True
            )
        }
        for (out_path, height), out_shape in zip(
            row_layout.slices().items(), row_layout.shapes, strict=True
        )
    }


def _sparse_block(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    height: tuple[slice, tuple[int, ...]],
    width: tuple[slice, tuple[int, ...]],
) -> Any:
    (r, out_shape), (c, in_shape) = height, width
    here = (rows >= r.start) & (rows < r.stop) & (columns >= c.start) & (columns < c.stop)
    shape = out_shape + in_shape
    flat = (rows[here] - r.start) * math.prod(in_shape) + columns[here] - c.start
    axes = np.unravel_index(flat, shape) if shape else ()
    indices = np.stack(axes, axis=-1) if axes else np.zeros((flat.size, 0), np.int64)
    return SparseArray(shape, indices, values[here])


def complex_paths(arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The paths of the complex arrays among some."""
    return {path for path, array in arrays.items() if np.iscomplexobj(array)}


def with_real_blocks(
    blocks: dict[str, dict[str, Any]], outputs: Collection[str], inputs: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Blocks of one matrix, real again where neither the output nor the input is complex.

    A matrix is complex as soon as one of its entries is; the imaginary parts of the other blocks are zero.

    Args:
        blocks: by output and input path.
        outputs: the paths of the complex outputs.
        inputs: the paths of the complex inputs.
    """
    return {
        out: {
            path: _real(block) if out not in outputs and path not in inputs else block
            for path, block in row.items()
        }
        for out, row in blocks.items()
    }


def _real(block: Any) -> Any:
    if isinstance(block, SparseArray):
        return SparseArray(block.shape, block.indices, block.values.real)
    return block.real


def contract(
    kind: DerivativeKind, block: Any, vector: Any, *, input_rank: int, path: str, batched: bool
) -> np.ndarray:
    """One block's contribution to a product.

    Args:
        kind: `JVP` contracts the input axes, which are last; `VJP` the output axes, which are first.
        block: an array or `SparseArray` of output shape + input shape.
        vector: a tangent or cotangent in the shape of its axes; with `batched` one leading axis more.
        input_rank: how many axes of the block are the input's.
        path: where the vector belongs.
        batched: whether there is that axis; the result has it too.

    Raises:
        InputError: the vector does not fit the block (`vector_shape_mismatch`).
    """
    split = len(block.shape) - input_rank
    out_shape, in_shape = tuple(block.shape[:split]), tuple(block.shape[split:])
    over_inputs = kind.vector_over == "inputs"
    given_shape, result_shape = (in_shape, out_shape) if over_inputs else (out_shape, in_shape)
    vector = np.asarray(vector)
    check_shape(vector.shape, given_shape, path, batched=batched)
    vectors = vector.reshape((*vector.shape[:batched], math.prod(given_shape)))
    if isinstance(block, SparseArray):
        rows, columns = _flat_places(block, out_shape, in_shape)
        pair = (columns, rows) if over_inputs else (rows, columns)
        product = _sparse_product(block.values, *pair, vectors, math.prod(result_shape))
    else:
        matrix = np.asarray(block).reshape(math.prod(out_shape), math.prod(in_shape))
        product = vectors @ (matrix.T if over_inputs else matrix)
    return product.reshape(vector.shape[:batched] + result_shape)


def _flat_places(
    block: SparseArray, out_shape: tuple[int, ...], in_shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    axes = tuple(block.indices.T)
    zeros = np.zeros(block.nnz, np.int64)
    rank = len(out_shape)
    rows = np.ravel_multi_index(axes[:rank], out_shape) if out_shape else zeros
    columns = np.ravel_multi_index(axes[rank:], in_shape) if in_shape else zeros
    return rows, columns


def _sparse_product(
    values: np.ndarray, read: np.ndarray, write: np.ndarray, vectors: np.ndarray, size: int
) -> np.ndarray:
    terms = vectors[..., read] * values
    product = np.zeros((size, *vectors.shape[:-1]), terms.dtype)
    np.add.at(product, write, np.moveaxis(terms, -1, 0))
    return np.moveaxis(product, 0, -1)


def read_pattern(
    sparsity: Any, inputs: Layout, output_paths: tuple[str, ...], outputs: Callable[[], Layout]
) -> Pattern:
    """The pattern that a user described.

    Args:
        sparsity: `{output path: {input path: block}}`, or just the block where there is one pair of
            paths; blocks as in `chainrule._sparsity`.
        inputs: the layout of the columns.
        output_paths: the row paths, in order.
        outputs: the layout of the rows; asked for where no block says how many an output has.

    Raises:
        InputError: an output without a block, or a block that cannot be read or does not fit.
    """
    if is_block(sparsity):
        sparsity = {output_paths[0]: {inputs.paths[0]: sparsity}}
    try:
        blocks = read_blocks(sparsity)
    except ValueError as problem:
        raise InputError(f"sparsity: {problem}.", code="bad_sparsity") from None
    rows, columns, start = [np.zeros(0, int)], [np.zeros(0, int)], 0
    for out_path in output_paths:
        row = {path: blocks.get(out_path, {}).get(path) for path in inputs.paths}
        height = _height(row, inputs, out_path, outputs)
        for in_path, part in inputs.slices().items():
            shape = (height, part.stop - part.start)
            r, c = _places(row[in_path], shape, out_path, in_path)
            rows.append(r + start)
            columns.append(c + part.start)
        start += height
    return Pattern.at(np.concatenate(rows), np.concatenate(columns), (start, inputs.size))


def _height(
    row: Mapping[str, Any], inputs: Layout, out_path: str, outputs: Callable[[], Layout]
) -> int:
    """How many elements an output has, by its blocks if they say it: a band can be part of any matrix."""
    if all(block is None for block in row.values()):
        raise InputError(
            f"sparsity says nothing about output {out_path!r}: at least one of its blocks must not be None.",
            code="bad_sparsity",
            path=out_path,
        )
    for in_path, part in inputs.slices().items():
        block, width = row[in_path], part.stop - part.start
        if block == DIAGONAL:
            return width
        if block is not None and "places" in block:
            return int(block["of"] // max(width, 1))
    part = outputs().slices()[out_path]
    return part.stop - part.start


def _places(
    block: Any, shape: tuple[int, int], out_path: str, in_path: str
) -> tuple[np.ndarray, np.ndarray]:
    if block is None:
        return np.divmod(np.arange(shape[0] * shape[1]), max(shape[1], 1))
    try:
        pattern = pattern_of(block, *shape)
    except ValueError as problem:
        raise InputError(
            f"The sparsity block of output {out_path!r} and input {in_path!r} does not fit: {problem}.",
            code="bad_sparsity",
            path=in_path,
        ) from None
    return pattern.rows, pattern.columns
