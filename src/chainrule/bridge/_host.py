"""Calls outside of XLA: operands in, results filled, batches fanned out, nothing raised into XLA.

Memory: operands and results are XLA's buffers, or those of arrays of the caller. They are valid during the
call only, and do not leave this side. Targets copy what they hand to an author (see `Target`), so that the
author's code may keep, change or return its inputs. What comes back is copied into the results before the
target is called again, so that it may return the same buffer each time.

Nothing is kept between a forward call and the backward call that follows: the primals are operands of both.
The two halves of a call of a remote component (`StartCall`, `FinishCall`) keep copies of the operands and the
results in between, up to a limit.

Arrays are NumPy's, or on a GPU, where the component computes there and XLA hands over its buffers
(`HostCall.run_on_device`). The same code answers both.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypedDict

import numpy as np

from chainrule._device import DeviceLibrary, fill, is_on_device, loaded_library, to_host
from chainrule._errors import ComponentError
from chainrule._lru_cache import LRUCache
from chainrule.bridge._failures import report_failure
from chainrule.bridge._requests import Call, Request
from chainrule.bridge._routes import (
    answer,
    answer_batch,
    answer_on_device,
    answers_on_device,
    takes_batch,
)
from chainrule.bridge._site import Site
from chainrule.bridge._target import DECLARED, Target

# Vectors and results of one request for a batch; what is larger goes in several.
_BATCH_BYTES = 1 << 26


def _compute(call: Call, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Answer a call into `results`."""
    if not call.batch.sizes:
        _store(_answer(call, operands), results)
        if call.site.example is not None and call.site.options.spot_check:
            _check_first_example(call.site, call.request, operands, results)
        return
    if takes_batch(call.site, call.request) and (points := _axes_of_points(call)) is not None:
        _compute_each_point(call, points, operands, results)
        return

    def compute_one(index: tuple[int, ...]) -> None:
        try:
            example = call.batch.select(operands, index)
            _store(_answer(call, example), [each[index] for each in views])
        except Exception as error:
            error.add_note(f"This happened at batch index {index}.")
            raise

    # Indexing all axes of an array gives a scalar, not a view; one more axis makes it a view.
    views = [each.reshape((*each.shape, 1)) for each in results]
    _each_index(compute_one, list(np.ndindex(*call.batch.sizes)), _concurrency(call.site))


