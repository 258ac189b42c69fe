"""The one interface between a framework (JAX, torch) and something with endpoints; bare callables behind it.

The rest of the bridge speaks only to a `Target`. There are three kinds: components of any origin
(`_component_target`), components with their tagged values (`_tagged`), and Python callables (NumPy, SciPy, C
behind `ctypes`, a subprocess), which are here. A target works on plain trees of NumPy arrays and knows
nothing of tracers, batches or cotangent bookkeeping. `Options` is what the caller decides about its calls.
A target whose author computes on a GPU also takes arrays there, of its `device_library`.

Memory: the arrays that a target gets may be the memory of XLA or of the caller, and are valid during the call
only. A target hands copies of them to the author's code, or encodes them for another process before it
returns. The arrays that it returns may be the author's: the caller copies them before the next call.
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from chainrule._call_prices import problem_of_prices
from chainrule._device import DeviceLibrary, own_copy
from chainrule._endpoints import HVP, JVP, VJP, DerivativeKind
from chainrule._errors import ComponentError, DefinitionError, InputError
from chainrule._frames import place_text
from chainrule._lru_cache import LRUCache
from chainrule._sparsity import Sparsity, is_block, read_sparsity
from chainrule._trees import flatten_with_paths, map_with_paths
from chainrule.bridge._types import ArrayType, as_array_type, read_types, take_apart, types_of

T = TypeVar("T")
Batching = Literal["elementwise", "leading"]
_SIGNATURES_REMEMBERED = 512


class Target(ABC):
    """Something that maps a tree of arrays to a tree of arrays and may know its derivatives.

    Attributes:
        name: for messages.
        framework: what the author's functions are written in; `None` when it is not known.
        address: where it is, for people.
        endpoints: names of what can be asked: `apply`, `abstract_eval`, the three first-order derivatives
            and `hessian_vector_product`.
        batching: how the target says it treats an additional leading axis of all arrays: `elementwise` (any
            axes), `leading` (one axis in front, examples independent), or `None` (it does not say).
        batched_endpoints: the product endpoints that answer a batch of vectors in one call.
        residual_endpoints: the derivative endpoints that go on from what `apply` has kept.
        device_library: what holds arrays on the GPU on which the author's code computes, if it is one.
        device_endpoints: the endpoints that take such arrays and answer with such arrays.
        prices: what the author says that calls cost.
        max_concurrency: how many calls may run at the same time; 1 when it is not safe or does not pay.
        is_remote: whether a call mostly waits, so that independent calls should overlap.
        jax_function: the same function, traceable by JAX, or `None`.
        jax_derivatives: whether its derivatives by JAX are those of the endpoints.
        runs_jax: whether a call runs JAX in this process, which a host call must not do.
        derives: whether a product may come from another endpoint than its own.
        abstract_advice: how to let the shapes of its outputs be known.
    """

    name: str
    framework: str | None = None
    address: str = "in this process"
    endpoints: frozenset[str]
    batching: Batching | None = None
    batched_endpoints: frozenset[str] = frozenset()
    residual_endpoints: frozenset[str] = frozenset()
    device_library: DeviceLibrary | None = None
    device_endpoints: frozenset[str] = frozenset()
    prices: Mapping[str, float] = MappingProxyType({})
    max_concurrency: int = 1
    is_remote: bool = False
    jax_function: Callable[[Any], Any] | None = None
    jax_derivatives: bool = True
    runs_jax: bool = False
    derives: bool = True
    abstract_advice: str = ""

    @cached_property
    def timings(self) -> Timings:
        """How long the calls of this process took."""
        return Timings()

    def measure(self) -> Mapping[str, float]:
        """Mean seconds of calls so far, by the names of `chainrule._call_prices`."""
        return self.timings.means()

    def declared_block(self, output: str, given: str) -> Any | None:
        """Which elements of an output depend on which elements of an input, as the author declares it."""
        return None

    @cached_property
    def _memories(self) -> defaultdict[str, LRUCache[Hashable, Any]]:
        return defaultdict(lambda: LRUCache(_SIGNATURES_REMEMBERED))

    def remembered(self, purpose: str, key: Hashable | None, make: Callable[[], T]) -> T:
        """What was made for a purpose and a key before, or what `make` returns now.

        Args:
            purpose: keys of different purposes are different.
            key: what the result depends on; `None` is not remembered.
            make: called without a lock: two threads may both make it, and the later one is remembered.
        """
        found = None if key is None else self._memories[purpose].get(key)
        if found is None:
            found = make()
            if key is not None:
                self._memories[purpose].put(key, found)
        return found

    @abstractmethod
    def apply(self, inputs: Any) -> Any:
        """Outputs for a tree of NumPy arrays and static leaves."""

    @abstractmethod
    def abstract_eval(self, inputs: Any) -> Any:
        """Outputs with an `ArrayType` at every array, for inputs with an `ArrayType` at every array."""

    @abstractmethod
    def derivative(
        self,
        kind: DerivativeKind,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Sequence[Mapping[str, np.ndarray]] = (),
        *,
        batched: bool = False,
    ) -> Mapping[str, Any]:
        """Ask a derivative endpoint.

        Args:
            kind: which one; asked only if it is in `endpoints`.
            inputs: as of `apply`.
            input_paths: with respect to which it is.
            output_paths: of which it is.
            vectors: by path, one for each of `kind.vectors`.
            batched: whether the vectors have a batch axis in front, and the result gets one; asked only if
                the endpoint is in `batched_endpoints`.

        Returns:
            Arrays by the paths of `kind.result_over`.
        """

    def taking_arrays(self) -> Target:
        """The same target for a caller that gives it arrays of the host and does not use them again."""
        return self

    def prepare(
        self,
        kind: DerivativeKind | None,
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        vectors: Sequence[Mapping[str, Any]],
        arrays: Sequence[Any],
    ) -> Callable[[Sequence[Any]], tuple[Any, bool]] | None:
        """A request on a GPU, validated once to be answered for other arrays; `None` where that cannot be.

        The answer comes with whether its types are those of the first answer.

        Args:
            kind: as of `derivative`; `None` for `apply`.
            inputs: as of `apply`.
            input_paths: as of `derivative`.
            output_paths: as of `derivative`.
            vectors: as of `derivative`.
            arrays: those of the inputs and the vectors, in the order in which others will be given.
        """
        return None

    def evaluations(self, kind: DerivativeKind, n: int, m: int) -> int:
        """How often one request of an endpoint runs the author's code, for n input and m output elements."""
        return 1

    def complete_inputs(self, inputs: Any) -> tuple[Any, dict[str, Any]]:
        """Inputs with an `ArrayType` at every array, checked, with defaults filled in; named sizes."""
        return inputs, {}

    def fit_output(self, path: str, type_: ArrayType, sizes: dict[str, Any]) -> ArrayType:
        """The type that the target's declaration gives to an output that is computed with some type.

        Args:
            path: of the output.
            type_: as it is computed.
            sizes: of the named dimensions so far; those of the output are added.
        """
        return type_

    @property
    def written(self) -> Target:
        """The same target with nothing but the derivatives that its author wrote."""
        return self

    def with_tracers(self) -> Target:
        """The same target with derivatives that take tracers; asked only if it has a `jax_function`."""
        raise NotImplementedError

    def is_differentiable_input(self, path: str) -> bool:
        """Whether the target declares derivatives with respect to this input."""
        return True

    def is_differentiable_output(self, path: str) -> bool:
        """Whether the target declares derivatives of this output."""
        return True

    def is_array_input(self, path: str) -> bool:
        """Whether the target declares an array there, so that a plain number or list stands for one."""
        return False

    def is_array_output(self, path: str) -> bool:
        """The same for an output."""
        return False

    def has_arrays_in(self, path: str, names: Collection[str | int]) -> bool:
        """Whether the target declares arrays in parts of these names, or inside of them."""
        return False

    def is_plain_input(self, path: str) -> bool:
        """Whether the target declares something else than an array there."""
        return False

    @property
    def input_names(self) -> Collection[str] | None:
        """The names of the inputs, where the target has a fixed set of them."""
        return None

    def input_dtype(self, path: str) -> np.dtype[Any] | None:
        """The dtype the target wants at an input; `None` takes what comes."""
        return None


