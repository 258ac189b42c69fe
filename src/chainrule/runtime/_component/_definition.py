"""What an author gives, however it was written: as a module, a function or a command.

`Definition` is one component before it is configured. Its `implementations` say for each endpoint which
function answers it and where that function comes from (`Capability`); `check_signature` and
`takes_argument` read how a function can be called. Its content hash covers the source of
the component itself: a module file and the neighbours it imported, a function's code with its defaults and
what it closes over, a command with its executable. It does not cover installed packages or data files; an
author who changes those changes the version.
"""

from __future__ import annotations

import inspect
import io
import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

from chainrule._call_prices import problem_of_prices
from chainrule._content_store import hash_parts
from chainrule._errors import DefinitionError
from chainrule._paths import matches_pattern
from chainrule._sparsity import Sparsity, read_sparsity
from chainrule.runtime._schema import differentiable_leaves

if TYPE_CHECKING:
    from chainrule.runtime._component._devices import Place


@dataclass(frozen=True)
class Cost:
    """How often one call of an endpoint runs the author's code, for n input and m output elements.

    Attributes:
        constant: that many times in any case.
        inputs: that many times per input element.
        outputs: that many times per output element.
        fewer: that many times per element of the side that has fewer.
    """

    constant: int = 1
    inputs: int = 0
    outputs: int = 0
    fewer: int = 0

    def at(self, n: int, m: int) -> int:
        """The number for n input and m output elements."""
        return self.constant + self.inputs * n + self.outputs * m + self.fewer * min(n, m)

    def times(self, count: int, *, plus: int = 0) -> Cost:
        """The cost of several such calls, and of some evaluations besides."""
        each = {part.name: count * getattr(self, part.name) for part in fields(self)}
        return Cost(**(each | {"constant": each["constant"] + plus}))


@dataclass(frozen=True)
class Capability:
    """How an endpoint is available.

    Attributes:
        status: `native` when the author wrote it, `derived` when Chainrule makes it from something else,
            `absent` when the component does not have it.
        via: what a derived endpoint is made from, for example `jax` or `jacobian`.
        batches: whether a batch of vectors is answered in one call, rather than one by one.
        cost: how often one call runs the author's code.
        residuals: whether it goes on from what `apply` has kept.
        on_device: whether it takes arrays on a GPU and answers with arrays there.
    """

    status: Literal["native", "derived", "absent"]
    via: str | None = None
    batches: bool = False
    cost: Cost = Cost()
    residuals: bool = False
    on_device: bool = False

    def __str__(self) -> str:
        return self.status if self.via is None else f"{self.status} ({self.via})"


NATIVE = Capability("native")
ABSENT = Capability("absent")


@dataclass(frozen=True)
class Implementation:
    """A function behind an endpoint, and where it comes from.

    `function` is called with a validated model: positionally for `apply` and `abstract_eval`, with the
    argument names of its `DerivativeKind` otherwise.
    """

    function: Callable[..., Any]
    capability: Capability = NATIVE


def derived(function: Callable[..., Any], via: str, cost: Cost | None = None) -> Implementation:
    """An implementation that Chainrule made; it runs the author's code once unless a cost is given."""
    return Implementation(function, Capability("derived", via, cost=cost or Cost()))