def _answer(call: Call, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    is_device = call.site.target.device_library is not None and any(map(is_on_device, operands))
    if is_device:  # the work is under way when it returns: nothing to measure
        return answer_on_device(call.site, call.request, operands)
    start = time.perf_counter()
    answers = answer(call.site, call.request, operands)
    call.site.target.timings.note(call.request.name, time.perf_counter() - start)
    return answers


def _check_first_example(
    site: Site, request: Request, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> None:
    """Compare the first example of a native batch with a call of its own.

    Raises:
        ComponentError: they differ, so the component does not batch as it declares.
    """
    assert site.example is not None
    alone = answer(site.example, request, [operand[0] for operand in operands])
    for port, one, many in zip(request.result.ports(site), alone, results, strict=True):
        dtype = port.type.dtype
        # Sums in another order differ by rounding, and an iteration may stop a step earlier: both are far
        # below this. An axis that is taken for another one makes differences of the order of the values.
        tolerance = 100 * float(np.sqrt(np.finfo(dtype).eps)) if dtype.kind in "fc" else 0
        first = to_host(many[0])
        if not np.allclose(to_host(one), first, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ComponentError(
                f"`{request.name}` of {site.target.name} with a batch axis in front gives another result at "
                f"`{port.path}` for the first example than without: it does not treat leading axes as "
                'batch axes. Remove its `batching` declaration, or use `vmap_method="concurrent"`.',
                code="batching_mismatch",
                path=port.path,
            )


def _axes_of_points(call: Call) -> int | None:
    """How many batch axes, from the first on, hold points, if the others hold many vectors for each of them.

    `None` where every vector has a point of its own, or where a batch must not be sent as one.
    """
    if call.site.options.vmap_method not in DECLARED or 0 in call.batch.sizes:
        return None
    primals = call.batch.mapped[: len(call.site.inputs)]
    varying = [k for k in range(len(call.batch.sizes)) if any(axes[k] for axes in primals)]
    points = varying[-1] + 1 if varying else 0
    return points if points < len(call.batch.sizes) else None


def _compute_each_point(
    call: Call, points: int, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> None:
    """One request for all vectors of each point."""
    inner = replace(call, batch=call.batch.within(points))

    def compute_one(index: tuple[int, ...]) -> None:
        example = call.batch.select(operands, index)
        _compute_at_once(inner, example, [each[index] for each in results])

    _each_index(compute_one, list(np.ndindex(*call.batch.sizes[:points])), _concurrency(call.site))


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
    # nbytes / size is what one vector takes with its result; as many go together as `_BATCH_BYTES` has room
    # for.
    step = max(1, _BATCH_BYTES * size // max(1, nbytes))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        chunk = [*primals, *(vector[part] for vector in vectors)]
        began, count = time.perf_counter(), part.stop - start
        answers = answer_batch(call.site, call.request, chunk, count)
        call.site.target.timings.note(call.request.name, time.perf_counter() - began, count)
        _store(answers, [each[part] for each in flat_results])


def _store(values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    for value, result in zip(values, results, strict=True):
        # An example of a batch has one axis more (see `_compute`); shapes are checked before.
        fill(result, value if value.shape == result.shape else value.reshape(result.shape))


def _concurrency(site: Site) -> int:
    options = site.options
    if options.vmap_method == "sequential" or options.effects == "ordered":
        return 1
    if site.target.device_library is not None:  # one stream of a GPU does one thing after the other
        return 1
    return options.max_concurrency or site.target.max_concurrency


def _each_index(
    function: Callable[[tuple[int, ...]], None],
    indices: Sequence[tuple[int, ...]],
    concurrency: int,
) -> None:
    """Call a function for every index, some at a time; the error of the first failing index is raised."""
    if concurrency == 1 or len(indices) <= 1:
        for index in indices:
            function(index)
        return
    # New threads for each batch: with shared ones, a batch inside an example of another batch would wait for
    # threads that wait for it.
    with ThreadPoolExecutor(min(concurrency, len(indices)), "chainrule-fan-out") as pool:
        futures = [pool.submit(function, index) for index in indices]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


class _HostFunction(ABC):
    """A function that XLA can call: a `HostFunction` of `chainrule._jaxpr._host_call`.

    Args:
        call: what it is for.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.targets: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.call})"

    @abstractmethod
    def fill(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Fill `results`."""

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Fill `results`; return `None`, or the text of the error. Never raises."""
        try:
            self.fill(operands, results)
        except BaseException as error:
            return report_failure(error, repr(self.call), operands, results)
        return None


class HostCall(_HostFunction):
    """A call that is made and answered while XLA waits."""

    def fill(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Answer the call into `results`."""
        _compute(self.call, operands, results)

    def run_on_device(self, stream: int, operands: list[Any], results: list[Any]) -> str | None:
        """Fill buffers on a GPU; return `None`, or the text of the error. Never raises."""
        try:
            self._fill_on_device(stream, operands, results)
        except BaseException as error:
            return report_failure(error, repr(self.call), operands, results)
        return None

    def _fill_on_device(self, stream: int, operands: list[Any], results: list[Any]) -> None:
        library = self._library
        assert library is not None
        with library.running_on(stream):
            arrays = [library.view_buffer(operand) for operand in operands]
            filled = [library.view_buffer(result) for result in results]
            if self._is_for_device:
                _compute(self.call, arrays, filled)
                return
            with library.staged(filled) as on_host:
                _compute(self._call_on_host, [to_host(array) for array in arrays], on_host)

    @cached_property
    def _library(self) -> DeviceLibrary | None:
        return device_library_of(self.call.site.target)

    @cached_property
    def _is_for_device(self) -> bool:
        return answers_on_device(self.call.site, self.call.request)

    @cached_property
    def _call_on_host(self) -> Call:
        """The call for operands that were copied to the host for it, each of which is used once."""
        call, site = self.call, self.call.site
        if call.batch.sizes or (site.example is not None and site.options.spot_check):
            return call
        return replace(call, site=replace(site, target=site.target.taking_arrays()))

    def evaluate(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same outside XLA: new results, exceptions as they are."""
        results = [np.empty(type_.shape, type_.dtype) for type_ in self.call.result_types]
        _compute(self.call, operands, results)
        return results


def device_library_of(target: Target) -> DeviceLibrary | None:
    """What holds the arrays of a call on a GPU: for a target on the host, until they are copied there.

    Through pinned memory of torch or CuPy that is several times faster than through the callback of JAX.
    """
    return target.device_library or loaded_library()


def host_call(call: Call) -> HostCall:
    """The one `HostCall` of a call, so that equal equations compile to equal instructions."""
    known: dict[Hashable, Any] = call.site.host_functions
    key = (call.request, call.batch)
    found = known.get(key)
    if found is None:
        found = known.setdefault(key, HostCall(call))
    return found


# --- Calls of remote components, in two halves: see `chainrule._jaxpr._overlapping`.

# A program that fails half-way never finishes what it has started, so only so much of it is kept.
_MAX_STARTED = 4096
_MAX_BYTES = 1 << 30


class _Work(NamedTuple):
    """A call that was started, and the size of what it keeps until it is finished."""

    results: Future[list[np.ndarray]]
    nbytes: int


_tickets = itertools.count()
_started: LRUCache[int, _Work] = LRUCache(
    _MAX_STARTED, max_bytes=_MAX_BYTES, size_of=lambda work: work.nbytes
)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(32, thread_name_prefix="chainrule-overlap")


class StartCall(_HostFunction):
    """Starts a call; its one result is the ticket.

    It works on copies: after the start XLA may reuse the memory of the operands, although the finish takes
    them, too (it may get them in other buffers).
    """

    def fill(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Hand the call to a thread."""
        copies = [operand.copy() for operand in operands]
        # A call that is larger than the limit is kept alone.
        nbytes = min(_MAX_BYTES, sum(each.nbytes for each in copies))
        ticket = next(_tickets) % 2**31
        work = _pool().submit(host_call(self.call).evaluate, copies)
        _started.put(ticket, _Work(work, nbytes))
        results[0][...] = ticket


class FinishCall(_HostFunction):
    """Waits for a started call and hands out its results; the last two operands are tickets."""

    def fill(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Wait for the thread; make the call here if its start was forgotten."""
        operands.pop()  # the sum of the tickets of the round: it makes XLA start all of these first
        work = _started.pop(int(operands.pop()))
        if work is None:  # more than the limit was started since
            _compute(self.call, operands, results)
        else:
            _store(work.results.result(), results)


class Pair(TypedDict):
    """The two halves of a call."""

    start: StartCall
    finish: FinishCall


def overlapping_pair(call: Call) -> Pair:
    """The two halves of a call, the same ones every time."""
    known: dict[Hashable, Any] = call.site.host_functions
    key = ("overlap", call.request, call.batch)
    return known.setdefault(key, Pair(start=StartCall(call), finish=FinishCall(call)))
