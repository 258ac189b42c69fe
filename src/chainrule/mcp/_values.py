"""Values, and the schemas of arguments, as a language model reads and writes them.

Arrays are nested lists of numbers, scalars are numbers. Numbers that JSON does not have are the texts "NaN",
"Infinity" and "-Infinity", with a note beside the result. An array of more elements than the limit is written
to a file, and described by its shape, dtype and extremes; such a file can be given as an input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from chainrule._errors import NotGrantedError, StorageError
from chainrule._files import open_private, whole_file
from chainrule._trees import map_leaves
from chainrule.runtime.internal import Document

_MAX_NAME = 64  # characters of a file's name that an error shows
_MAX_DEPTH = 16
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NOTE = 'Numbers that JSON does not have are given as the texts "NaN", "Infinity" and "-Infinity".'


def plain_schema(node: Any, schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema of a component without references, and with arrays as lists of numbers."""
    if isinstance(node, list):
        return [plain_schema(item, schemas, depth) for item in node]
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        return node
    if "$ref" in node:
        return plain_schema(Document.resolve(node, schemas), schemas, depth + 1)
    if "array_flags" in node:
        return _array_schema(node)
    # `discriminator` maps to references, which are not there any more.
    kept = {key: value for key, value in node.items() if key not in ("discriminator", "title")}
    return {key: plain_schema(value, schemas, depth + 1) for key, value in kept.items()}


def _array_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    shape = node["properties"]["shape"]
    rank = shape.get("maxItems")
    sizes = [
        each.get("const", (each.get("enum") or ["any"])[-1])
        for each in shape.get("prefixItems", ())
    ]
    names = node.get("array_dims") or [None] * len(sizes)
    shown = [str(name or size) for name, size in zip(names, sizes, strict=False)]
    facts = [
        node.get("description", ""),
        f"array of shape [{', '.join(shown)}]"
        if rank
        else ("number" if rank == 0 else "array of any shape"),
        f"in {node['array_units']}" if "array_units" in node else "",
        "differentiable" if "DIFFERENTIABLE" in node["array_flags"] else "",
    ]
    bounds = {word: node[word] for word in _BOUNDS if word in node}
    schema: dict[str, Any] = {"type": "number", **bounds}
    for _ in range(rank if rank is not None else 1):
        schema = {"type": "array", "items": schema}
    if rank is None:
        schema = {}
    if rank:
        file = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
        schema = {"anyOf": [schema, file]}
    described = {"description": ", ".join(fact for fact in facts if fact)}
    return {**schema, **described, **({"default": node["default"]} if "default" in node else {})}


class Values:
    """Values on their way to and from a language model.

    Args:
        folder: of files for large arrays.
        max_elements: of an array that is written out.
    """

    def __init__(self, folder: Path, max_elements: int) -> None:
        self._folder = folder.resolve()
        self._max_elements = max_elements

    def read(self, tree: Any) -> Any:
        """Arguments with the arrays of files in place of their names.

        Raises:
            NotGrantedError: a file that is not one of this server's.
        """

        def read(node: Any) -> Any:
            return self._load(Path(str(node["file"]))) if _names_array(node) else node

        return map_leaves(read, tree, is_leaf=_names_array)

    def _load(self, path: Path) -> np.ndarray:
        if not self._has(path):
            raise NotGrantedError(
                f"{path.name[:_MAX_NAME]!r} is not a file that this server has written. Give the numbers, "
                "or a file of a result.",
                code="path_not_granted",
            )
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise StorageError(
                f"{path.name!r} is not an array in NumPy's format, or was changed. Compute the result again.",
                code="file_damaged",
            ) from error

    def _has(self, path: Path) -> bool:
        """Whether a file is one of the folder's."""
        try:
            # `resolve` follows links: one that leads out of the folder has another parent.
            return path.resolve().parent == self._folder and path.is_file()
        except (OSError, ValueError):  # no path at all
            return False

    def write(self, tree: Any) -> tuple[Any, bool]:
        """A result in JSON, and whether it has numbers that JSON does not have."""
        odd = False

        def write(leaf: Any) -> Any:
            nonlocal odd
            if isinstance(leaf, (np.ndarray, np.generic)):
                if leaf.size > self._max_elements:
                    return self._store(np.asarray(leaf))
                leaf = leaf.tolist()
            written, is_odd = _named(leaf)
            odd = odd or is_odd
            return written

        return map_leaves(write, tree, plain=True), odd

    def _store(self, array: np.ndarray) -> dict[str, Any]:
        path = self._folder / f"{uuid4().hex[:12]}.npy"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as temporary, open(temporary, "xb", opener=open_private) as file:
                np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise StorageError(
                f"A result of {array.size} elements goes to a file, which cannot be written "
                f"({error.strerror or error}). Make room in the folder, or allow more elements in answers "
                "with --max-elements."
            ) from error
        facts: dict[str, Any] = {
            "file": str(path),
            "shape": list(array.shape),
            "dtype": array.dtype.name,
        }
        if array.dtype.kind in "iuf":
            facts |= {
                name: _named(getattr(array, name)().item())[0] for name in ("min", "max", "mean")
            }
        return facts


def _names_array(node: Any) -> bool:
    """Whether a node stands for an array in a file."""
    return isinstance(node, Mapping) and str(node.get("file", "")).endswith(".npy")


def _named(value: Any) -> tuple[Any, bool]:
    """A value, with names for numbers that JSON does not have; whether there were any."""
    if isinstance(value, list):
        parts = [_named(item) for item in value]
        return [part for part, _ in parts], any(is_odd for _, is_odd in parts)
    if isinstance(value, complex):
        (real, is_odd), (imag, is_also) = _named(value.real), _named(value.imag)
        return {"real": real, "imag": imag}, is_odd or is_also
    if isinstance(value, float) and not math.isfinite(value):
        return ("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"), True
    return value, False
