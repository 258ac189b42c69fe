"""Checkpoints: the parameters of a model as files, by path.

A checkpoint is flat: `{path: array}`, where a parameter that holds a pytree has one entry per leaf. Shared
parameters are written once, under their first path, with their other paths in a table, so a model that shares
differently can still be loaded. The formats are those of `_checkpoint_files`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.stateful._checkpoint_files import Format, read_arrays, write_arrays
from chainrule.stateful._errors import CheckpointError
from chainrule.stateful._frames import write_all
from chainrule.stateful._masks import Mask
from chainrule.stateful._params import DynamicParam, ParamCache
from chainrule.stateful._values import describe
from chainrule.stateful._walk import Structure, join, key_path

__all__ = ["LoadReport", "load", "save"]

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
        format: `"safetensors"` or `"orbax"`, which takes every dtype.
    """
    structure = Structure().visit(tree)
    arrays: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name, param in _chosen(structure, mask):
        for leaf_path, leaf in _leaves(name, param.value):
            if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
                keys[leaf_path] = str(jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            arrays[leaf_path] = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    facts = {_ALIASES: json.dumps(structure.aliases), _KEYS: json.dumps(keys)}
    write_arrays(Path(path), arrays, facts, format)


def load(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    mask: Any = None,
    strict: bool = True,
    mapping: Mapped = None,
) -> LoadReport:
    """Set the parameters of a tree from a checkpoint, all or none.

    Arrays go where those they replace are: a model that is divided over devices stays so, whatever the
    checkpoint was saved from. A parameter that holds a pytree has places for entries only when it is filled:
    call `optim.init(model)` before loading an optimiser's state.

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
        StorageError: there is no checkpoint at `path`, or it cannot be read.
    """
    entries, optional = _entries(Path(path), mapping)
    targets = dict(_chosen(Structure().visit(tree), mask))
    fit = _fit(targets, entries)
    unexpected = [name for name in entries if name not in fit.used and name not in optional]
    if fit.different or (strict and (fit.missing or unexpected)):
        raise _mismatch(path, fit, unexpected)
    write_all(
        (targets[name], _placed(targets[name].value, value)) for name, value in fit.values.items()
    )
    return LoadReport(tuple(fit.values), tuple(fit.missing), tuple(unexpected))


@dataclass
class _Fit:
    """How the entries of a checkpoint fit some parameters."""

    values: dict[str, Any]
    missing: list[str]
    different: list[str]
    used: set[str]
    empty: list[str]


def _fit(targets: Mapping[str, DynamicParam], entries: Mapping[str, Any]) -> _Fit:
    fit = _Fit({}, [], [], set(), [])
    for name, param in targets.items():
        template = param.value
        # A parameter that holds nothing yet takes an entry of its own name, if there is one.
        leaves = [leaf_path for leaf_path, _ in _leaves(name, template)]
        names = [name] if template is None else leaves
        absent = [leaf_path for leaf_path in names if leaf_path not in entries]
        fit.used.update(names)
        if not absent:
            fit.values[name] = _filled(name, template, entries)
            fit.different += _differences(name, template, fit.values[name])
        elif template is None:
            fit.empty.append(name)
        else:
            fit.missing += absent
    return fit


def _entries(path: Path, mapping: Mapped) -> tuple[dict[str, Any], set[str]]:
    """The entries of a checkpoint by their new names, and those that are second names of others.

    Any path of a shared parameter will do: a model may share less, or in another order.
    """
    stored, facts = read_arrays(path)
    aliases, keys = (json.loads(facts.get(fact, "{}")) for fact in (_ALIASES, _KEYS))
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


def _placed(template: Any, new: Any) -> Any:
    """Loaded arrays where those they replace are."""
    if template is None:
        return jax.tree.map(jnp.asarray, new)
    return jax.tree.map(_placed_leaf, template, new)


def _placed_leaf(old: Any, new: Any) -> Any:
    if isinstance(old, np.ndarray):
        return new
    is_placed = isinstance(old, jax.Array) and not isinstance(old, jax.core.Tracer)
    return jax.device_put(new, old.sharding) if is_placed and old.committed else jnp.asarray(new)


def _typed(leaf: Any, key_implementation: str | None) -> Any:
    if key_implementation is None:
        return leaf
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


def _mismatch(path: Any, fit: _Fit, unexpected: list[str]) -> CheckpointError:
    parts = []
    if fit.missing:
        parts.append(f"no entry for {_listed(fit.missing)}")
    if unexpected:
        parts.append(f"no parameter for the entries {_listed(unexpected)}")
    parts += fit.different
    empty = [name for name in fit.empty if any(e.startswith(f"{name}.") for e in unexpected)]
    hint = (
        f" {_listed(empty)} holds nothing yet, so its entries have no places: fill it first, an optimiser "
        "with `optim.init(model)`."
        if empty
        else ""
    )
    return CheckpointError(
        f"The checkpoint {os.fspath(path)!r} does not fit the model: {'; '.join(parts)}.{hint} Rename "
        "entries with `mapping=`, or load what fits with `strict=False`. Nothing was changed.",
        details={
            "missing": fit.missing,
            "unexpected": unexpected,
            "different": fit.different,
        },
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
