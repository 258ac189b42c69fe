"""A component as a `casadi.Callback`.

Every differentiable leaf is an argument or result, a column vector in C order, named after its path. CasADi
asks a function for other functions, its derivatives, which are Callbacks as well:

    function      x → y                                  apply
    forward       x, y, ẋ → ẏ                            JVP
    reverse       x, y, ȳ → x̄                            VJP
    Jacobian      x, y → ∂y/∂x                           Jacobian, one block per pair

These have derivatives in turn, which Hessians and the sensitivities of integrators need. With H(u) the
Hessian of uᵀf, of which the component gives products with vectors:

                       its derivative along ẋ', ẏ' or ȳ'       its products with a cotangent a
    ẏ = J ẋ            J ẋ' + (ẋᵀ H(eₖ) x')ₖ                   x: H(a) ẋ,   ẋ: Jᵀ a
    x̄ = Jᵀ ȳ           H(ȳ) x' + Jᵀ ȳ'                         x: H(ȳ) a,   ȳ: J a

Two things differ from functions that CasADi makes itself. It does not keep Python's Callbacks alive, so the
first one keeps all that were made of it. And it turns exceptions into text, which solvers drop: the first one
is kept as `error`, and `raise_error` raises it after the solve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import casadi
from chainrule._codec import flat_entries
from chainrule._doors import (
    as_identifier,
    asking_for_example,
    distinct_identifiers,
    real_leaves,
)
from chainrule._endpoints import HVP, JACOBIAN, JVP, VJP
from chainrule._errors import ComponentError
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
            Jacobians. They have to be those of every other point: CasADi puts columns without a common row
            into one product.
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
        _Program(component, example, sparse),
        name or as_identifier(component.name),
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

    def __init__(self, component: Any, example: Mapping[str, Any] | None, sparse: bool) -> None:
        self._component = component
        with asking_for_example(component, example):
            self._tree = complete_inputs(component, example or {})
            at_example = component.apply(self._tree)
        document = Document(component.openapi_schema)
        self.inputs = real_leaves(document.leaves("inputs", self._tree), "CasADi")
        self.outputs = real_leaves(document.leaves("outputs", at_example), "CasADi")
        self.input_names, self.output_names = (
            distinct_identifiers([leaf.path for leaf in leaves], "CasADi")
            for leaves in (self.inputs, self.outputs)
        )
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
        pattern = self._patterns.get((of.path, wrt.path))
        return casadi.Sparsity.dense(of.size, wrt.size) if pattern is None else pattern.sparsity

    def _blocks(self, tree: Any) -> Any:
        paths = [leaf.path for leaf in self.inputs], [leaf.path for leaf in self.outputs]
        return self._component.jacobian(tree, *paths)

    def _find_patterns(self, sparse: bool) -> dict[tuple[str, str], _Pattern]:
        if not sparse or not self.has(JACOBIAN.endpoint):
            return {}
        found = self._blocks(self._tree)
        # Found at the example: an author's `SparseArray` says where entries can be, not which are zero there
        # by chance.
        return {
            (of.path, wrt.path): _Pattern.of(block, of, wrt)
            for of in self.outputs
            for wrt in self.inputs
            if isinstance(block := found[of.path][wrt.path], SparseArray)
        }


class _Pattern(NamedTuple):
    """Where a block of the Jacobian has entries.

    Attributes:
        places: in the flattened block, in order.
        sparsity: the same for CasADi.
    """

    places: np.ndarray
    sparsity: Any

    @classmethod
    def of(cls, block: SparseArray, of: Leaf, wrt: Leaf) -> _Pattern:
        """The pattern of one block."""
        places, _ = flat_entries(block)
        rows, columns = _rows_and_columns(places, wrt)
        return cls(places, casadi.Sparsity.triplet(of.size, wrt.size, rows, columns))


def _array(matrix: Any, leaf: Leaf) -> np.ndarray:
    # Arguments are single columns, written by `_column` in the order of C: CasADi's own order of a matrix, by
    # columns, plays no part.
    return matrix.full().reshape(leaf.shape).astype(leaf.dtype, copy=False)


def _column(value: Any) -> Any:
    # CasADi reads a list several times faster than an array.
    return casadi.DM(np.ravel(np.asarray(value, float)).tolist())


def _rows_and_columns(places: np.ndarray, wrt: Leaf) -> tuple[list[int], list[int]]:
    rows, columns = np.divmod(places, max(1, wrt.size))
    return rows.tolist(), columns.tolist()


def _matrix(block: Any, of: Leaf, wrt: Leaf, pattern: _Pattern | None) -> Any:
    if pattern is None:
        dense = block.todense() if isinstance(block, SparseArray) else np.asarray(block, float)
        return casadi.DM(dense.reshape(of.size, wrt.size))
    places, values = flat_entries(block)
    if (values[~np.isin(places, pattern.places)] != 0).any():
        raise ComponentError(
            f"The Jacobian of {of.path} by {wrt.path} has other non-zero entries than in the example. Leave "
            "`sparse=True` out, or return these entries at every point.",
            code="bad_output",
        )
    found = casadi.DM.triplet(*_rows_and_columns(places, wrt), values.tolist(), of.size, wrt.size)
    return casadi.project(found, pattern.sparsity)


class _Callback(casadi.Callback):
    """A callback whose arguments and results are listed, and whose first error is kept.

    CasADi's conventions for a function of `a` with results `b`: its forward derivative has the arguments
    (a, b, ȧ) and the results ḃ, its reverse derivative the arguments (a, b, b̄) and the results ā.
    """

    forward_rule: _Derivative | None = None
    reverse_rule: _Derivative | None = None

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

    def has_forward(self, count: int) -> bool:
        """Whether there is a forward derivative; CasADi asks for one direction at a time."""
        return count == 1 and self._can_answer(self.forward_rule)

    def has_reverse(self, count: int) -> bool:
        """Whether there is a reverse derivative."""
        return count == 1 and self._can_answer(self.reverse_rule)

    def _can_answer(self, derivative: _Derivative | None) -> bool:
        return derivative is not None and all(map(self._program.has, derivative.endpoints))

    def get_forward(self, count: int, name: str, *names_and_options: Any) -> Any:
        """The forward derivative."""
        return self._derivative(
            self.forward_rule, name, self._arguments, self._results, *names_and_options
        )

    def get_reverse(self, count: int, name: str, *names_and_options: Any) -> Any:
        """The reverse derivative."""
        return self._derivative(
            self.reverse_rule, name, self._results, self._arguments, *names_and_options
        )

    def _derivative(
        self,
        derivative: Any,
        name: str,
        seeds: Sequence[Any],
        results: Sequence[Any],
        names_in: Any,
        names_out: Any,
        options: Any,
    ) -> Any:
        arguments = [*self._arguments, *self._results, *seeds]
        names = names_in, names_out
        return derivative.callback(self._program, name, arguments, results, names, options)

    def eval(self, arguments: Sequence[Any]) -> list[Any]:
        """The results; the first error is kept for `raise_error`."""
        n, m = len(self._program.inputs), len(self._program.outputs)
        try:
            return self.compute(_Arguments(arguments, n, m))
        except Exception as error:
            self._program.error = self._program.error or error
            raise

    def compute(self, arguments: _Arguments) -> list[Any]:
        """The results."""
        raise NotImplementedError


class _Derivative(NamedTuple):
    """A derivative of a callback: what computes it, and what the component needs for that."""

    callback: type[_Callback]
    endpoints: tuple[str, ...]


class _Arguments:
    """The arguments of a callback, taken one group after the other.

    Args:
        arguments: of CasADi.
        inputs: how many the component has.
        outputs: the same.
    """

    def __init__(self, arguments: Sequence[Any], inputs: int, outputs: int) -> None:
        self._rest = list(arguments)
        self._inputs = inputs
        self._outputs = outputs

    def inputs(self) -> list[Any]:
        """One for each input of the component."""
        return self._take(self._inputs)

    def outputs(self) -> list[Any]:
        """One for each output."""
        return self._take(self._outputs)

    def _take(self, count: int) -> list[Any]:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def _columns(leaves: Sequence[Leaf]) -> list[Any]:
    return [casadi.Sparsity.dense(leaf.size, 1) for leaf in leaves]


def _zeros(columns: Sequence[Any]) -> list[Any]:
    return [casadi.DM.zeros(*column.shape) for column in columns]


def _sum(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _is_zero(columns: Sequence[Any]) -> bool:
    return not any(column.full().any() for column in columns)


class _ForwardOfForward(_Callback):
    """x, y, ẋ, ẏ, x', y', ẋ' → the derivative of ẏ = J ẋ."""

    def compute(self, arguments: _Arguments) -> list[Any]:
        """J ẋ' + (ẋᵀ H(eₖ) x')ₖ: one product with a Hessian for each element of the outputs."""
        x, y, tangents, _ = (
            arguments.inputs(), arguments.outputs(), arguments.inputs(), arguments.outputs()
        )  # fmt: skip
        moved, _, turned = arguments.inputs(), arguments.outputs(), arguments.inputs()
        found = _zeros(y) if _is_zero(turned) else self._program.push(x, turned)
        if _is_zero(moved) or _is_zero(tangents):
            return found
        cotangents = _zeros(y)
        for cotangent, column in zip(cotangents, found, strict=True):
            for k in range(cotangent.numel()):
                cotangent[k] = 1.0
                bent = self._program.bend(x, cotangents, tangents)
                column[k] += sum(casadi.dot(b, m) for b, m in zip(bent, moved, strict=True))
                cotangent[k] = 0.0
        return found


