"""What each derivative endpoint says at the sampled elements, and along one direction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule.runtime._derivatives._kinds import JACOBIAN, JVP, VJP, DerivativeKind
from chainrule.runtime._derivatives._layout import Layout, contract
from chainrule.runtime.testing._references import Samples
from chainrule.runtime.testing._subject import Subject
from chainrule.runtime.testing._taylor import Direction


class Answers:
    """A first-order derivative endpoint of a component at one point.

    Args:
        kind: which endpoint.
        subject: the component.
    """

    def __init__(self, kind: DerivativeKind, subject: Subject) -> None:
        self._kind = kind
        self._subject = subject

    def slope(self, direction: Direction) -> float:
        """⟨u, J v⟩, from one call."""
        if self._kind is JACOBIAN:
            pushed = {
                out: sum(
                    contract(JVP, row[p], v, input_rank=np.ndim(v), path=p, batched=False)
                    for p, v in direction.tangent.items()
                )
                for out, row in self._jacobian.items()
            }
            return direction.weigh(pushed)
        if self._kind is VJP:
            return direction.along(self._ask(direction.cotangent))
        return direction.weigh(self._ask(direction.tangent))

    def entries(self, samples: Samples) -> np.ndarray:
        """`matrix[row_ids][:, column_ids]` from the Jacobian, a JVP per column or a VJP per row."""
        rows, columns = samples.row_ids, samples.column_ids
        if self._kind is JACOBIAN:
            return _matrix(self._jacobian, samples)[np.ix_(rows, columns)]
        given, asked, answer = (
            (samples.columns, columns, samples.rows)
            if self._kind is JVP
            else (samples.rows, rows, samples.columns)
        )
        dtypes = self._subject.dtypes("inputs" if self._kind is JVP else "outputs")
        vectors = [
            answer.join(self._ask(_unit_vector(given, dtypes, element))) for element in asked
        ]
        matrix = np.array(vectors).reshape(len(asked), answer.size)
        return matrix[:, rows].T if self._kind is JVP else matrix[:, columns]

    @cached_property
    def _jacobian(self) -> Any:
        return self._subject.differentiate(self._kind.endpoint)

    def _ask(self, vector: Mapping[str, Any]) -> Any:
        return self._subject.differentiate(self._kind.endpoint, vector)


def _unit_vector(layout: Layout, dtypes: Mapping[str, np.dtype], element: int) -> dict[str, Any]:
    vector = np.zeros(layout.size)
    vector[element] = 1.0
    return {path: part.astype(dtypes[path]) for path, part in layout.split(vector).items()}


def _matrix(blocks: Any, samples: Samples) -> np.ndarray:
    def dense(block: Any) -> np.ndarray:
        return block.todense() if isinstance(block, SparseArray) else np.asarray(block)

    shape = (samples.rows.size, samples.columns.size)
    matrix = np.zeros(shape)
    for out_path, rows in samples.rows.slices().items():
        for in_path, columns in samples.columns.slices().items():
            part = matrix[rows, columns]
            part[...] = dense(blocks[out_path][in_path]).reshape(part.shape)
    return matrix
