"""Checkpoints: the parameters of a model as files, by path.

A checkpoint is flat: `{path: array}`, where a parameter that holds a pytree has one entry per leaf. Shared
parameters are written once, under their first path, with their other paths in a table, so a model that shares
differently can still be loaded. Two formats: one safetensors file (default), or an orbax folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import StorageError
from chainrule.stateful._errors import CheckpointError
from chainrule.stateful._masks import Mask
from chainrule.stateful._params import DynamicParam, ParamCache
from chainrule.stateful._values import describe
from chainrule.stateful._walk import Structure, join, key_path

__all__ = ["LoadReport", "load", "save"]

Format = Literal["safetensors", "orbax"]
Mapped = Mapping[str, str] | Callable[[str], str | None] | None
_ALIASES = "chainrule.aliases"
_KEYS = "chainrule.keys"


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        loaded: paths that were set.
        missing: paths of the model without an entry in the file.
        unexpected: entries of the file without a place in the model.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    mask: Any = None,
    format: Format = "safetensors",
) -> None:
    """Write the parameters of a tree; an existing checkpoint is replaced as a whole or not at all.

    Args:
        path: a file (safetensors) or a folder (orbax).
        tree: a model, an optimiser, or a dictionary of them.
        mask: which parameters; by default all but caches. Those that are `None` have nothing to write.
        format: `"safetensors"` or `"orbax"`.
    """
    structure = Structure().visit(tree)
    arrays: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name, param in _chosen(structure, mask):
        for leaf_path, leaf in _leaves(name, param.value):
            if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
                keys[leaf_path] = str(jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            arrays[leaf_path] = leaf
    facts = {_ALIASES: json.dumps(structure.aliases), _KEYS: json.dumps(keys)}
    _WRITERS[format](Path(path), arrays, facts)


def load(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    mask: Any = None,
    strict: bool = True,
    mapping: Mapped = None,
) -> LoadReport:
    """Set the parameters of a tree from a checkpoint, all or none.

    Args:
        path: a file or folder that `save` has written.
        tree: the model to fill.
        mask: which parameters; by default all but caches.
        strict: raise when an entry of the file or a parameter of the model is left over. Otherwise
            what fits is loaded and the rest is reported.
        mapping: new names for entries of the file: a dictionary from old to new path prefix, or a
            function from old to new path (`None` drops the entry).

    Returns:
        What was loaded, and what was left over on either side.

    Raises:
        CheckpointError: entries are missing, unexpected, or of another shape or dtype. The message
            lists all of them, and no parameter has changed.
        StorageError: there is no checkpoint at `path`.
    """
    entries, optional = _entries(Path(path), mapping)
    targets = dict(_chosen(Structure().visit(tree), mask))
    fit = _fit(targets, entries)
    unexpected = [name for name in entries if name not in fit.used and name not in optional]
    if fit.different or (strict and (fit.missing or unexpected)):
        raise _mismatch(path, fit.missing, unexpected, fit.different)
    for name, value in fit.values.items():
        targets[name].set(value)
    return LoadReport(tuple(fit.values), tuple(fit.missing), tuple(unexpected))


@dataclass
class _Fit:
    """How the entries of a checkpoint fit some parameters."""

    values: dict[str, Any]
    missing: list[str]
    different: list[str]
    used: set[str]


def _fit(targets: Mapping[str, DynamicParam], entries: Mapping[str, Any]) -> _Fit:
    fit = _Fit({}, [], [], set())
    for name, param in targets.items():
        template = param.value
        # A parameter that holds nothing yet takes an entry of its own name, if there is one.
        names = [leaf_path for leaf_path, _ in _leaves(name, template)] or [name]
        absent = [leaf_path for leaf_path in names if leaf_path not in entries]
        fit.used.update(names)
        if not absent:
            fit.values[name] = _filled(name, template, entries)
            fit.different += _differences(name, template, fit.values[name])
        elif template is not None:
            fit.missing += absent
    return fit


def _entries(path: Path, mapping: Mapped) -> tuple[dict[str, Any], set[str]]:
    """The entries of a checkpoint by their new names, and those that are second names of others.

    Any path of a shared parameter will do: a model may share less, or in another order.
    """
    stored, aliases, keys = _read(path)
    typed = {name: _typed(leaf, keys.get(name)) for name, leaf in stored.items()}
    entries: dict[str, Any] = {}
    optional: set[str] = set()
    for alias, first in aliases.items():
        for name, leaf in typed.items():
            if name == first or name.startswith(f"{first}."):
                new = _rename(alias + name[len(first) :], mapping)
                if new is not None:
                    entries[new] = leaf
                    optional.add(new)
    for name, leaf in typed.items():
        new = _rename(name, mapping)
        if new is not None:
            entries[new] = leaf
            optional.discard(new)
    return entries, optional


def _chosen(structure: Structure, mask: Any) -> Iterator[tuple[str, DynamicParam]]:
    chosen = ~Mask(ParamCache) if mask is None else Mask(mask)
    for name, param in structure.params.items():
        if chosen.matches(param, *structure.paths_of(name)):
            yield name, param


def _leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    pairs = jax.tree_util.tree_flatten_with_path(value)[0]
    return [(join(name, key_path(keys)), leaf) for keys, leaf in pairs]


def _filled(name: str, template: Any, leaves: Mapping[str, Any]) -> Any:
    if template is None:
        return leaves[name]
    order = [leaves[leaf_path] for leaf_path, _ in _leaves(name, template)]
    return jax.tree.unflatten(jax.tree.structure(template), order)


def _typed(leaf: Any, key_implementation: str | None) -> Any:
    if key_implementation is None:
        return jnp.asarray(leaf)
    return jax.random.wrap_key_data(jnp.asarray(leaf), impl=key_implementation)


def _differences(name: str, template: Any, new: Any) -> list[str]:
    if template is None:
        return []
    pairs = zip(_leaves(name, template), _leaves(name, new), strict=True)
    return [
        f"`{leaf_path}` is {describe(old)} in the model and {describe(found)} in the file"
        for (leaf_path, old), (_, found) in pairs
        if describe(old) != describe(found)
    ]


def _rename(name: str, mapping: Mapped) -> str | None:
    if mapping is None:
        return name
    if callable(mapping):
        return mapping(name)
    for old in sorted(mapping, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return join(mapping[old], name[len(old) + 1 :])
    return name


def _mismatch(path: Any, missing: Any, unexpected: Any, wrong: Any) -> CheckpointError:
    parts = []
    if missing:
        parts.append(f"no entry for {', '.join(f'`{name}`' for name in missing)}")
    if unexpected:
        parts.append(f"no parameter for the entries {', '.join(f'`{n}`' for n in unexpected)}")
    parts += wrong
    return CheckpointError(
        f"The checkpoint {os.fspath(path)!r} does not fit the model: {'; '.join(parts)}. Rename entries "
        "with `mapping=`, or load what fits with `strict=False`. Nothing was changed.",
        details={
            "missing": list(missing),
            "unexpected": list(unexpected),
            "different": list(wrong),
        },
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    if not path.exists():
        raise StorageError(f"There is no checkpoint at {str(path)!r}.", code="file_missing")
    arrays, facts = _read_orbax(path) if path.is_dir() else _read_safetensors(path)
    return arrays, json.loads(facts.get(_ALIASES, "{}")), json.loads(facts.get(_KEYS, "{}"))


def _write_safetensors(path: Path, arrays: Mapping[str, Any], facts: dict[str, str]) -> None:
    from safetensors.numpy import save as serialise

    # safetensors takes memory as it lies: arrays must be contiguous and in C order.
    content = {name: np.asarray(leaf, order="C") for name, leaf in arrays.items()}
    data = serialise(content, metadata=facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _write_orbax(path: Path, arrays: Mapping[str, Any], facts: dict[str, str]) -> None:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(
        arrays=ocp.args.StandardSave({name: jnp.asarray(leaf) for name, leaf in arrays.items()}),
        facts=ocp.args.JsonSave(facts),
    )
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), args, force=True)


def _read_orbax(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(arrays=ocp.args.StandardRestore(), facts=ocp.args.JsonRestore())
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        content = checkpointer.restore(path.absolute(), args)
    return dict(content["arrays"]), dict(content["facts"])


_WRITERS: dict[Format, Callable[[Path, Mapping[str, Any], dict[str, str]], None]] = {
    "safetensors": _write_safetensors,
    "orbax": _write_orbax,
}