class _ReverseOfForward(_Callback):
    """x, y, ẋ, ẏ, a → the gradient of aᵀ J ẋ."""

    def compute(self, arguments: _Arguments) -> list[Any]:
        """H(a) ẋ for x, nothing for y, and Jᵀ a for ẋ."""
        x, y, tangents, _ = (
            arguments.inputs(), arguments.outputs(), arguments.inputs(), arguments.outputs()
        )  # fmt: skip
        weights = arguments.outputs()
        bent = self._program.bend(x, weights, tangents)
        # J(x) ẋ does not depend on y: CasADi hands the outputs over as arguments of their own, and their
        # gradient is zero.
        return [*bent, *_zeros(y), *self._program.pull(x, weights)]


class _ForwardOfReverse(_Callback):
    """x, y, ȳ, x̄, x', y', ȳ' → the derivative of x̄ = Jᵀ ȳ."""

    def compute(self, arguments: _Arguments) -> list[Any]:
        """H(ȳ) x' + Jᵀ ȳ'; a product is left out where its vector is zero."""
        x, _, cotangents, _ = (
            arguments.inputs(), arguments.outputs(), arguments.outputs(), arguments.inputs()
        )  # fmt: skip
        moved, _, turned = arguments.inputs(), arguments.outputs(), arguments.outputs()
        found = _zeros(x) if _is_zero(moved) else self._program.bend(x, cotangents, moved)
        return found if _is_zero(turned) else _sum(found, self._program.pull(x, turned))


