"""The files that a command reads and writes: plain JSON, or NumPy's npz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chainrule._codec import Limits
from chainrule._errors import ComponentError, LimitError
from chainrule._paths import split_path
from chainrule._trees import flatten_with_paths, is_arraylike

Format = Literal["json", "npz"]
_REST = "_json"


def write_payload(file: Path, payload: Any, format: Format) -> None:
    """Write nested data with arrays."""
    if format == "json":
        file.write_text(json.dumps(payload, default=_listed), encoding="utf-8")
        return
    leaves = flatten_with_paths(payload)
    arrays = {path: np.asarray(leaf) for path, leaf in leaves.items() if is_arraylike(leaf)}
    rest = {path: leaf for path, leaf in leaves.items() if not is_arraylike(leaf)}
    if rest:
        arrays[_REST] = np.array(json.dumps(rest, default=_listed))
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _listed(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def read_result(file: Path, format: Format, limits: Limits) -> Any:
    """Read what a command wrote.

    Raises:
        LimitError: the file is larger than the limits allow.
        ComponentError: it is not in the format (`command_bad_output`).
    """
    size = file.stat().st_size
    if size > limits.max_body_bytes:
        raise LimitError(
            f"The command wrote {size} bytes, at most {limits.max_body_bytes} are read.",
            code="output_too_large",
        )
    try:
        return _read_json(file) if format == "json" else _read_npz(file)
    except Exception as error:
        raise ComponentError(
            f"The command wrote a result that is not {format}: {error}", code="command_bad_output"
        ) from error


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _read_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as archive:
        leaves: dict[str, Any] = {name: archive[name] for name in archive.files}
    rest = leaves.pop(_REST, None)
    if rest is not None:
        leaves |= json.loads(str(rest))
    return _nest(leaves)


def _nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings from `{path: leaf}`; a result keyed by paths keeps them as keys elsewhere."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = split_path(path)
        node = tree
        for segment in parents:
            node = node.setdefault(str(segment), {})
        node[str(last)] = leaf
    return tree
