"""Abstract evaluation against the real thing."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule._paths import join_path
from chainrule._trees import (
    flatten_with_paths,
    get_at_path,
    is_arraylike,
    iterate_leaves,
    map_with_paths,
)
from chainrule.runtime.testing._report import Check
from chainrule.runtime.testing._subject import Subject


def check_shapes(subject: Subject) -> Check:
    """Whether `abstract_eval` foretells the shape and dtype of every array that `apply` returns."""
    real = {
        path: _facts(leaf)
        for path, leaf in flatten_with_paths(subject.outputs).items()
        if is_arraylike(leaf)
    }
    try:
        abstract_inputs = map_with_paths(_abstract, subject.inputs)
        foretold = _avals(subject.component.abstract_eval(abstract_inputs))
    except Exception as error:
        return Check.raised("abstract_eval", "shapes", error)
    wrong = [
        f"{path}: foretold {foretold.get(path, 'nothing')}, got {facts}"
        for path, facts in real.items()
        if foretold.get(path) != facts
    ]
    summary = "; ".join(wrong) or "shapes and dtypes are as foretold"
    return Check("abstract_eval", "shapes", not wrong, len(real), summary)


def _facts(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _abstract(path: str, leaf: Any) -> Any:
    if not is_arraylike(leaf):
        return leaf
    return {"shape": list(leaf.shape), "dtype": np.dtype(leaf.dtype).name}


def _avals(tree: Any) -> dict[str, str]:
    """Path → facts of every abstract array: a node with just `shape` and `dtype`."""
    found: dict[str, str] = {}
    for segments, _ in iterate_leaves(tree):
        if segments[-1:] == ("dtype",):
            path = join_path(*segments[:-1])
            node = get_at_path(tree, path)
            found[path] = f"{node['dtype']}{list(node['shape'])}"
    return found
