"""What a forward pass leaves for the derivative that follows, in any framework.

    def apply(inputs):
        u, factors = solve(inputs)
        return WithResiduals({"u": u}, factors)

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
        return {"f": solve_transposed(residuals, cotangent_vector["u"])}

A derivative that takes `residuals` is given what `apply` returned for the same inputs. They are kept under
the content of the inputs, in memory and, where several processes answer for one component, in a folder they
share; when they are not there any more, `apply` is run again. So the author never has to look.

Arrays in dictionaries, lists, tuples, models and dataclasses are copied when they are kept and again when
they are handed out: `apply` may use its buffers again, and a derivative may overwrite what it gets. Other
objects (a factorisation, say) are shared by all calls that use them.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

from chainrule._lru_cache import LRUCache
from chainrule._trees import iterate_leaves
from chainrule.runtime._component._definition import Implementation
from chainrule.runtime._content_store import SharedFolder, content_name
from chainrule.runtime._endpoints import DERIVATIVE_ENDPOINTS
from chainrule.runtime._own_arrays import own_copy

_log = logging.getLogger(__name__)

RESIDUALS = "residuals"
"""The argument by which a derivative asks for them."""

_MAX_ENTRIES = 64


@dataclass(frozen=True)
class WithResiduals:
    """Returned by `apply`: the outputs, and what its derivatives can use.

    Attributes:
        outputs: what `apply` returns otherwise.
        residuals: anything; what can be pickled is also found by other workers of the same component.

    Example:
        >>> WithResiduals({"y": 4.0}, residuals={"x": 2.0}).outputs
        {'y': 4.0}
    """

    outputs: Any
    residuals: Any


@dataclass(frozen=True)
class _Entry:
    residuals: Any
    nbytes: int


class ResidualStore:
    """Residuals under the names of inputs, bounded. Safe between threads, and between processes.

    Args:
        max_bytes: of all residuals together, in memory and in the folder each; 0 keeps nothing.
        folder: shared by the processes of one component; `None` when there is only this one.
    """

    def __init__(self, *, max_bytes: int, folder: Path | None = None) -> None:
        self._max_bytes = max_bytes
        self._folder = None if folder is None else SharedFolder(folder, max_bytes=max_bytes)
        self._entries: LRUCache[str, _Entry] = LRUCache(
            _MAX_ENTRIES, max_bytes=max_bytes, size_of=lambda entry: entry.nbytes
        )

    def keep(self, name: str, residuals: Any) -> None:
        """Keep residuals; the oldest make room for them."""
        if not self._max_bytes:
            return
        self._entries.put(name, _Entry(own_copy(residuals), _size(residuals)))
        if self._folder is not None:
            self._share(name, residuals, self._folder)

    def find(self, name: str) -> _Entry | None:
        """A copy of what was kept under a name."""
        entry = self._entries.get(name)
        if entry is not None:
            return _Entry(own_copy(entry.residuals), entry.nbytes)
        if self._folder is None:
            return None
        content = self._folder.read(name)
        if content is None:
            return None
        residuals = pickle.loads(content)
        self._entries.put(name, _Entry(own_copy(residuals), len(content)))
        return _Entry(residuals, len(content))

    def _share(self, name: str, residuals: Any, folder: SharedFolder) -> None:
        try:
            content = pickle.dumps(residuals, protocol=5)
        except Exception as error:
            _log.warning(
                "Residuals stay in this process: they cannot be pickled (%s). Other workers run the "
                "forward pass again.",
                error,
            )
            return
        folder.write(name, content)


def _size(residuals: Any) -> int:
    return sum(getattr(leaf, "nbytes", 64) for _, leaf in iterate_leaves(residuals))


def handing_on_residuals(
    given: Mapping[str, Implementation], *, max_bytes: int, folder: Path | None
) -> Mapping[str, Implementation]:
    """Implementations between which residuals are handed on; the same ones if no derivative takes any.

    Args:
        given: endpoint → the author's function.
        max_bytes, folder: of the store.
    """
    takers = [
        name for name in DERIVATIVE_ENDPOINTS if name in given and _takes(given[name].function)
    ]
    if not takers:
        return given
    store = ResidualStore(max_bytes=max_bytes, folder=folder)
    forward = _Forward(given["apply"].function, store)
    found = {**given, "apply": replace(given["apply"], function=forward.apply)}
    for name in takers:
        found[name] = replace(given[name], function=_given(given[name].function, forward))
    return found


def _takes(function: Callable[..., Any]) -> bool:
    try:
        return RESIDUALS in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class _Forward:
    """`apply`, with a memory."""

    def __init__(self, function: Callable[[Any], Any], store: ResidualStore) -> None:
        self._function = function
        self._store = store

    def apply(self, inputs: Any) -> Any:
        """The outputs; residuals are kept."""
        name = content_name(inputs)  # now: the author may overwrite the inputs
        result = self._function(inputs)
        if not isinstance(result, WithResiduals):
            return result
        if name is not None:
            self._store.keep(name, result.residuals)
        return result.outputs

    def residuals(self, inputs: Any) -> Any:
        """The residuals at some inputs, kept or computed."""
        name = content_name(inputs)
        entry = None if name is None else self._store.find(name)
        if entry is not None:
            return entry.residuals
        result = self._function(own_copy(inputs))
        if not isinstance(result, WithResiduals):
            return None
        if name is not None:
            self._store.keep(name, result.residuals)
        return result.residuals


def _given(function: Callable[..., Any], forward: _Forward) -> Callable[..., Any]:
    """The author's derivative as everybody else calls it: without residuals."""

    @wraps(function)
    def derivative(inputs: Any, **arguments: Any) -> Any:
        return function(inputs=inputs, **arguments, residuals=forward.residuals(inputs))

    signature = inspect.signature(function)
    kept = [p for name, p in signature.parameters.items() if name != RESIDUALS]
    derivative.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return derivative