VmapMethod = Literal[
    "auto", "sequential", "concurrent", "expand_dims", "broadcast_all", "auto_experimental"
]
Effects = Literal["none", "ordered"]
DECLARED = ("auto", "auto_experimental")
"""The methods that follow what the target declares about batches."""


@dataclass(frozen=True)
class Options:
    """What the caller of `apply_component` decides; see there."""

    vmap_method: VmapMethod | None = "auto"
    materialize_jacobian: bool | None = None
    spot_check: bool = False
    effects: Effects = "none"
    max_concurrency: int | None = None
    infer_by_evaluation: bool = False

    def __post_init__(self) -> None:
        _check_choice("vmap_method", self.vmap_method, (*get_args(VmapMethod), None))
        _check_choice("effects", self.effects, get_args(Effects))
        if self.max_concurrency is not None:
            _check_count("max_concurrency", self.max_concurrency)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InputError(
            f"`{name}` is one of {listed}; found {value!r}.", code="invalid_option", path=name
        )


def _check_count(name: str, value: int) -> None:
    """Refuse a value that is not a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"`{name}` is a number of calls, at least 1; found {value!r}.",
            code="invalid_option",
            path=name,
        )


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function; of a lambda, where it is written."""
    name = str(getattr(function, "__name__", type(function).__name__))
    code = getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda, {place_text(code.co_filename, code.co_firstlineno)}"


