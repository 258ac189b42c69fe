"""The endpoints of a component, each described once: as data, and as methods.

`ENDPOINTS` says of every endpoint what a request carries and how it is named in the OpenAPI document and
on the command line. The derivative endpoints differ in a few more facts (`DerivativeKind`): which vectors
the caller gives beside the inputs, what comes back, and over which paths. Everything that is done for all
of them (schemas, validation, derivation, documents, command line) is written once over these
descriptions.

`EndpointMethods` are the methods by which Python programs call endpoints. Each of them makes the request
and hands it to `call`, which is all that differs between a component in this process (`LocalComponent`),
a handle to one anywhere (`Component`) and the ancestor's handle (`Tesseract`). `AsyncEndpointMethods` are
the same to be awaited.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np

from chainrule._describe import did_you_mean, names_its_arguments
from chainrule._errors import CapabilityError
from chainrule._results import Result
from chainrule._trees import dtype_name, is_arraylike, map_leaves

P = ParamSpec("P")
R = TypeVar("R")
Side = Literal["inputs", "outputs"]

BATCHED = "batched"
"""The optional argument by which a caller says that vectors carry a leading batch axis."""


class Vector(NamedTuple):
    """A vector argument.

    Attributes:
        name: of the argument.
        over: which side's paths its keys are.
    """

    name: str
    over: Side


TANGENT = Vector("tangent_vector", "inputs")
COTANGENT = Vector("cotangent_vector", "outputs")


@dataclass(frozen=True, kw_only=True)
class EndpointKind:
    """One endpoint that an author can define.

    Attributes:
        endpoint: its name, which is also that of the author's function and of the method.
        command: its name on the command line.
        schema_prefix: prefix of the request and response in the OpenAPI document (`JVPInputSchema`).
        summary: one line for people.
        options: what a request may carry besides its arguments.
    """

    endpoint: str
    command: str
    schema_prefix: str
    summary: str
    options: tuple[str, ...] = ()

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The arguments of the author's function."""
        return ("inputs",)

    @property
    def required_names(self) -> tuple[str, ...]:
        """What a request has to carry."""
        return self.argument_names

    @property
    def optional_names(self) -> tuple[str, ...]:
        """What a request may carry besides."""
        return self.options


@dataclass(frozen=True, kw_only=True)
class DerivativeKind(EndpointKind):
    """One of the derivative endpoints.

    Attributes:
        short: prefix of its path arguments: `jac_inputs`, `jvp_outputs`, ….
        model_prefix: prefix of the generated models (`Jvp_InputSchema`).
        vectors: the vector arguments, in order.
        result_over: the sides whose paths key the result, outermost first. A result's shape is the
            concatenation of the shapes at these paths.
        all_paths: whether a request may leave out the paths, which means all differentiable ones.
        with_value: whether the outputs come back too: the function returns `(outputs, derivative)`, the
            endpoint `{"outputs": …, "gradient": …}`.
    """

    short: str
    model_prefix: str
    vectors: tuple[Vector, ...] = ()
    result_over: tuple[Side, ...]
    all_paths: bool = False
    with_value: bool = False

    @property
    def takes_batches(self) -> bool:
        """Whether a request may carry `batched`."""
        return BATCHED in self.options

    @property
    def vector(self) -> str | None:
        """Name of the vector argument, where there is exactly one."""
        return self.vectors[0].name if len(self.vectors) == 1 else None

    @property
    def vector_over(self) -> Side | None:
        """Which side's paths that vector's keys are."""
        return self.vectors[0].over if len(self.vectors) == 1 else None

    @property
    def inputs_argument(self) -> str:
        """Name of the argument with the input paths."""
        return f"{self.short}_inputs"

    @property
    def outputs_argument(self) -> str:
        """Name of the argument with the output paths."""
        return f"{self.short}_outputs"

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The author's function takes exactly these keyword arguments."""
        vectors = (vector.name for vector in self.vectors)
        return ("inputs", self.inputs_argument, self.outputs_argument, *vectors)

    @property
    def required_names(self) -> tuple[str, ...]:
        """What a request has to carry."""
        return ("inputs",) if self.all_paths else self.argument_names

    @property
    def optional_names(self) -> tuple[str, ...]:
        """What a request may carry besides."""
        paths = (self.inputs_argument, self.outputs_argument) if self.all_paths else ()
        return (*paths, *self.options)


