"""What a forward pass leaves for the derivative that follows it.

There are two ways to leave something, and one store for both:

    an author's `apply` returns `WithResiduals`     any framework, see below
    `jax_apply` keeps the backward function         `set_jax_vjp_cache_size`; the JAX half is in
                                                    `jax_recipes._residuals`

    def apply(inputs):
        u, factors = solve(inputs)
        return WithResiduals({"u": u}, factors)

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
        return {"f": solve_transposed(residuals, cotangent_vector["u"])}

A derivative that takes `residuals` is given what `apply` returned for the same inputs. They are kept in
memory and, where several processes answer for one component, in a folder they share; when they are not
there any more, `apply` runs again. So the author never has to look.

Lifetimes: arrays in dictionaries, lists, tuples, models and dataclasses are copied when they are kept and
again when they are handed out: `apply` may use its buffers again, and a derivative may overwrite what it
gets. Other objects (a factorisation, say) are shared by all calls that use them. JAX arrays cannot change
and are never copied.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chainrule._content_store import SharedFolder, bytes_of, content_digest, content_name
from chainrule._device import is_on_device, own_copy, own_copy_of_array, same_numbers
from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import InputError
from chainrule._lru_cache import LRUCache
from chainrule._trees import flatten_with_paths, is_arraylike, iterate_leaves
from chainrule.runtime._component._definition import takes_argument
from chainrule.runtime._runs import count_reuse

if TYPE_CHECKING:
    from chainrule.runtime._component._definition import Implementation
    from chainrule.runtime._component._local import LocalComponent

_log = logging.getLogger(__name__)

RESIDUALS = "residuals"
"""The argument by which a derivative asks for them."""
MAX_ENTRIES = 64
DEFAULT_MAX_BYTES = 1 << 30
COMPARE_BYTES = 1 << 22
"""Comparison works in pieces that fit the cache, and ends at the first difference."""


# --- the store -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    arrays: tuple[Any, ...]
    residuals: Any
    nbytes: int


class ResidualStore:
    """What the last forward passes left, by program and content of the inputs. Safe between threads.

    In memory an entry is looked up by a digest of the inputs and then compared with them byte for byte, so
    a collision costs a comparison and never returns another point's gradient. Because equality decides,
    the digest need not read all of a large array.

    In the shared folder there is nothing to compare with: entries lie there under a cryptographic hash of
    everything that they depend on (`content_name`), which the caller makes.

    Args:
        max_entries: how many forward passes are kept in memory; 0 keeps none.
        max_bytes: the sum over entries of inputs and residuals in memory, and of residuals in the folder.
        shared: where other processes of the same component find what this one keeps, if there are any.
        only_if_it_pays: let the JAX recipe leave out programs for which keeping residuals costs more than
            the forward pass it saves, by a count of operations.
    """

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        shared: SharedFolder | None = None,
        only_if_it_pays: bool = False,
    ) -> None:
        self.max_entries = max_entries
        self.shared = shared
        self.only_if_it_pays = only_if_it_pays
        self._entries: LRUCache[Hashable, _Entry] = LRUCache(
            max_entries, max_bytes=max_bytes, size_of=lambda entry: entry.nbytes
        )

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, program: Hashable, arrays: Sequence[Any]) -> Any | None:
        """The residuals of a program at these inputs, or `None`."""
        if not len(self._entries):
            return None
        entry = self._entries.get((program, content_digest(arrays)))
        return entry.residuals if entry and same_content(entry.arrays, arrays) else None

    def keep(self, program: Hashable, arrays: tuple[Any, ...], residuals: Any, nbytes: int) -> None:
        """Remember residuals under the inputs; `arrays` must be owned (see `own`)."""
        size = nbytes + sum(array.nbytes for array in arrays)
        entry = _Entry(arrays, residuals, size)
        self._entries.put((program, content_digest(arrays)), entry)

    def find_shared(self, name: str | None) -> Any | None:
        """What a process of this component has shared under a name."""
        if self.shared is None or name is None:
            return None
        content = self.shared.read(name)
        return None if content is None else pickle.loads(content)

    def share(self, name: str | None, residuals: Any) -> None:
        """Let the other processes of this component find residuals that can be pickled."""
        if self.shared is None or name is None:
            return
        try:
            content = pickle.dumps(residuals, protocol=5)
        except Exception as error:
            _log.warning(
                "Residuals stay in this process: they cannot be pickled (%s). Other workers run the "
                "forward pass again.",
                error,
            )
            return
        self.shared.write(name, content)


def same_content(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of arrays agree in dtype, shape and every byte (so NaN equals itself)."""
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: Any, right: Any) -> bool:
    if left is right and not isinstance(left, np.ndarray):
        return True
    if is_on_device(left) and is_on_device(right):
        return same_numbers(left, right)
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    a, b = bytes_of(left), bytes_of(right)
    return all(
        np.array_equal(*_words(a[i : i + COMPARE_BYTES], b[i : i + COMPARE_BYTES]))
        for i in range(0, a.size, COMPARE_BYTES)
    )


