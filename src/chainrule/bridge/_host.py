"""The host's side of a call: operands in, results filled, batches fanned out, nothing raised into XLA.

Operands and results are XLA's memory, or that of JAX arrays, and do not leave this side: targets copy what
they hand to an author (`Target`), and what comes back is copied into the results before the target is called
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.bridge._failures import report_failure
from chainrule.bridge._native_batching import BY_DECLARATION, check_first_example
from chainrule.bridge._requests import Request
from chainrule.bridge._routes import answer, answer_batch, takes_batch
from chainrule.bridge._site import Site
from chainrule.bridge._types import ArrayType

# Vectors and results of one request for a batch; what is larger goes in several.
_BATCH_BYTES = 1 << 26


@dataclass(frozen=True)
class Batch:
    """Batch axes that the host loops over, outermost first.

    Attributes:
        sizes: one per axis.
        mapped: for every operand, which of these axes it has; those it has are in front, in order.
    """

    sizes: tuple[int, ...]
    mapped: tuple[tuple[bool, ...], ...]

    @classmethod
    def none(cls, operand_count: int) -> Batch:
        """No batch."""
        return cls((), ((),) * operand_count)

    def select(self, operands: Sequence[np.ndarray], index: tuple[int, ...]) -> list[np.ndarray]:
        """One example."""
        return [
            operand[tuple(i for i, has in zip(index, mapped, strict=True) if has)]
            for operand, mapped in zip(operands, self.mapped, strict=True)
        ]

    def flatten(self, operand: np.ndarray, mapped: tuple[bool, ...]) -> np.ndarray:
        """An operand with one batch axis for all, repeated along those that it does not have."""
        shape = operand.shape[sum(mapped) :]
        ones = (n if has else 1 for n, has in zip(self.sizes, mapped, strict=True))
        full = np.broadcast_to(operand.reshape(*ones, *shape), (*self.sizes, *shape))
        return full.reshape(math.prod(self.sizes), *shape)

    def with_outer(self, size: int, mapped: Sequence[bool]) -> Batch:
        """The batch with one more axis around it."""
        pairs = zip(mapped, self.mapped, strict=True)
        return Batch((size, *self.sizes), tuple((outer, *inner) for outer, inner in pairs))


@dataclass(frozen=True, repr=False)
class Call:
    """All that one equation says: which request, at which site, over which batch."""

    site: Site
    request: Request
    batch: Batch

    def __repr__(self) -> str:
        batch = f", batch {list(self.batch.sizes)}" if self.batch.sizes else ""
        return f"{self.request.name} of {self.site.target.name}{batch}"

    @property
    def operand_types(self) -> tuple[ArrayType, ...]:
        """The types of the operands, batch axes included."""
        spaces = (types for slot in self.request.slots for types in slot.types(self.site))
        types = (*(port.type for port in self.site.inputs), *spaces)
        sizes = self.batch.sizes
        return tuple(
            type_.with_leading(*(size for size, has in zip(sizes, axes, strict=True) if has))
            for type_, axes in zip(types, self.batch.mapped, strict=True)
        )

    @property
    def result_types(self) -> tuple[ArrayType, ...]:
        """The types of the results, batch axes included."""
        types = self.request.result_types(self.site)
        return tuple(type_.with_leading(*self.batch.sizes) for type_ in types)


def compute(call: Call, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Answer a call into `results`."""
    if not call.batch.sizes:
        _store(answer(call.site, call.request, operands), results)
        if call.site.example is not None and call.site.options.spot_check:
            check_first_example(call.site, call.request, operands, results)
        return
    if _only_vectors_vary(call) and takes_batch(call.site, call.request):
        _compute_at_once(call, operands, results)
        return

    def compute_one(index: tuple[int, ...]) -> None:
        try:
            example = call.batch.select(operands, index)
            _store(answer(call.site, call.request, example), [each[index] for each in views])
        except Exception as error:
            error.add_note(f"This happened at batch index {index}.")
            raise

    # Indexing all axes of an array gives a scalar, not a view; one more axis makes it a view.
    views = [each.reshape((*each.shape, 1)) for each in results]
    each_index(compute_one, list(np.ndindex(*call.batch.sizes)), _concurrency(call.site))


def _only_vectors_vary(call: Call) -> bool:
    """Whether a batch is many vectors at one point, in a call that may be made as one."""
    if call.site.options.vmap_method not in BY_DECLARATION or 0 in call.batch.sizes:
        return False
    return not any(map(any, call.batch.mapped[: len(call.site.inputs)]))


def _compute_at_once(
    call: Call, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> None:
    """A batch of vectors in one request, or in several where it is large."""
    first, size = len(call.site.inputs), math.prod(call.batch.sizes)
    primals = operands[:first]
    mapped = zip(operands[first:], call.batch.mapped[first:], strict=True)
    vectors = [call.batch.flatten(vector, axes) for vector, axes in mapped]
    flat_results = [each.reshape(size, *each.shape[len(call.batch.sizes) :]) for each in results]
    nbytes = sum(array.nbytes for array in (*vectors, *flat_results))
    step = max(1, _BATCH_BYTES * size // max(1, nbytes))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        chunk = [*primals, *(vector[part] for vector in vectors)]
        answers = answer_batch(call.site, call.request, chunk, part.stop - start)
        _store(answers, [each[part] for each in flat_results])


def _store(values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    for value, result in zip(values, results, strict=True):
        # An example of a batch has one axis more (see `compute`); shapes are checked before.
        result[...] = value if value.shape == result.shape else value.reshape(result.shape)


def _concurrency(site: Site) -> int:
    options = site.options
    if options.vmap_method == "sequential" or options.effects == "ordered":
        return 1
    return options.max_concurrency or site.target.max_concurrency


def each_index(
    function: Callable[[tuple[int, ...]], None],
    indices: Sequence[tuple[int, ...]],
    concurrency: int,
) -> None:
    """Call a function for every index, some at a time; the error of the first failing index is raised."""
    if concurrency == 1 or len(indices) <= 1:
        for index in indices:
            function(index)
        return
    # Threads of its own: a call made inside another call's example must not wait for that one's threads.
    with ThreadPoolExecutor(min(concurrency, len(indices)), "chainrule-fan-out") as pool:
        futures = [pool.submit(function, index) for index in indices]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


class HostCall:
    """A `Call` that XLA can make: see `chainrule._jaxpr.HostFunction`."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.targets: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"HostCall({self.call})"

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Fill `results`; return `None`, or the text of the error. Never raises."""
        try:
            compute(self.call, operands, results)
        except BaseException as error:
            return report_failure(error, repr(self.call), operands, results)
        return None

    def evaluate(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same outside XLA: new results, exceptions as they are."""
        results = [np.empty(type_.shape, type_.dtype) for type_ in self.call.result_types]
        compute(self.call, operands, results)
        return results


def host_call(call: Call) -> HostCall:
    """The one `HostCall` of a call, so that equal equations compile to equal instructions."""
    known: dict[Hashable, Any] = call.site.host_functions
    key = (call.request, call.batch)
    found = known.get(key)
    if found is None:
        found = known.setdefault(key, HostCall(call))
    return found
