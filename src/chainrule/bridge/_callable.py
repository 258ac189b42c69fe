"""Any Python callable as a JAX function: NumPy, SciPy, C behind `ctypes`, a subprocess."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from chainrule._errors import ComponentError, DefinitionError, InputError
from chainrule._trees import flatten_with_paths, map_with_paths
from chainrule.bridge._options import check_choice, check_count
from chainrule.bridge._site import types_of
from chainrule.bridge._skeleton import take_apart
from chainrule.bridge._target import HESSIAN_VECTOR_PRODUCT, Batching, Target
from chainrule.bridge._types import ArrayType, as_array_type, read_types
from chainrule.runtime.internal import JVP, VJP, DerivativeKind, own_copy


class CallableTarget(Target):
    """A function of positional arguments as a target; see `chainrule.from_callable`.

    Its input tree is the tuple of arguments, its output tree is what the function returns.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        jvp: Callable[[tuple[Any, ...], tuple[Any, ...]], Any] | None,
        vjp: Callable[[tuple[Any, ...], Any], Any] | None,
        hvp: Callable[[tuple[Any, ...], Any, tuple[Any, ...]], Any] | None,
        abstract: Callable[..., Any] | Literal["evaluate"] | Any | None,
        name: str | None,
        batching: Batching | None,
        max_concurrency: int,
    ) -> None:
        self._function = function
        self._products: dict[str, Any] = {
            JVP.endpoint: jvp,
            VJP.endpoint: vjp,
            HESSIAN_VECTOR_PRODUCT: hvp,
        }
        self._abstract = abstract
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        check_choice("batching", batching, (*get_args(Batching), None))
        check_count("max_concurrency", max_concurrency)
        self.batching = batching
        self.max_concurrency = max_concurrency
        known = {endpoint for endpoint, product in self._products.items() if product is not None}
        if isinstance(abstract, str):
            check_choice("abstract", abstract, ("evaluate",))
        is_unknown = abstract is None or isinstance(abstract, str)
        described = set() if is_unknown else {"abstract_eval"}
        self.endpoints = frozenset({"apply"} | known | described)

    def apply(self, inputs: tuple[Any, ...]) -> Any:
        """Call the function; plain numbers in its result become arrays."""
        return _with_arrays(self._function(*own_copy(inputs)))

    def abstract_eval(self, inputs: tuple[Any, ...]) -> Any:
        """What the author's description says about the result."""
        described = self._abstract(*inputs) if callable(self._abstract) else self._abstract
        if _is_shape(described):
            raise DefinitionError(
                f"`abstract` of {self.name} describes its result by the integers {described!r}, which look "
                "like a shape. Give shape and dtype: `jax.ShapeDtypeStruct(shape, dtype)`, or an array.",
                code="bad_abstract",
            )
        return types_of(_with_arrays(read_types(described)))

    def derivative(
        self,
        kind: DerivativeKind,
        inputs: tuple[Any, ...],
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vector: Mapping[str, np.ndarray] | None,
    ) -> Mapping[str, Any]:
        """A product, from whole trees: what was not given is zero, what was not asked for is dropped."""
        assert vector is not None
        if kind is JVP:
            answer = self._ask(kind.endpoint, inputs, _spread(inputs, vector))
            return flatten_with_paths(answer, output_paths)
        cotangents = _spread(self._output_types(inputs), vector)
        answer = self._ask(kind.endpoint, inputs, cotangents)
        return flatten_with_paths(self._check_tuple(answer, inputs), input_paths)

    def hessian_vector_product(
        self,
        inputs: tuple[Any, ...],
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        cotangents: Mapping[str, np.ndarray],
        tangents: Mapping[str, np.ndarray],
    ) -> Mapping[str, np.ndarray]:
        """The author's second derivative, from whole trees."""
        spread = _spread(self._output_types(inputs), cotangents)
        answer = self._ask(HESSIAN_VECTOR_PRODUCT, inputs, spread, _spread(inputs, tangents))
        return flatten_with_paths(self._check_tuple(answer, inputs), input_paths)

    def _ask(self, endpoint: str, *arguments: Any) -> Any:
        """Call a product of the author's."""
        return self._products[endpoint](*own_copy(arguments))

    def _check_tuple(self, answer: Any, inputs: tuple[Any, ...]) -> Any:
        if isinstance(answer, (tuple, list)) and len(answer) == len(inputs):
            return answer
        found = f"{len(answer)}" if isinstance(answer, (tuple, list)) else type(answer).__name__
        raise ComponentError(
            f"The vjp of {self.name} has to return one cotangent per argument, as a tuple of {len(inputs)}; "
            f"found {found}. Return `(cotangent,)` for one argument.",
            code="result_mismatch",
        )

    def _output_types(self, inputs: tuple[Any, ...]) -> Any:
        if "abstract_eval" in self.endpoints:
            return self.abstract_eval(types_of(inputs))
        return types_of(self.apply(inputs))


def positional_arguments(
    function: Callable[..., Any], name: str, arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Arguments in the order of a function's parameters, where some were given by name.

    Raises:
        InputError: they are not its positional parameters.
    """
    try:
        bound = inspect.signature(function).bind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be called so: {error}.", code="invalid_input") from error
    if bound.kwargs:
        listed = ", ".join(f"`{key}`" for key in bound.kwargs)
        raise InputError(
            f"{name} takes {listed} by name only, and `jvp`, `vjp` and `abstract` get arguments by position. "
            "Bind such options first: `functools.partial`.",
            code="invalid_input",
        )
    return bound.args


def _is_shape(described: Any) -> bool:
    return isinstance(described, tuple) and all(type(size) is int for size in described)


def _with_arrays(tree: Any) -> Any:
    """A tree whose plain numbers became arrays."""
    if isinstance(tree, np.ndarray):
        return tree
    return map_with_paths(lambda _, leaf: as_array(leaf), tree)


def as_array(leaf: Any) -> Any:
    """A plain number as an array; anything else as it is."""
    return np.asarray(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf


def _spread(tree: Any, vector: Mapping[str, np.ndarray]) -> Any:
    """A tree like `tree` with the vectors at their paths, zeros at other arrays, `None` at static leaves."""
    skeleton, _ = take_apart(tree, lambda path, leaf: True)
    return skeleton.build(
        [
            vector[path] if path in vector else _zeros(as_array_type(leaf))
            for path, leaf in flatten_with_paths(tree).items()
        ]
    )


def _zeros(type_: ArrayType | None) -> np.ndarray | None:
    return None if type_ is None else np.zeros(type_.shape, type_.dtype)
