"""Asking a product endpoint for the columns (JVP) or rows (VJP) of the Jacobian, one unit vector each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from chainrule._patterns import Pattern
from chainrule.runtime._derivatives._blocks import Entries
from chainrule.runtime._derivatives._layout import Layout, answered
from chainrule.runtime._derivatives._progress import track
from chainrule.runtime._own_arrays import own_copy

BATCH = 64
"""Unit vectors per call of an endpoint that takes batches: enough to amortise, small enough to hold."""


class UnitVectors:
    """A product endpoint with everything but the vector filled in.

    Args:
        product: the endpoint: `product(inputs, input_paths, output_paths, vector)`.
        inputs: passed on.
        input_paths: passed on, as a set.
        output_paths: passed on, as a set.
        like: arrays in the shapes and dtypes of the vectors.
        answer_paths: which paths the answers are keyed by, in order.
        batched: whether `product` takes `batched=True` and vectors with a leading axis.
    """

    def __init__(
        self,
        product: Callable[..., Mapping[str, Any]],
        inputs: Any,
        input_paths: Sequence[str],
        output_paths: Sequence[str],
        like: Mapping[str, np.ndarray],
        answer_paths: Sequence[str],
        *,
        batched: bool,
    ) -> None:
        self._product = product
        self._arguments = (inputs, tuple(input_paths), tuple(output_paths))
        self._dtypes = {path: array.dtype for path, array in like.items()}
        self._seeds = Layout.of(like)
        self._answer_paths = answer_paths
        self._batched = batched
        self._answers: Layout | None = None

    @property
    def answers(self) -> Layout:
        """The layout of the answers, known from the first one on."""
        if self._answers is None:
            next(self._ask([np.zeros(0, np.int64)]))
        assert self._answers is not None
        return self._answers

    def entries(
        self, pattern: Pattern | None, *, transposed: bool, show_progress: bool
    ) -> Iterator[Entries]:
        """The entries of the Jacobian.

        Args:
            pattern: where answers may be non-zero, seeds as columns; `None` for anywhere.
            transposed: whether the answers are rows of the Jacobian rather than columns.
            show_progress: whether long work shows a bar.
        """
        groups: Sequence[Any] = (
            range(self._seeds.size) if pattern is None else pattern.column_groups
        )
        answers = track(self._ask(groups), "jacobian", len(groups), show=show_progress)
        for group, answer in zip(groups, answers, strict=True):
            if pattern is None:
                yield Entries(*_ordered(slice(None), group, transposed), answer)
            else:
                places, seeds = pattern.entries_in(group)
                yield Entries(*_ordered(places, seeds, transposed), answer[places])

    def _ask(self, groups: Sequence[Any]) -> Iterator[np.ndarray]:
        """The answer to each group of seeds, as a long vector."""
        size = BATCH if self._batched else 1
        for start in range(0, len(groups), size):
            chunk = groups[start : start + size]
            vectors = np.zeros((len(chunk), self._seeds.size))
            for vector, group in zip(vectors, chunk, strict=True):
                vector[group] = 1.0
            yield from self._call(vectors if self._batched else vectors[0])

    def _call(self, vectors: np.ndarray) -> np.ndarray:
        parts = self._seeds.split(vectors)
        vector = {path: part.astype(self._dtypes[path]) for path, part in parts.items()}
        options = {"batched": True} if self._batched else {}
        inputs, *paths = self._arguments
        result = self._product(own_copy(inputs), *map(set, paths), vector, **options)
        answers = {
            path: np.asarray(answered(result, path, "derivative endpoint"))
            for path in self._answer_paths
        }
        lead = int(self._batched)
        self._answers = Layout(
            tuple(answers), tuple(answer.shape[lead:] for answer in answers.values())
        )
        rows = [answer.reshape(len(answer) if lead else 1, -1) for answer in answers.values()]
        return np.concatenate(rows, axis=1)


def _ordered(answer: Any, seed: Any, transposed: bool) -> tuple[Any, Any]:
    return (seed, answer) if transposed else (answer, seed)
