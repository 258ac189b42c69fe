"""A component as a `casadi.Callback`.

Every differentiable leaf is an argument or result, a column vector in C order, named after its path. CasADi
asks a function for other functions, its derivatives, which are Callbacks as well:

    function      x → y                                  apply
    forward       x, y, ẋ → ẏ                            JVP
    reverse       x, y, ȳ → x̄                            VJP
    Jacobian      x, y → ∂y/∂x                           Jacobian, one block per pair
    forward of reverse: the derivative of x̄ = Jᵀ ȳ       HVP(ȳ, ẋ) + VJP(ȳ̇)

Two things differ from functions that CasADi makes itself. It does not keep Python's Callbacks alive, so the
first one keeps all that were made of it. And it turns exceptions into text, which solvers drop: the first one
is kept as `error`, and `raise_error` raises it after the solve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import casadi
from chainrule._endpoints import HVP, JACOBIAN, JVP, VJP
from chainrule._errors import InputError
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime import SparseArray
from chainrule.runtime.internal import Document, Leaf, complete_inputs


def function(
    component: Any,
    example: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    sparse: bool = False,
    finite_differences: bool = False,
) -> ComponentFunction:
    """A component for expressions, solvers and integrators of CasADi.

    Args:
        component: a component of Chainrule, in this process or behind a handle.
        example: inputs that say the shapes of open dimensions and the values of everything that does not
            vary; defaults of the schema need not be given.
        name: of the function; that of the component by default.
        sparse: declare the entries that the Jacobian has in the example, for components with sparse
            Jacobians.
        finite_differences: let CasADi take differences of a component without derivatives.

    Returns:
        A `casadi.Callback`. Keep it as long as expressions use it.

    Raises:
        InputError: the example does not fit, or two leaves have one name (`bad_schema`).

    Example:
        >>> import casadi
        >>> import chainrule.casadi
        >>> from chainrule.runtime import Array, Differentiable, Float64
        >>> @chainrule.component(derivatives="finite")
        ... def energy(x: Differentiable[Array[("n",), Float64]]) -> Differentiable[Float64]:
        ...     return (x**2).sum()
        >>> f = chainrule.casadi.function(energy, {"x": [0.0, 0.0]})
        >>> x = casadi.MX.sym("x", 2)
        >>> gradient = casadi.Function("g", [x], [casadi.gradient(f(x), x)])
        >>> print(gradient([1.0, 3.0]).full().round(6).ravel())
        [2. 6.]
    """
    return ComponentFunction(
        _Program(component, example or {}, sparse),
        name or re.sub(r"\W+", "_", component.name),
        {"enable_fd": True} if finite_differences else {},
    )


class _Program:
    """What the callbacks of one component share: its leaves and its endpoints.

    Attributes:
        inputs: the leaves that vary.
        outputs: the differentiable outputs.
        error: the first exception of a call.
        kept: all callbacks that were made.
    """

    def __init__(self, component: Any, example: Mapping[str, Any], sparse: bool) -> None:
        self._component = component
        self._tree = complete_inputs(component, example)
        document = Document(component.openapi_schema)
        self.inputs = document.leaves("inputs", self._tree)
        self.outputs = document.leaves("outputs", component.apply(self._tree))
        self.input_names = _names(self.inputs)
        self.output_names = _names(self.outputs)
        self.error: Exception | None = None
        self.kept: list[casadi.Callback] = []
        self._patterns = self._find_patterns(sparse)

    def has(self, endpoint: str) -> bool:
        """Whether the component can answer."""
        return endpoint in self._component.available_endpoints

    def tree(self, arguments: Sequence[Any]) -> Any:
        """The component's inputs at CasADi's arguments."""
        values = {
            leaf.path: _array(a, leaf) for a, leaf in zip(arguments, self.inputs, strict=True)
        }
        return set_at_path(self._tree, values)

    def apply(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs."""
        found = self._component.apply(self.tree(arguments))
        return [_column(get_at_path(found, leaf.path)) for leaf in self.outputs]

    def push(self, arguments: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """J · tangents."""
        vector = {leaf.path: _array(t, leaf) for t, leaf in zip(tangents, self.inputs, strict=True)}
        paths = [leaf.path for leaf in self.outputs]
        found = self._component.jacobian_vector_product(
            self.tree(arguments), list(vector), paths, vector
        )
        return [_column(found[path]) for path in paths]

    def pull(self, arguments: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Jᵀ · cotangents."""
        vector = {
            leaf.path: _array(u, leaf) for u, leaf in zip(cotangents, self.outputs, strict=True)
        }
        paths = [leaf.path for leaf in self.inputs]
        found = self._component.vector_jacobian_product(
            self.tree(arguments), paths, list(vector), vector
        )
        return [_column(found[path]) for path in paths]

    def bend(
        self, arguments: Sequence[Any], cotangents: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        """The derivative of Jᵀ · cotangents along tangents of the inputs."""
        tangent = {
            leaf.path: _array(t, leaf) for t, leaf in zip(tangents, self.inputs, strict=True)
        }
        cotangent = {
            leaf.path: _array(u, leaf) for u, leaf in zip(cotangents, self.outputs, strict=True)
        }
        found = self._component.hessian_vector_product(
            self.tree(arguments), list(tangent), list(cotangent), cotangent, tangent
        )
        return [_column(found[leaf.path]) for leaf in self.inputs]

    def jacobian(self, arguments: Sequence[Any]) -> list[Any]:
        """One block for every pair, outputs first, as CasADi's matrices."""
        found = self._blocks(self.tree(arguments))
        return [
            _matrix(found[of.path][wrt.path], of, wrt, self._patterns.get((of.path, wrt.path)))
            for of in self.outputs
            for wrt in self.inputs
        ]

    def jacobian_sparsity(self, output: int, argument: int) -> Any:
        """The pattern of one block."""
        of, wrt = self.outputs[output], self.inputs[argument]
        dense = casadi.Sparsity.dense(of.size, wrt.size)
        return self._patterns.get((of.path, wrt.path), dense)

    def _blocks(self, tree: Any) -> Any:
        paths = [leaf.path for leaf in self.inputs], [leaf.path for leaf in self.outputs]
        return self._component.jacobian(tree, *paths)

    def _find_patterns(self, sparse: bool) -> dict[tuple[str, str], Any]:
        if not sparse or not self.has(JACOBIAN.endpoint):
            return {}
        patterns = {}
        found = self._blocks(self._tree)
        for of in self.outputs:
            for wrt in self.inputs:
                block = found[of.path][wrt.path]
                if isinstance(block, SparseArray):
                    rows, columns = _coordinates(block, wrt)
                    patterns[of.path, wrt.path] = casadi.Sparsity.triplet(
                        of.size, wrt.size, rows.tolist(), columns.tolist()
                    )
        return patterns


def _names(leaves: Sequence[Leaf]) -> list[str]:
    names = [re.sub(r"\W+", "_", leaf.path).strip("_") for leaf in leaves]
    if len(set(names)) < len(names):
        raise InputError(
            f"Two of {', '.join(leaf.path for leaf in leaves)} have one name in CasADi; rename a field.",
            code="bad_schema",
        )
    return names


def _array(matrix: Any, leaf: Leaf) -> np.ndarray:
    return matrix.full().reshape(leaf.shape).astype(leaf.dtype, copy=False)


def _column(value: Any) -> Any:
    # CasADi reads a list several times faster than an array.
    return casadi.DM(np.ravel(np.asarray(value, float)).tolist())


def _coordinates(block: SparseArray, wrt: Leaf) -> tuple[np.ndarray, np.ndarray]:
    flat = np.ravel_multi_index(tuple(block.indices.T), block.shape)
    rows, columns = np.divmod(flat, max(1, wrt.size))
    return rows, columns


def _matrix(block: Any, of: Leaf, wrt: Leaf, pattern: Any) -> Any:
    if pattern is None:
        dense = block.todense() if isinstance(block, SparseArray) else np.asarray(block, float)
        return casadi.DM(dense.reshape(of.size, wrt.size))
    rows, columns = _coordinates(block, wrt)
    values = np.asarray(block.values, float).tolist()
    found = casadi.DM.triplet(rows.tolist(), columns.tolist(), values, of.size, wrt.size)
    return casadi.project(found, pattern)


class _Callback(casadi.Callback):
    """A callback whose arguments and results are listed, and whose first error is kept."""

    def __init__(
        self,
        program: _Program,
        name: str,
        arguments: Sequence[Any],
        results: Sequence[Any],
        names: tuple[Sequence[str], Sequence[str]],
        options: Mapping[str, Any],
    ) -> None:
        casadi.Callback.__init__(self)
        self._program = program
        self._arguments = list(arguments)
        self._results = list(results)
        self._names = names
        program.kept.append(self)
        self.construct(name, dict(options))

    def get_n_in(self) -> int:
        """Number of arguments."""
        return len(self._arguments)

    def get_n_out(self) -> int:
        """Number of results."""
        return len(self._results)

    def get_name_in(self, i: int) -> str:
        """Name of an argument."""
        return self._names[0][i]

    def get_name_out(self, i: int) -> str:
        """Name of a result."""
        return self._names[1][i]

    def get_sparsity_in(self, i: int) -> Any:
        """Shape of an argument."""
        return self._arguments[i]

    def get_sparsity_out(self, i: int) -> Any:
        """Shape of a result."""
        return self._results[i]

    def eval(self, arguments: Sequence[Any]) -> list[Any]:
        """The results; the first error is kept for `raise_error`."""
        try:
            return self.compute(arguments)
        except Exception as error:
            self._program.error = self._program.error or error
            raise

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """The results."""
        raise NotImplementedError


def _columns(leaves: Sequence[Leaf]) -> list[Any]:
    return [casadi.Sparsity.dense(leaf.size, 1) for leaf in leaves]


class ComponentFunction(_Callback):
    """A component as a function of CasADi; `chainrule.casadi.function` makes one.

    Attributes:
        error: the first exception of the component since the last `raise_error`; `None` without one.
    """

    def __init__(self, program: _Program, name: str, options: Mapping[str, Any]) -> None:
        names = program.input_names, program.output_names
        super().__init__(
            program, name, _columns(program.inputs), _columns(program.outputs), names, options
        )

    @property
    def error(self) -> Exception | None:
        """The first exception since the last `raise_error`."""
        return self._program.error

    def raise_error(self) -> None:
        """Raise the first exception of the component, if there was one; for use after a solve."""
        error, self._program.error = self._program.error, None
        if error is not None:
            raise error

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs."""
        return self._program.apply(arguments)

    def has_forward(self, count: int) -> bool:
        """Whether the component has JVPs; CasADi asks for one direction at a time."""
        return count == 1 and self._program.has(JVP.endpoint)

    def get_forward(
        self, count: int, name: str, names_in: Any, names_out: Any, options: Any
    ) -> Any:
        """The function of JVPs."""
        n = self._program.inputs, self._program.outputs
        shapes = [*_columns(n[0]), *_columns(n[1]), *_columns(n[0])]
        return _Forward(self._program, name, shapes, _columns(n[1]), (names_in, names_out), options)

    def has_reverse(self, count: int) -> bool:
        """Whether the component has VJPs."""
        return count == 1 and self._program.has(VJP.endpoint)

    def get_reverse(
        self, count: int, name: str, names_in: Any, names_out: Any, options: Any
    ) -> Any:
        """The function of VJPs."""
        n = self._program.inputs, self._program.outputs
        shapes = [*_columns(n[0]), *_columns(n[1]), *_columns(n[1])]
        return _Reverse(self._program, name, shapes, _columns(n[0]), (names_in, names_out), options)

    def has_jacobian(self) -> bool:
        """Whether the component has a Jacobian."""
        return self._program.has(JACOBIAN.endpoint)

    def has_jac_sparsity(self, output: int, argument: int) -> bool:
        """Whether the pattern of a block is known."""
        return True

    def get_jac_sparsity(self, output: int, argument: int, symmetric: bool) -> Any:
        """The pattern of a block."""
        return self._program.jacobian_sparsity(output, argument)

    def get_jacobian(self, name: str, names_in: Any, names_out: Any, options: Any) -> Any:
        """The function of Jacobians."""
        n = self._program.inputs, self._program.outputs
        blocks = [
            self._program.jacobian_sparsity(of, wrt)
            for of in range(len(n[1]))
            for wrt in range(len(n[0]))
        ]
        shapes = [*_columns(n[0]), *_columns(n[1])]
        return _Jacobian(self._program, name, shapes, blocks, (names_in, names_out), options)


class _Jacobian(_Callback):
    """x, y → all blocks of the Jacobian."""

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """The blocks."""
        return self._program.jacobian(arguments[: len(self._program.inputs)])


class _Forward(_Callback):
    """x, y, ẋ → ẏ."""

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """J ẋ."""
        n, m = len(self._program.inputs), len(self._program.outputs)
        return self._program.push(arguments[:n], arguments[n + m :])


class _Reverse(_Callback):
    """x, y, ȳ → x̄."""

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """Jᵀ ȳ."""
        n, m = len(self._program.inputs), len(self._program.outputs)
        return self._program.pull(arguments[:n], arguments[n + m :])

    def has_forward(self, count: int) -> bool:
        """Whether the component has second derivatives."""
        return count == 1 and self._program.has(HVP.endpoint)

    def get_forward(
        self, count: int, name: str, names_in: Any, names_out: Any, options: Any
    ) -> Any:
        """The function of second derivatives."""
        own = [self.get_sparsity_in(i) for i in range(self.get_n_in())]
        results = [self.get_sparsity_out(i) for i in range(self.get_n_out())]
        return _ForwardOfReverse(
            self._program, name, [*own, *results, *own], results, (names_in, names_out), options
        )


class _ForwardOfReverse(_Callback):
    """x, y, ȳ, x̄, ẋ, ẏ, ȳ̇ → the derivative of x̄."""

    def compute(self, arguments: Sequence[Any]) -> list[Any]:
        """x̄ = J(x)ᵀ ȳ, so its tangent is HVP(ȳ, ẋ) + Jᵀ ȳ̇; the product is left out where ȳ̇ = 0."""
        n, m = len(self._program.inputs), len(self._program.outputs)
        x, cotangents = arguments[:n], arguments[n + m : n + 2 * m]
        moved = arguments[2 * n + 2 * m :]
        tangents, turned = moved[:n], moved[n + m :]
        found = self._program.bend(x, cotangents, tangents)
        if any(each.full().any() for each in turned):
            pulled = self._program.pull(x, turned)
            found = [a + b for a, b in zip(found, pulled, strict=True)]
        return found