class _ReverseOfReverse(_Callback):
    """x, y, ȳ, x̄, a → the gradient of aᵀ Jᵀ ȳ."""

    def compute(self, arguments: _Arguments) -> list[Any]:
        """H(ȳ) a for x, nothing for y, and J a for ȳ."""
        x, y, cotangents, _ = (
            arguments.inputs(), arguments.outputs(), arguments.outputs(), arguments.inputs()
        )  # fmt: skip
        weights = arguments.inputs()
        bent = self._program.bend(x, cotangents, weights)
        return [*bent, *_zeros(y), *self._program.push(x, weights)]


class _Forward(_Callback):
    """x, y, ẋ → ẏ = J ẋ."""

    forward_rule = _Derivative(_ForwardOfForward, (HVP.endpoint, JVP.endpoint))
    reverse_rule = _Derivative(_ReverseOfForward, (HVP.endpoint, VJP.endpoint))

    def compute(self, arguments: _Arguments) -> list[Any]:
        """J ẋ."""
        x, _, tangents = arguments.inputs(), arguments.outputs(), arguments.inputs()
        return self._program.push(x, tangents)


class _Reverse(_Callback):
    """x, y, ȳ → x̄ = Jᵀ ȳ."""

    forward_rule = _Derivative(_ForwardOfReverse, (HVP.endpoint, VJP.endpoint))
    reverse_rule = _Derivative(_ReverseOfReverse, (HVP.endpoint, JVP.endpoint))

    def compute(self, arguments: _Arguments) -> list[Any]:
        """Jᵀ ȳ."""
        x, _, cotangents = arguments.inputs(), arguments.outputs(), arguments.outputs()
        return self._program.pull(x, cotangents)


class _Jacobian(_Callback):
    """x, y → all blocks of the Jacobian."""

    def compute(self, arguments: _Arguments) -> list[Any]:
        """The blocks."""
        return self._program.jacobian(arguments.inputs())


class ComponentFunction(_Callback):
    """A component as a function of CasADi; `chainrule.casadi.function` makes one.

    Attributes:
        error: the first exception of the component since the last `raise_error`; `None` without one.
    """

    forward_rule = _Derivative(_Forward, (JVP.endpoint,))
    reverse_rule = _Derivative(_Reverse, (VJP.endpoint,))

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

    def compute(self, arguments: _Arguments) -> list[Any]:
        """The outputs."""
        return self._program.apply(arguments.inputs())

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
        blocks = [
            self._program.jacobian_sparsity(of, wrt)
            for of in range(self.get_n_out())
            for wrt in range(self.get_n_in())
        ]
        arguments = [*self._arguments, *self._results]
        return _Jacobian(self._program, name, arguments, blocks, (names_in, names_out), options)
