"""Sampled entries of the Jacobian as each derivative endpoint sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chainrule.runtime._codec import SparseArray
from chainrule.runtime._derivatives._kinds import JACOBIAN, JVP, DerivativeKind
from chainrule.runtime._derivatives._layout import Layout
from chainrule.runtime.testing._references import Samples
from chainrule.runtime.testing._subject import Subject

__all__ = ["entries_of"]


def entries_of(kind: DerivativeKind, subject: Subject, samples: Samples) -> np.ndarray:
    """`matrix[row_ids][:, column_ids]` from one Jacobian, a JVP per column or a VJP per row."""
    rows, columns = samples.row_ids, samples.column_ids
    if kind is JACOBIAN:
        return _matrix(subject.differentiate(kind.endpoint), samples)[np.ix_(rows, columns)]
    given, asked, answer = (
        (samples.columns, columns, samples.rows)
        if kind is JVP
        else (samples.rows, rows, samples.columns)
    )
    dtypes = subject.dtypes("inputs" if kind is JVP else "outputs")
    vectors = [
        answer.join(subject.differentiate(kind.endpoint, _unit_vector(given, dtypes, element)))
        for element in asked
    ]
    matrix = np.array(vectors).reshape(len(asked), answer.size)
    return matrix[:, rows].T if kind is JVP else matrix[:, columns]


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
