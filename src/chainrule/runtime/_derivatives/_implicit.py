"""Outputs that are defined by an equation: derivatives by the implicit function theorem.

Where `solve` finds y with r(x, y) = 0, the derivative does not depend on how y was found. With A = ∂r/∂y
and B = ∂r/∂x at the solution,

    A ẏ = −B ẋ              one linear solve for a tangent,
    Aᵀ λ = ȳ,  x̄ = −Bᵀ λ    one transposed solve for a cotangent,

so no iteration of the solver is differentiated or stored. The author gives A and B as matrices or as
products, and the solves; what is not given is taken by finite differences of r, with two evaluations
per unknown for A and per input element for B. `jax_recipes.jax_implicit` takes them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule._device import own_copy
from chainrule._errors import ComponentError, DefinitionError, PathError
from chainrule._trees import flatten_with_paths
from chainrule.runtime._derivatives._differences import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)
from chainrule.runtime._derivatives._layout import (
    Layout,
    answered,
    as_cotangent,
    canonical,
    check_keys,
    read_arrays,
)
from chainrule.runtime._derivatives._stencils import Algorithm
from chainrule.runtime._residuals import ResidualStore, own, split_content
from chainrule.runtime._schema import number_kind

Solve = Callable[[Any, Any, dict[str, np.ndarray]], Mapping[str, Any]]
# Relative residual. A derivative of double precision should not lose digits here; the rest is up to the
# condition of the matrix.
GMRES_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Products:
    """A partial derivative M of the residual, known by its products only.

    Attributes:
        push: `push(inputs, outputs, vector)` is M · vector. The vector is named like what is moved, the
            result like the residual.
        pull: `pull(inputs, outputs, vector)` is Mᵀ · vector, the other way round. It may name more paths
            than are asked for.
    """

    push: Solve
    pull: Solve


@dataclass(frozen=True, eq=False)
class ImplicitFunction:
    """The endpoints of a component whose outputs solve r(inputs, outputs) = 0.

    Attributes:
        solve: `solve(inputs) -> outputs`.
        residual: `residual(inputs, outputs) -> mapping` of arrays, zero at the solution, with as many
            elements as the unknowns.
        unknowns: output paths that the residual determines; all floating-point arrays unless given.
        solve_linear: `solve_linear(inputs, outputs, right)` solves A z = right; `right` is named like
            the residual, z like the unknowns. A dense (or, with `sparsity`, sparse) direct solve
            otherwise.
        solve_transpose: the same for Aᵀ; `right` is named like the unknowns, z like the residual.
        by_inputs: B = ∂r/∂inputs, as a function of `(inputs, outputs)` that returns
            `{residual path: {input path: block}}` (or the block alone where there is one of each), or as
            `Products`. A block is an array of residual shape + input shape, the same as a matrix, or a
            SciPy sparse matrix.
        by_outputs: A = ∂r/∂outputs, in the same way with paths of unknowns. A matrix is factorised; with
            `Products` the systems are solved by GMRES.
        algorithm: how the residual is differenced; `"complex_step"` is exact where it is supported.
        sparsity: of A, as `{residual path: {unknown path: block}}` or one block.

    Example:
        >>> root = ImplicitFunction(
        ...     solve=lambda x: {"y": np.sqrt(x["a"])},
        ...     residual=lambda x, y: {"r": y["y"] ** 2 - x["a"]},
        ... )
        >>> root.vector_jacobian_product({"a": 4.0}, {"a"}, {"y"}, {"y": 1.0})["a"].round(6)
        np.float64(0.25)
    """

    solve: Callable[[Any], Any]
    residual: Callable[[Any, Any], Mapping[str, Any]]
    _: KW_ONLY
    unknowns: Collection[str] | None = None
    solve_linear: Solve | None = None
    solve_transpose: Solve | None = None
    by_inputs: Callable[[Any, Any], Any] | Products | None = None
    by_outputs: Callable[[Any, Any], Any] | Products | None = None
    algorithm: Algorithm = "central"
    sparsity: Any = None
    _solutions: ResidualStore = field(
        init=False, repr=False, default_factory=lambda: ResidualStore(4)
    )

    def apply(self, inputs: Any) -> Any:
        """The solution. The last few are remembered for the derivatives that follow."""
        return self.solution(inputs)

    def solution(self, inputs: Any) -> Any:
        """A copy of the remembered solution."""
        rest, arrays = split_content(inputs)
        found = None if rest is None else self._solutions.find(rest, arrays)
        if found is None:
            found = own_copy(self.solve(own_copy(inputs)))
            if rest is not None:
                self._solutions.keep(rest, own(arrays), found, 0)
        return own_copy(found)

    def jacobian_vector_product(
        self,
        inputs: Any,
        jvp_inputs: Collection[str],
        jvp_outputs: Collection[str],
        tangent_vector: Mapping[str, Any],
    ) -> dict[str, np.ndarray]:
        """ẏ from A ẏ = −B ẋ."""
        at = _Point(self, inputs)
        at.require_unknowns(jvp_outputs)
        check_keys(tangent_vector, canonical(jvp_inputs), "tangent_vector")
        moved = at.push(tangent_vector)
        return _pick(at.solve(-at.equations.join(moved)), at, jvp_outputs)

    def vector_jacobian_product(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
    ) -> dict[str, np.ndarray]:
        """x̄ = −Bᵀ λ with Aᵀ λ = ȳ."""
        at = _Point(self, inputs)
        at.require_unknowns(vjp_outputs)
        check_keys(cotangent_vector, canonical(vjp_outputs), "cotangent_vector")
        # x̄ = (-A⁻¹B)ᵀ ȳ = -Bᵀ A⁻ᵀ ȳ: the transposed system comes first, for any number of inputs. The
        # right side has all unknowns, because every row of Aᵀ belongs to one; those that were not selected
        # have the cotangent 0.
        weights = {p: np.zeros(s) for p, s in zip(at.state.paths, at.state.shapes, strict=True)}
        multipliers = at.solve_transpose(at.state.join(weights | dict(cotangent_vector)))
        return at.pull(canonical(vjp_inputs), at.equations.split(-multipliers))

    def jacobian(
        self, inputs: Any, jac_inputs: Collection[str], jac_outputs: Collection[str]
    ) -> dict[str, dict[str, np.ndarray]]:
        """−A⁻¹ B, with one solve for all columns."""
        at = _Point(self, inputs)
        at.require_unknowns(jac_outputs)
        columns = Layout.of(read_arrays(inputs, canonical(jac_inputs)))
        # The forward solve for one right side per column of B. Rows of the answer that were not asked for are
        # dropped afterwards: A⁻¹ couples all unknowns, so none can be left out of the solve.
        right = at.input_matrix(columns.paths)
        blocks = at.state.split_matrix(at.solve(-right), columns)
        return {path: blocks[path] for path in canonical(jac_outputs)}


def _pick(vector: np.ndarray, at: _Point, paths: Collection[str]) -> dict[str, np.ndarray]:
    parts = at.state.split(vector)
    return {path: parts[path] for path in canonical(paths)}


class _Point:
    """The linear algebra of an implicit function at one solution."""

    def __init__(self, function: ImplicitFunction, inputs: Any) -> None:
        self._function = function
        self._inputs = inputs
        self._outputs = function.solution(inputs)
        unknowns = function.unknowns
        names = _floating(self._outputs) if unknowns is None else canonical(unknowns)
        arrays = read_arrays(self._outputs, names)
        self.state = Layout.of(arrays)
        self._dtype = np.result_type(np.float64, *arrays.values())
        residual = function.residual(*self._arguments)
        self.equations = Layout.of(read_arrays(residual, canonical(residual)))
        if self.state.size != self.equations.size:
            raise DefinitionError(
                f"The residual has {self.equations.size} elements for {self.state.size} unknowns "
                f"({', '.join(self.state.paths)}). Name the outputs it determines with unknowns=.",
                code="residual_size_mismatch",
            )

    def require_unknowns(self, paths: Collection[str]) -> None:
        """Refuse outputs that the residual does not determine: it says nothing of their derivatives."""
        others = sorted(set(canonical(paths)) - set(self.state.paths))
        if others:
            raise PathError(
                f"The residual determines {', '.join(self.state.paths)}; the derivative of {others[0]!r} "
                f"does not follow from it. Add an equation for {others[0]!r} to the residual and its path to "
                "unknowns=, or compute it from the unknowns outside of the component.",
                code="path_not_differentiable",
                path=others[0],
            )

    def solve(self, right: np.ndarray) -> np.ndarray:
        """A⁻¹ right, for a vector or the columns of a matrix."""
        return self._solve(right, self._function.solve_linear, self.equations, self.state, False)

    def solve_transpose(self, right: np.ndarray) -> np.ndarray:
        """A⁻ᵀ right."""
        return self._solve(right, self._function.solve_transpose, self.state, self.equations, True)

    def _solve(
        self,
        right: np.ndarray,
        user_solve: Solve | None,
        given: Layout,
        wanted: Layout,
        transposed: bool,
    ) -> np.ndarray:
        if user_solve is None and isinstance(self._function.by_outputs, Products):
            return self._solve_by_products(self._function.by_outputs, right, transposed)
        if user_solve is None:
            return _direct_solve(self._state_matrix(), right, transposed)
        columns = [
            wanted.join(user_solve(*self._arguments, own_copy(given.split(column))))
            for column in np.atleast_2d(right.T)
        ]
        return np.array(columns).T.reshape(right.shape)

    def _solve_by_products(
        self, products: Products, right: np.ndarray, transposed: bool
    ) -> np.ndarray:
        from scipy.sparse.linalg import LinearOperator, gmres

        # Aᵀ takes what is named like the residual (λ) and answers like the unknowns; A the other way round.
        product = products.pull if transposed else products.push
        given, answer = (self.equations, self.state) if transposed else (self.state, self.equations)

        def matvec(vector: np.ndarray) -> np.ndarray:
            return answer.join(product(*self._arguments, own_copy(given.split(vector.ravel()))))

        size = self.state.size
        operator = LinearOperator((size, size), matvec=matvec, dtype=self._dtype)
        columns = []
        for column in np.atleast_2d(right.T):
            # In exact arithmetic GMRES without a restart ends after `size` steps, so up to 200 unknowns it is
            # not restarted. It keeps one vector per step, which bounds the memory at 200 vectors; a restart
            # may stagnate, which `info` says.
            found, info = gmres(
                operator, column, rtol=GMRES_TOLERANCE, restart=min(size, 200), maxiter=20
            )
            if info:
                raise ComponentError(
                    f"GMRES did not solve the linear system of {size} unknowns with the products "
                    "by_outputs. Give solve_linear and solve_transpose, or a matrix.",
                    code="residual_singular",
                )
            columns.append(found)
        return np.array(columns).T.reshape(right.shape)

    def push(self, tangent: Mapping[str, Any]) -> Mapping[str, Any]:
        """B ẋ."""
        given = self._function.by_inputs
        columns = Layout.of(read_arrays(self._inputs, canonical(tangent)))
        if isinstance(given, Products):
            vector = columns.split(columns.join(tangent))
            return given.push(*self._arguments, own_copy(vector))
        if given is not None:
            product = self._given_matrix(given, columns) @ columns.join(tangent)
            return self.equations.split(np.asarray(product))
        names = {f"inputs.{path}": vector for path, vector in tangent.items()}
        return finite_difference_jvp(
            self._residual_of_both, self._both, names, self.equations.paths, names, **self._options
        )

    def pull(
        self, paths: tuple[str, ...], multipliers: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Bᵀ λ."""
        given = self._function.by_inputs
        if given is not None:
            arrays = read_arrays(self._inputs, paths)
            pulled = self._pull_given(given, Layout.of(arrays), multipliers)
            return {path: as_cotangent(arrays[path], pulled[path]) for path in paths}
        names = [f"inputs.{path}" for path in paths]
        gradient = finite_difference_vjp(
            self._residual_of_both,
            self._both,
            names,
            self.equations.paths,
            multipliers,
            **self._options,
        )
        return {path: gradient[name] for path, name in zip(paths, names, strict=True)}

    def _pull_given(
        self,
        given: Callable[[Any, Any], Any] | Products,
        columns: Layout,
        multipliers: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        if not isinstance(given, Products):
            matrix = self._given_matrix(given, columns)
            return columns.split(np.asarray(matrix.T @ self.equations.join(multipliers)))
        pulled = given.pull(*self._arguments, own_copy(dict(multipliers)))
        return {
            path: np.asarray(answered(pulled, path, "by_inputs.pull")) for path in columns.paths
        }

    def input_matrix(self, paths: tuple[str, ...]) -> np.ndarray:
        """B."""
        given = self._function.by_inputs
        if given is None:
            return self._matrix([f"inputs.{path}" for path in paths], None)
        columns = Layout.of(read_arrays(self._inputs, paths))
        if not isinstance(given, Products):
            matrix = self._given_matrix(given, columns)
            return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
        units = (columns.split(unit) for unit in np.eye(columns.size))
        pushed = [self.equations.join(given.push(*self._arguments, unit)) for unit in units]
        return np.array(pushed).T.reshape(self.equations.size, columns.size)

    def _given_matrix(self, given: Callable[[Any, Any], Any], columns: Layout) -> Any:
        """The author's partial derivative over some columns, dense or as a SciPy sparse matrix."""
        blocks = given(*self._arguments)
        if not isinstance(blocks, Mapping):
            blocks = {self.equations.paths[0]: {columns.paths[0]: blocks}}
        heights, widths = _sizes(self.equations), _sizes(columns)
        rows = [
            [
                _given_block(blocks, row, path, (heights[row], widths[path]))
                for path in columns.paths
            ]
            for row in self.equations.paths
        ]
        return _joined(rows)

    def _state_matrix(self) -> Any:
        """A, dense or as a SciPy sparse matrix."""
        given = self._function.by_outputs
        if given is not None and not isinstance(given, Products):
            return self._given_matrix(given, self.state)
        names = [f"state.{path}" for path in self.state.paths]
        sparsity = self._function.sparsity
        if isinstance(sparsity, Mapping):
            sparsity = {
                out: {f"state.{p}": block for p, block in row.items()}
                for out, row in sparsity.items()
            }
        return self._matrix(names, sparsity)

    def _matrix(self, names: list[str], sparsity: Any) -> Any:
        blocks = finite_difference_jacobian(
            self._residual_of_both,
            self._both,
            names,
            self.equations.paths,
            sparsity=sparsity,
            **self._options,
        )
        rows = [
            [_as_matrix(row[name], self._both, name) for name in names] for row in blocks.values()
        ]
        return _joined(rows)

    @property
    def _arguments(self) -> tuple[Any, Any]:
        """Inputs and outputs for one call of the author's code, which may overwrite them."""
        return own_copy(self._inputs), own_copy(self._outputs)

    @property
    def _both(self) -> dict[str, Any]:
        return {"inputs": self._inputs, "state": self._outputs}

    def _residual_of_both(self, both: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._function.residual(both["inputs"], both["state"])

    @property
    def _options(self) -> dict[str, Any]:
        return {"algorithm": self._function.algorithm, "eps": "auto", "show_progress": False}


def _floating(outputs: Any) -> tuple[str, ...]:
    leaves = flatten_with_paths(outputs)
    return canonical(p for p, leaf in leaves.items() if number_kind(np.asarray(leaf).dtype) in "fc")


def _sizes(layout: Layout) -> dict[str, int]:
    return {path: part.stop - part.start for path, part in layout.slices().items()}


def _given_block(blocks: Any, row: str, path: str, shape: tuple[int, int]) -> Any:
    """One block of an author's partial derivative as a matrix."""
    block = answered(answered(blocks, row, "derivative of the residual"), path, f"block {row!r}")
    is_sparse = hasattr(block, "tocsc")
    matrix = block if is_sparse else np.asarray(block)
    if not is_sparse:
        matrix = matrix.astype(np.result_type(matrix, np.float64), copy=False)
    if int(np.prod(matrix.shape, dtype=np.int64)) != shape[0] * shape[1] or (
        is_sparse and tuple(matrix.shape) != shape
    ):
        raise ComponentError(
            f"The derivative of the residual {row!r} with respect to {path!r} has shape "
            f"{list(matrix.shape)}, expected {list(shape)}: one row per equation, one column per element.",
            code="bad_output",
            path=path,
        )
    return matrix if is_sparse else matrix.reshape(shape)


def _joined(rows: list[list[Any]]) -> Any:
    """One matrix of blocks: sparse where a block is."""
    if not any(hasattr(block, "tocsc") for row in rows for block in row):
        return np.block(rows)
    from scipy.sparse import block_array, coo_array

    sparse = [[b if hasattr(b, "tocsc") else coo_array(b) for b in row] for row in rows]
    return block_array(sparse, format="csc")


def _as_matrix(block: Any, tree: Any, column_path: str) -> Any:
    width = read_arrays(tree, [column_path])[column_path].size
    if not isinstance(block, SparseArray):
        return np.asarray(block).reshape(-1, width)
    height = int(np.prod(block.shape, dtype=np.int64)) // max(width, 1)
    flat = np.ravel_multi_index(tuple(block.indices.T), block.shape)
    places = np.stack(np.divmod(flat, max(width, 1)), axis=-1)
    return SparseArray((height, width), places, block.values).to_scipy()


def _direct_solve(matrix: Any, right: np.ndarray, transposed: bool) -> np.ndarray:
    try:
        if isinstance(matrix, np.ndarray):
            return np.linalg.solve(matrix.T if transposed else matrix, right)
        from scipy.sparse.linalg import splu

        # "T" and not "H": the convention is Jᵀ without conjugation, also for complex numbers.
        return splu(matrix).solve(right, trans="T" if transposed else "N")
    except (np.linalg.LinAlgError, RuntimeError) as error:  # SciPy says it with a RuntimeError
        raise ComponentError(
            "The derivative of the residual with respect to the outputs is singular here, so the "
            "residual does not determine them: there is no derivative at these inputs, or an equation "
            "is missing.",
            code="residual_singular",
        ) from error