APPLY = EndpointKind(
    endpoint="apply", command="apply", schema_prefix="Apply", summary="Outputs for some inputs."
)
JACOBIAN = DerivativeKind(
    endpoint="jacobian",
    command="jacobian",
    schema_prefix="Jacobian",
    summary="Derivatives of selected outputs with respect to selected inputs.",
    short="jac",
    model_prefix="Jacobian",
    result_over=("outputs", "inputs"),
    all_paths=True,
)
JVP = DerivativeKind(
    endpoint="jacobian_vector_product",
    command="jvp",
    schema_prefix="JVP",
    summary="How selected outputs change along a tangent of the inputs.",
    options=(BATCHED,),
    short="jvp",
    model_prefix="Jvp",
    vectors=(TANGENT,),
    result_over=("outputs",),
)
VJP = DerivativeKind(
    endpoint="vector_jacobian_product",
    command="vjp",
    schema_prefix="VJP",
    summary="A cotangent of selected outputs, pulled back to the inputs.",
    options=(BATCHED,),
    short="vjp",
    model_prefix="Vjp",
    vectors=(COTANGENT,),
    result_over=("inputs",),
)
HVP = DerivativeKind(
    endpoint="hessian_vector_product",
    command="hvp",
    schema_prefix="HVP",
    summary="The Hessian of weighed outputs, times a tangent of the inputs.",
    short="hvp",
    model_prefix="Hvp",
    vectors=(COTANGENT, TANGENT),
    result_over=("inputs",),
)
VALUE_AND_VJP = DerivativeKind(
    endpoint="value_and_vjp",
    command="value-and-vjp",
    schema_prefix="ValueAndVJP",
    summary="The outputs, and a cotangent pulled back to the inputs, in one call.",
    short="vjp",
    model_prefix="ValueAndVjp",
    vectors=(COTANGENT,),
    result_over=("inputs",),
    with_value=True,
)
ABSTRACT_EVAL = EndpointKind(
    endpoint="abstract_eval",
    command="abstract-eval",
    schema_prefix="Abstract",
    summary="Shapes and dtypes of the outputs, without computing them.",
)
TAGGED = EndpointKind(
    endpoint="tagged_intermediates",
    command="intermediates",
    schema_prefix="Tagged",
    summary="Values that the component tags on its way, with their derivatives.",
    options=("tag", TANGENT.name, COTANGENT.name, "abstract"),
)

FIRST_ORDER: tuple[DerivativeKind, ...] = (JACOBIAN, JVP, VJP)
DERIVATIVES: tuple[DerivativeKind, ...] = (*FIRST_ORDER, HVP, VALUE_AND_VJP)
DERIVATIVE_ENDPOINTS = tuple(kind.endpoint for kind in DERIVATIVES)
ENDPOINTS: Mapping[str, EndpointKind] = {
    kind.endpoint: kind for kind in (APPLY, *DERIVATIVES, ABSTRACT_EVAL, TAGGED)
}
"""Every endpoint that an author can define by its name, in the order in which they are listed."""


def endpoint_missing(
    component: str, endpoint: str, available: Collection[str], hint: str = ""
) -> CapabilityError:
    """What to raise where a component does not have an endpoint.

    Args:
        component: its name.
        endpoint: what was asked for.
        available: the endpoints that it has.
        hint: how its author would add this one, after a space.
    """
    meant = "" if endpoint in ENDPOINTS else did_you_mean(endpoint, available)
    return CapabilityError(
        f"{component} has no endpoint {endpoint!r}; it has {', '.join(available)}.{meant}{hint}",
        code="endpoint_missing",
        details={"endpoint": endpoint, "available": list(available)},
    )