def check_signature(function: Any, name: str, arguments: tuple[str, ...] | int) -> None:
    """Refuse a function that cannot be called the way its endpoint is called.

    Args:
        function: the author's.
        name: of the endpoint.
        arguments: names it is called with, or how many positional arguments.

    Raises:
        DefinitionError: not callable, asynchronous, or with other arguments (`bad_endpoint`).
    """
    if not callable(function):
        raise _bad_endpoint(name, f"{name} has to be a function; found {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise _bad_endpoint(name, f"{name} is an `async def`; endpoints are plain functions")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        if isinstance(arguments, int):
            signature.bind(*range(arguments))
        else:
            signature.bind(**dict.fromkeys(arguments))
    except TypeError as error:
        wanted = "one argument" if isinstance(arguments, int) else ", ".join(arguments)
        raise _bad_endpoint(
            name, f"{name}{signature} cannot be called with {wanted}: {error}"
        ) from error


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def is_jitted(value: Any) -> bool:
    """Whether a value is a function that `jax.jit` or `equinox.filter_jit` compiled."""
    return callable(value) and hasattr(value, "lower")


def _bad_endpoint(name: str, message: str) -> DefinitionError:
    return DefinitionError(f"{message}.", code="bad_endpoint", details={"endpoint": name})


Batching = Literal["elementwise", "leading"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One component before it is configured.

    Attributes:
        name: of the component.
        version: of the component, as its author counts.
        description: prose for people.
        input_schema: model of the inputs.
        output_schema: model of the outputs.
        implementations: endpoint → function and where it comes from.
        function: the author's own function, callable in Python as it was written.
        content_hash: changes when the component's code or schemas do.
        jax_function: the traceable function from nested inputs to nested outputs, when there is one.
        jax_derivatives: whether the derivative endpoints give what JAX makes of `jax_function`, rather than
            something that the author wrote.
        batching: `elementwise` when any extra leading axes may be added to all arrays, `leading` when
            the first axis of every array is a batch of independent cases, `None` when it is not declared.
        merge_up_to: how many concurrent single calls a server may merge into one, if it batches; 0 for none.
        prices: what calls cost, in seconds or relative to each other, for plans of Jacobians: by `"apply"`,
            `"jvp"`, `"vjp"`, `"jacobian"`, `"message"`; and `"residual_bytes"`, what `apply` keeps for a VJP.
        sparsity: output path → input path → which elements depend on which: `"diagonal"`, a band such as
            `{"lower": 1, "upper": 1}`, or a matrix that is not zero there. With it, plans of Jacobians ask
            for several columns in one product. It becomes plain data (see `chainrule._sparsity`).
        cheap: whether a run with the defaults may begin without being asked for, as on the page of a server.
        plot: the author's own plots of a result (see `_plots`).
        place: the GPU on which the author's functions compute, if it is one (see `_devices`).
        framework: what the author's functions are written in, for people; `None` when it is not known.
    """

    name: str
    version: str = "unknown"
    description: str = ""
    input_schema: type[BaseModel]
    output_schema: type[BaseModel]
    implementations: Mapping[str, Implementation]
    function: Callable[..., Any]
    content_hash: str
    jax_function: Callable[[Any], Any] | None = None
    jax_derivatives: bool = True
    batching: Batching | None = None
    merge_up_to: int = 0
    prices: Mapping[str, float] = field(default_factory=dict)
    sparsity: Sparsity = field(default_factory=dict)
    cheap: bool = False
    plot: Callable[[Any, Any], Any] | None = None
    place: Place | None = None
    framework: str | None = None

    def __post_init__(self) -> None:
        problem = problem_of_prices(self.prices)
        if problem is not None:
            raise DefinitionError(f"prices of {self.name}: {problem}.", code="bad_prices")
        object.__setattr__(self, "sparsity", self._read_sparsity())
        if self.batching not in (None, *get_args(Batching)):
            raise DefinitionError(
                f"{self.name} declares batching {self.batching!r}; expected 'elementwise', 'leading' or "
                "nothing.",
                code="bad_batching",
            )

    def _read_sparsity(self) -> Sparsity:
        if not self.sparsity:
            return {}
        try:
            found = read_sparsity(self.sparsity)
        except ValueError as problem:
            raise DefinitionError(
                f"sparsity of {self.name}: {problem}.", code="bad_sparsity"
            ) from None
        _check_paths(self.name, "outputs", found, self.output_schema)
        for row in found.values():
            _check_paths(self.name, "inputs", row, self.input_schema)
        return found


def _check_paths(name: str, side: str, paths: Iterable[str], schema: type[BaseModel]) -> None:
    known = differentiable_leaves(schema)
    for path in paths:
        if not any(matches_pattern(path, pattern) for pattern in known):
            listed = ", ".join(known) or "none"
            raise DefinitionError(
                f"sparsity of {name} names {path!r}; the differentiable {side} are {listed}.",
                code="bad_sparsity",
            )


def hash_files(files: Iterable[tuple[str, Path]]) -> str:
    """A hash over files under the names that matter, in the order of these names."""
    return hash_parts((name, path.read_bytes()) for name, path in sorted(files))


def hash_function(function: Callable[..., Any]) -> str:
    """A hash over a function's code, its defaults and the values it closes over.

    A captured value that cannot be pickled makes the hash unique: better never equal than equal by
    mistake.
    """
    code = getattr(function, "__code__", None)
    parts = [("name", getattr(function, "__qualname__", repr(function)).encode())]
    if code is None:
        return hash_parts([*parts, ("object", _freeze(function))])
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    state = (function.__defaults__, function.__kwdefaults__, captured)
    return hash_parts([*parts, ("code", _code_bytes(code)), ("state", _freeze(state))])


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts
    ]
    return b"\0".join([code.co_code, *constants, " ".join(code.co_names).encode()])


def _freeze(value: Any) -> bytes:
    frozen = io.BytesIO()
    try:
        _Freezer(frozen, protocol=5).dump(value)
    except Exception:
        return uuid.uuid4().bytes
    return frozen.getvalue()


class _Freezer(pickle.Pickler):
    """Pickles values to be hashed: a component by its content, not by its name as in other pickles."""

    def persistent_id(self, value: Any) -> Any:
        from chainrule.runtime._component._local import LocalComponent

        return (value.content_hash, value.config) if isinstance(value, LocalComponent) else None
