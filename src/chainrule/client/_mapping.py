"""Many inputs through one component, a bounded number at a time, in groups where that pays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import Any

from chainrule._describe import describe_value
from chainrule._errors import ChainruleError, InputError, TransportError
from chainrule.client._jobs import Bar, job_bar
from chainrule.client._transport import Ticket

# The calls compete with each other for places in a queue, and perhaps with those of other programs.
_PATIENCE_S = 60.0

SendMany = Callable[[Sequence[Any], Ticket], Sequence[Any]]
"""Sends a group of inputs; gives a result, or the `ChainruleError`, for each."""


@dataclass(frozen=True)
class Outcome:
    """What came of one input of many.

    Attributes:
        index: which input it was, counted from 0.
        result: what the component returned; `None` when it failed.
        error: why it failed; `None` when it did not.
    """

    index: int
    result: Any = None
    error: ChainruleError | None = None

    def unwrap(self) -> Any:
        """The result.

        Raises:
            ChainruleError: the error, if there is one instead.
        """
        if self.error is not None:
            raise self.error
        return self.result


def check_many(inputs: Any) -> None:
    """Refuse one set of inputs where many are expected.

    Raises:
        InputError: a dictionary, or something that cannot be iterated over (`invalid_input`).
    """
    if isinstance(inputs, (Mapping, str)) or not isinstance(inputs, Iterable):
        raise InputError(
            f"map takes many inputs, one dictionary after the other; found {describe_value(inputs)}. "
            "Pass [inputs, …], or call apply(inputs).",
            code="invalid_input",
        )


def stream_outcomes(
    send_many: SendMany,
    inputs: Iterable[Any],
    *,
    executor: Executor,
    max_in_flight: int,
    group_size: Callable[[], int],
    ordered: bool,
    progress: bool,
    label: str,
) -> Generator[Outcome, None, None]:
    """Outcomes as they come, or in the order of the inputs.

    The next input is taken when there is room for it: inputs whose outcome has not been asked for yet count
    as under way. When the caller stops asking, the calls that are under way are cancelled.
    """
    stream = _Stream(send_many, executor)
    items = enumerate(inputs)
    with _shown(inputs, progress, label) as bar:
        try:
            taken = given = 0
            early: dict[int, Outcome] = {}
            while True:
                # With `ordered`, outcomes that came early count as under way: one slow call bounds what is
                # kept in `early`, and no more inputs are taken meanwhile.
                while room := max_in_flight - taken + given:
                    group = list(islice(items, min(group_size(), room)))
                    if not group:
                        break
                    taken += len(group)
                    stream.start(group)
                if taken == given:
                    return
                for outcome in stream.next_outcomes():
                    early[outcome.index] = outcome
                while early and (not ordered or given in early):
                    outcome = early.pop(given if ordered else next(iter(early)))
                    given += 1
                    yield outcome
                    if bar is not None:
                        bar.advance()
        finally:
            stream.give_up()


class _Stream:
    """Groups under way."""

    def __init__(self, send_many: SendMany, executor: Executor) -> None:
        self._send_many = send_many
        self._executor = executor
        self._done: SimpleQueue[Future[list[Outcome]]] = SimpleQueue()
        self._tickets: dict[Future[list[Outcome]], Ticket] = {}

    def start(self, group: list[tuple[int, Any]]) -> None:
        ticket = Ticket(_PATIENCE_S)
        try:
            future = self._executor.submit(self._run, group, ticket)
        except RuntimeError:  # shut down meanwhile
            raise TransportError("This component has been closed.", code="closed") from None
        # Before the callback is added, which runs at once in this thread where the call is over already: who
        # takes the future out of `_done` finds its ticket.
        self._tickets[future] = ticket
        future.add_done_callback(self._done.put)

    def _run(self, group: list[tuple[int, Any]], ticket: Ticket) -> list[Outcome]:
        if ticket.is_cancelled:
            return []
        answers = self._send_many([item for _, item in group], ticket)
        return [
            Outcome(index, error=answer)
            if isinstance(answer, ChainruleError)
            else Outcome(index, answer)
            for (index, _), answer in zip(group, answers, strict=True)
        ]

    def next_outcomes(self) -> list[Outcome]:
        future = self._done.get()
        del self._tickets[future]
        return future.result()

    def give_up(self) -> None:
        for ticket in list(self._tickets.values()):
            ticket.cancel()


def results_of(outcomes: Generator[Outcome, None, None]) -> Iterator[Any]:
    """Results; the first failure is raised, and the calls that are under way are cancelled."""
    with closing(outcomes):
        for outcome in outcomes:
            if outcome.error is not None:
                outcomes.throw(outcome.error)
            yield outcome.result


def _shown(inputs: Iterable[Any], progress: bool, label: str) -> AbstractContextManager[Bar | None]:
    if not progress:
        return nullcontext()
    return job_bar(label, len(inputs) if isinstance(inputs, Sized) else None)