def _words(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Eight bytes at a time where the length allows it: eight times fewer comparisons.
    return (a.view(np.uint64), b.view(np.uint64)) if a.size % 8 == 0 else (a, b)


def own(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Arrays that nothing else can change: copies of those that can be written to, others as they are."""
    return tuple(map(own_copy_of_array, arrays))


def split_content(inputs: Any) -> tuple[str | None, list[Any]]:
    """Inputs as a name of everything but the arrays, and the arrays.

    The name is `None` where the content of a leaf cannot be seen; nothing can be kept then.
    """
    leaves = flatten_with_paths(inputs)
    arrays = {path: leaf for path, leaf in leaves.items() if _is_plain_array(leaf)}
    rest = {path: None if path in arrays else leaf for path, leaf in leaves.items()}
    return content_name(rest), list(arrays.values())


def _is_plain_array(leaf: Any) -> bool:
    return is_on_device(leaf) or (is_arraylike(leaf) and not np.asarray(leaf).dtype.hasobject)


# --- residuals that an author's `apply` returns ------------------------------------------------------


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


def handing_on_residuals(
    given: Mapping[str, Implementation], *, max_bytes: int, folder: Path | None
) -> Mapping[str, Implementation]:
    """Implementations between which residuals are handed on; the same ones if no derivative takes any.

    Args:
        given: endpoint → the author's function.
        max_bytes: of the store, in memory and in the folder each; 0 keeps nothing.
        folder: shared by the processes of one component; `None` when there is only this one.
    """
    takers = [
        name
        for name in DERIVATIVE_ENDPOINTS
        if name in given and takes_argument(given[name].function, RESIDUALS)
    ]
    if not takers:
        return given
    shared = SharedFolder(folder, max_bytes=max_bytes) if folder is not None and max_bytes else None
    store = ResidualStore(MAX_ENTRIES if max_bytes else 0, max_bytes=max_bytes, shared=shared)
    forward = _Forward(given["apply"].function, store)
    found = {**given, "apply": replace(given["apply"], function=forward.apply)}
    for name in takers:
        capability = replace(given[name].capability, residuals=bool(max_bytes))
        found[name] = replace(
            given[name], function=_given(given[name].function, forward), capability=capability
        )
    return found


class _Forward:
    """An author's `apply` whose residuals are kept."""

    def __init__(self, function: Callable[[Any], Any], store: ResidualStore) -> None:
        self._function = function
        self._store = store

    def apply(self, inputs: Any) -> Any:
        """The outputs; residuals are kept."""
        place = self._place_of(inputs)  # now: the author may overwrite the inputs
        result = self._function(inputs)
        if not isinstance(result, WithResiduals):
            return result
        self._keep(place, result.residuals)
        return result.outputs

    def residuals(self, inputs: Any) -> Any:
        """The residuals at some inputs, kept or computed."""
        place = self._place_of(inputs)
        found = self._find(place)
        if place is not None:
            count_reuse("residuals", found=found is not None)
        if found is not None:
            return own_copy(found.value)
        result = self._function(own_copy(inputs))
        if not isinstance(result, WithResiduals):
            return None
        self._keep(place, result.residuals)
        return result.residuals

    def _place_of(self, inputs: Any) -> _Place | None:
        """Where the residuals of some inputs are kept; `None` where they are not."""
        if not self._store.max_entries:
            return None
        rest, arrays = split_content(inputs)
        if rest is None:
            return None
        shared = content_name(rest, arrays) if self._store.shared is not None else None
        return _Place(rest, own(arrays), shared)

    def _find(self, place: _Place | None) -> _Kept | None:
        if place is None:
            return None
        found = self._store.find(place.rest, place.arrays)
        if found is None:
            found = self._store.find_shared(place.shared)
            if found is not None:
                self._remember(place, found)
        return found

    def _keep(self, place: _Place | None, residuals: Any) -> None:
        if place is not None:
            kept = _Kept(own_copy(residuals))
            self._remember(place, kept)
            self._store.share(place.shared, kept)

    def _remember(self, place: _Place, kept: _Kept) -> None:
        leaves = (leaf for _, leaf in iterate_leaves(kept.value))
        nbytes = sum(getattr(leaf, "nbytes", 64) for leaf in leaves)
        self._store.keep(place.rest, place.arrays, kept, nbytes)


class _Place(NamedTuple):
    """Where residuals lie: in memory under two of these, in the shared folder under the third."""

    rest: str
    arrays: tuple[Any, ...]
    shared: str | None


@dataclass(frozen=True)
class _Kept:
    """Residuals in the store, where `None` means that there are none; an author may keep `None`."""

    value: Any


def _given(function: Callable[..., Any], forward: _Forward) -> Callable[..., Any]:
    """The author's derivative as everything else calls it: without residuals."""

    @wraps(function)
    def derivative(inputs: Any, **arguments: Any) -> Any:
        return function(inputs=inputs, **arguments, residuals=forward.residuals(inputs))

    signature = inspect.signature(function)
    kept = [p for name, p in signature.parameters.items() if name != RESIDUALS]
    derivative.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return derivative


# --- residuals that the JAX recipes keep -------------------------------------------------------------

_of_jax = ResidualStore(0)


def set_jax_vjp_cache_size(
    size: int, *, max_bytes: int = DEFAULT_MAX_BYTES, only_if_it_pays: bool = False
) -> None:
    """Keep the backward functions of the last `size` calls of `jax_apply`.

    A `jax_vjp` with the same inputs then skips its forward pass. Off (0) by default. What was kept before is
    dropped.

    Args:
        size: how many calls are remembered; 0 turns it off.
        max_bytes: bound on the memory of inputs and residuals together.
        only_if_it_pays: keep residuals only where they cost less than the forward pass they save. This is
            decided once per program, by a count of its operations.

    Raises:
        InputError: a size or a bound that is not an integer ≥ 0 (`bad_cache_size`).
    """
    for name, bound in (("size", size), ("max_bytes", max_bytes)):
        if not isinstance(bound, int) or bound < 0:
            raise InputError(
                f"{name} must be an integer of 0 or more; found {bound!r}.", code="bad_cache_size"
            )
    global _of_jax
    _of_jax = ResidualStore(size, max_bytes=max_bytes, only_if_it_pays=only_if_it_pays)


def jax_residuals() -> ResidualStore:
    """The store of the JAX recipes."""
    return _of_jax


def reuse_residuals(component: LocalComponent, *, remembered: int = 4) -> None:
    """Let a component that uses the JAX recipes keep what backward passes need, where that pays.

    For processes that answer the calls of one component. Whether it pays is decided by a count of the
    operations of each program, and logged. An author who set the size of the cache is not overruled. The
    processes of one component share what they keep.

    Args:
        component: the component, loaded.
        remembered: how many forward passes are kept. A process answers one call at a time, mostly `apply`
            and then its gradient; a few callers may interleave.
    """
    if "chainrule.runtime.jax_recipes" not in sys.modules:
        return
    if not jax_residuals().max_entries:
        set_jax_vjp_cache_size(remembered, only_if_it_pays=True)
        _log.info(
            "%s: VJP residuals of the last %d calls are kept if it pays", component.name, remembered
        )
    config = component.config
    if config.residual_folder is not None:
        jax_residuals().shared = SharedFolder(
            config.residual_folder, max_bytes=config.max_residual_bytes
        )