class CallableTarget(Target):
    """A function of positional arguments as a target; see `chainrule.from_callable`.

    Its input tree is the tuple of arguments, its output tree is what the function returns.
    """

    abstract_advice = (
        "Describe the result: `from_callable(f, abstract=lambda x: x)` if it has the shape and dtype of the "
        "argument, or `abstract=lambda x: jax.ShapeDtypeStruct(shape, dtype)`. Or allow one real evaluation "
        'per signature: `abstract="evaluate"`.'
    )

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
        prices: Mapping[str, float] | None = None,
        sparsity: Any = None,
    ) -> None:
        self._function = function
        self._products: dict[str, Any] = {
            JVP.endpoint: jvp,
            VJP.endpoint: vjp,
            HVP.endpoint: hvp,
        }
        self._abstract = abstract
        self.name = name or _name_of(function)
        _check_choice("batching", batching, (*get_args(Batching), None))
        _check_count("max_concurrency", max_concurrency)
        self.batching = batching
        self.max_concurrency = max_concurrency
        self.prices = prices or {}
        problem = problem_of_prices(self.prices)
        if problem is not None:
            raise DefinitionError(f"prices of {self.name}: {problem}.", code="bad_prices")
        self._sparsity = self._read_sparsity(sparsity)
        known = {endpoint for endpoint, product in self._products.items() if product is not None}
        if isinstance(abstract, str):
            _check_choice("abstract", abstract, ("evaluate",))
        is_unknown = abstract is None or isinstance(abstract, str)
        described = set() if is_unknown else {"abstract_eval"}
        self.endpoints = frozenset({"apply"} | known | described)

    def _read_sparsity(self, declared: Any) -> Sparsity:
        if declared is None:
            return {}
        try:
            return read_sparsity({"": {"[0]": declared}} if is_block(declared) else declared)
        except ValueError as problem:
            raise DefinitionError(
                f"sparsity of {self.name}: {problem}.", code="bad_sparsity"
            ) from None

    def declared_block(self, output: str, given: str) -> Any | None:
        """What the author's `sparsity` says."""
        return self._sparsity.get(output, {}).get(given)

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
        vectors: Sequence[Mapping[str, np.ndarray]] = (),
        *,
        batched: bool = False,
    ) -> Mapping[str, Any]:
        """A product, from whole trees: what was not given is zero, what was not asked for is dropped."""
        trees = [
            _spread(inputs if vector.over == "inputs" else self._output_types(inputs), values)
            for vector, values in zip(kind.vectors, vectors, strict=True)
        ]
        answer = self._products[kind.endpoint](*own_copy((inputs, *trees)))
        if kind.result_over == ("outputs",):
            return flatten_with_paths(answer, output_paths)
        return flatten_with_paths(self._check_tuple(answer, inputs), input_paths)

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
        raise InputError(
            f"{name} cannot be called with these arguments: {error}.", code="invalid_input"
        ) from error
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
    return map_with_paths(lambda _, leaf: _as_array(leaf), tree)


def _as_array(leaf: Any) -> Any:
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


# --- how long calls take ------------------------------------------------------------------------


class Timings:
    """How long requests took, by the number of their vectors. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, dict[int, tuple[float, int]]] = {}

    def note(self, request: str, seconds: float, vectors: int = 1) -> None:
        """Count a request of this many vectors that was answered."""
        with self._lock:
            totals = self._totals.setdefault(request, {})
            total, number = totals.get(vectors, (0.0, 0))
            totals[vectors] = total + seconds, number + 1

    def means(self) -> dict[str, float]:
        """Request → mean seconds per vector; and those of a message, where requests of several sizes tell.

        A request of k vectors takes a + b k seconds. Means of two sizes or more determine a, the price of a
        message, by least squares; the smallest of all requests is taken, because all share one price.
        """
        with self._lock:
            totals = {name: dict(each) for name, each in self._totals.items()}
        fixed = [_fixed_part(each) for each in totals.values() if len(each) > 1]
        message = max(0.0, min(fixed, default=0.0))
        found = {name: _per_vector(each, message) for name, each in totals.items()}
        return found | {"message": message} if message else found


def _fixed_part(totals: Mapping[int, tuple[float, int]]) -> float:
    """The a of a + b k, fitted to the mean of every size k, which counts as often as it was measured."""
    sizes, weights = np.array([*totals]), np.array([n for _, n in totals.values()])
    means = np.array([total for total, _ in totals.values()]) / weights
    return float(
        np.polynomial.Polynomial.fit(sizes, means, 1, w=np.sqrt(weights)).convert().coef[0]
    )


def _per_vector(totals: Mapping[int, tuple[float, int]], message: float) -> float:
    seconds = sum(total - number * message for total, number in totals.values())
    vectors = sum(size * number for size, (_, number) in totals.items())
    return max(seconds / vectors, _LEAST_S)


_LEAST_S = 1e-9
"""A price is positive, also of what took no longer than its message."""