class EndpointMethods(ABC):
    """The endpoints of a component as methods.

    Inputs and results are plain trees: nested dicts and lists of NumPy arrays and JSON values. `run_id` is
    the name under which files of the call are kept; a random one when it is not given.
    """

    @abstractmethod
    def call(self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None) -> Any:
        """The answer of an endpoint to a whole request.

        Args:
            endpoint: name of the endpoint.
            payload: the request, `{"inputs": …}` and what else the endpoint takes; arrays encoded or not.
            run_id: as in `apply`.
        """

    @staticmethod
    def calling(function: Callable[..., Any]) -> EndpointMethods:
        """Methods that hand their request to a function, and return what it returns.

        Args:
            function: takes what `call` takes.
        """
        return _Calling(function)

    @names_its_arguments
    def apply(self, inputs: Any, run_id: str | None = None) -> Any:
        """The outputs for some inputs.

        Args:
            inputs: a tree that fits the input schema, or a model.
            run_id: the name under which files of this call are kept.

        Raises:
            InputError: the inputs are at fault; `details["problems"]` lists every reason.
            ComponentError: the component is at fault.
            TransportError: no answer came.
        """
        answer = self.call("apply", {"inputs": inputs}, run_id=run_id)
        return Result.of(answer, self.output_units)

    def output_units(self) -> Mapping[str, str]:
        """Path pattern → units of the outputs that have some, as far as they are known."""
        return {}

    def jacobian(
        self,
        inputs: Any,
        jac_inputs: Collection[str] | None = None,
        jac_outputs: Collection[str] | None = None,
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`{output path: {input path: block}}`, each block of output shape + input shape.

        Args:
            inputs: where to differentiate.
            jac_inputs: paths of the inputs; all differentiable ones when not given.
            jac_outputs: paths of the outputs; all differentiable ones when not given.
            run_id: as in `apply`.
        """
        return self._ask(JACOBIAN, inputs, jac_inputs, jac_outputs, run_id=run_id)

    def jacobian_vector_product(
        self,
        inputs: Any,
        jvp_inputs: Collection[str],
        jvp_outputs: Collection[str],
        tangent_vector: Mapping[str, Any],
        run_id: str | None = None,
        *,
        batched: bool = False,
    ) -> dict[str, Any]:
        """`{output path: J · tangent}`.

        Args:
            inputs: where to differentiate.
            jvp_inputs: paths of the inputs.
            jvp_outputs: paths of the outputs.
            tangent_vector: `{input path: array}`.
            run_id: as in `apply`.
            batched: whether tangents carry a leading batch axis; the result then does too. It is one
                request, except to servers that do not know of batches.
        """
        paths = (jvp_inputs, jvp_outputs)
        return self._ask(JVP, inputs, *paths, tangent_vector, run_id=run_id, batched=batched)

    def vector_jacobian_product(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        run_id: str | None = None,
        *,
        batched: bool = False,
    ) -> dict[str, Any]:
        """`{input path: Jᵀ · cotangent}`.

        Args:
            inputs: where to differentiate.
            vjp_inputs: paths of the inputs.
            vjp_outputs: paths of the outputs.
            cotangent_vector: `{output path: array}`.
            run_id: as in `apply`.
            batched: as in `jacobian_vector_product`.
        """
        paths = (vjp_inputs, vjp_outputs)
        return self._ask(VJP, inputs, *paths, cotangent_vector, run_id=run_id, batched=batched)

    def hessian_vector_product(
        self,
        inputs: Any,
        hvp_inputs: Collection[str],
        hvp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        tangent_vector: Mapping[str, Any],
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{input path: H · tangent}`, with H the Hessian of ⟨cotangent, outputs⟩.

        Args:
            inputs: where to differentiate.
            hvp_inputs: paths of the inputs.
            hvp_outputs: paths of the outputs.
            cotangent_vector: `{output path: array}`, the weights of the outputs.
            tangent_vector: `{input path: array}`.
            run_id: as in `apply`.
        """
        vectors = (cotangent_vector, tangent_vector)
        return self._ask(HVP, inputs, hvp_inputs, hvp_outputs, *vectors, run_id=run_id)

    def value_and_vjp(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{"outputs": …, "gradient": {input path: Jᵀ · cotangent}}`, from one evaluation where possible.

        Args:
            inputs: where to differentiate.
            vjp_inputs: paths of the inputs.
            vjp_outputs: paths of the outputs.
            cotangent_vector: `{output path: array}`.
            run_id: as in `apply`.
        """
        paths = (vjp_inputs, vjp_outputs)
        return self._ask(VALUE_AND_VJP, inputs, *paths, cotangent_vector, run_id=run_id)

    def abstract_eval(self, abstract_inputs: Any) -> Any:
        """Shapes and dtypes of the outputs for shapes and dtypes of the inputs.

        Args:
            abstract_inputs: the inputs with `{"shape": …, "dtype": …}`, or anything that has a shape and
                a dtype, in place of every array. Arrays are not sent, only their shapes and dtypes.
        """
        return self.call("abstract_eval", {"inputs": to_abstract(abstract_inputs)})

    def tagged_intermediates(
        self,
        inputs: Any,
        tag: str = "intermediates",
        tangent_vector: Mapping[str, Any] | None = None,
        cotangent_vector: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        *,
        abstract: bool = False,
    ) -> dict[str, dict[str, Any]]:
        """The values that the component tags with `sow` on its way from inputs to outputs.

        Args:
            inputs: as in `apply`; with `abstract` as in `abstract_eval`.
            tag: the group of names to give.
            tangent_vector: `{input path: array}`: push it forward, and give tangents too.
            cotangent_vector: `{output path: array}`: pull it back, and give cotangents too.
            run_id: as in `apply`.
            abstract: give `{"shape": …, "dtype": …}` in place of arrays, and compute nothing.

        Returns:
            `{name: {"primal": …, "tangent" or "cotangent": …}}`, as `save_intermediates` gives it.
        """
        request = {
            "inputs": to_abstract(inputs) if abstract else inputs,
            "tag": tag,
            **_given(
                tangent_vector=tangent_vector, cotangent_vector=cotangent_vector, abstract=abstract
            ),
        }
        return self.call("tagged_intermediates", request, run_id=run_id)

    def _ask(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Collection[str] | None,
        output_paths: Collection[str] | None,
        *vectors: Mapping[str, Any],
        run_id: str | None,
        **options: Any,
    ) -> Any:
        """Make the request of a derivative endpoint, with the names that its description gives."""
        paths = {kind.inputs_argument: input_paths, kind.outputs_argument: output_paths}
        names = [vector.name for vector in kind.vectors]
        request = {
            "inputs": inputs,
            **_given(**{name: _listed(value) for name, value in paths.items()}),
            **dict(zip(names, vectors, strict=True)),
            **_given(**options),
        }
        return Result.of(self.call(kind.endpoint, request, run_id=run_id))


class _Calling(EndpointMethods):
    """The methods of `EndpointMethods.calling`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def call(self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None) -> Any:
        """What the function returns."""
        return self._call(endpoint, payload, run_id=run_id)


def _asynchronous(
    method: Callable[Concatenate[EndpointMethods, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same method to be awaited: the request is made here, `start_call` sends it."""

    @functools.wraps(method)
    async def call(self: AsyncEndpointMethods, *args: P.args, **kwargs: P.kwargs) -> R:
        started: Any = method(EndpointMethods.calling(self.start_call), *args, **kwargs)
        return await started

    name = method.__name__
    call.__name__, call.__qualname__ = f"{name}_async", f"AsyncEndpointMethods.{name}_async"
    call.__doc__ = f"`{name}`, to be awaited: {method.__doc__}"
    return call


class AsyncEndpointMethods(ABC):
    """The asynchronous twin of every endpoint method: the same arguments, to be awaited."""

    @abstractmethod
    def start_call(
        self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None
    ) -> Awaitable[Any]:
        """Start a call; arguments as in `EndpointMethods.call`."""

    apply_async = _asynchronous(EndpointMethods.apply)
    jacobian_async = _asynchronous(EndpointMethods.jacobian)
    jacobian_vector_product_async = _asynchronous(EndpointMethods.jacobian_vector_product)
    vector_jacobian_product_async = _asynchronous(EndpointMethods.vector_jacobian_product)
    hessian_vector_product_async = _asynchronous(EndpointMethods.hessian_vector_product)
    value_and_vjp_async = _asynchronous(EndpointMethods.value_and_vjp)
    abstract_eval_async = _asynchronous(EndpointMethods.abstract_eval)
    tagged_intermediates_async = _asynchronous(EndpointMethods.tagged_intermediates)


def _given(**options: Any) -> dict[str, Any]:
    """The options that do not have their default. Other servers refuse fields that they do not know."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def _listed(paths: Any) -> Any:
    """Paths as a list, which every encoding has; anything else is refused by the component."""
    return list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else paths


def to_abstract(tree: Any) -> Any:
    """The tree with `{"shape": …, "dtype": …}` in place of everything that has a shape and a dtype.

    Where that is written out already, its sizes may be NumPy integers and its dtype one of NumPy's.
    """

    def describe(leaf: Any) -> Any:
        if _is_written_out(leaf):
            return {
                **leaf,
                "shape": [index(size) for size in leaf["shape"]],
                "dtype": _dtype_name(leaf["dtype"]),
            }
        if isinstance(leaf, type) or not is_arraylike(leaf):
            return leaf
        return {"shape": list(leaf.shape), "dtype": dtype_name(leaf)}

    return map_leaves(describe, tree, is_leaf=_is_written_out, plain=True)


def _is_written_out(node: Any) -> bool:
    """Whether a node is a shape and a dtype in a dictionary."""
    if not (isinstance(node, Mapping) and {"shape", "dtype"} <= node.keys()):
        return False
    shape = node["shape"]
    return isinstance(shape, list | tuple) and all(hasattr(size, "__index__") for size in shape)


def _dtype_name(dtype: Any) -> Any:
    """The name of a dtype of NumPy, or of one of its scalar types; anything else as it is."""
    if not isinstance(dtype, np.dtype | type):
        return dtype
    try:
        return np.dtype(dtype).name
    except TypeError:
        return dtype
