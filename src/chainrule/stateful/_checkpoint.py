"""Checkpoints: the parameters of a model as files, by path.

A checkpoint is flat: `{path: array}`, where a parameter that holds a pytree has one entry per leaf. Shared
parameters are written once, under their first path, with their other paths in a table, so a model that shares
differently can still be loaded. Plain values beside the models (a step number, an average of weights) are
entries too: arrays like any other, numbers and text exactly as they are. What a module holds beside
parameters is structure, which the program makes and no checkpoint holds.

There are two formats, one safetensors file or an orbax folder. Both hold named arrays and a few facts about
them as text. What is written takes the place of what was there only when it is complete; what is read comes
as NumPy arrays: the model decides on which devices they go.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from chainrule._errors import InputError, StorageError
from chainrule._files import write_whole
from chainrule._jaxpr import enable_x64
from chainrule._trees import with_article
from chainrule.stateful._errors import CheckpointError
from chainrule.stateful._frames import write_all
from chainrule.stateful._masks import Mask, check_patterns, listed
from chainrule.stateful._nodes import Node, is_node
from chainrule.stateful._params import DynamicParam, ParamCache
from chainrule.stateful._values import describe, is_arraylike
from chainrule.stateful._walk import Structure, flatten, join, key_path

Format = Literal["safetensors", "orbax"]
Arrays = Mapping[str, Any]
Facts = dict[str, str]

# What safetensors can name and NumPy can read back; it writes more than that.
_PORTABLE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64".split()
)


def write_arrays(path: Path, arrays: Arrays, facts: Facts, format: Format) -> None:
    """Write a checkpoint.

    Raises:
        InputError: there is no such format, or it cannot hold a dtype.
    """
    if format not in _WRITERS:
        raise InputError(
            f"Expected the format of a checkpoint to be one of {', '.join(map(repr, _WRITERS))}; found "
            f"{format!r}.",
            code="bad_argument",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[format](path.absolute(), arrays, facts)


def read_arrays(path: Path) -> tuple[Arrays, Facts]:
    """The arrays and facts of a checkpoint in either format.

    Raises:
        StorageError: no such file, or it cannot be read.
    """
    if not path.exists():
        raise StorageError(f"There is no checkpoint at {str(path)!r}.", code="file_missing")
    try:
        return _read_orbax(path.absolute()) if path.is_dir() else _read_safetensors(path)
    except Exception as error:
        raise StorageError(
            f"{str(path)!r} is not a checkpoint, or a damaged one: {error}", code="file_damaged"
        ) from error


def _write_safetensors(path: Path, arrays: Arrays, facts: Facts) -> None:
    from safetensors.numpy import save as serialise

    for name, leaf in arrays.items():
        if leaf.dtype.name not in _PORTABLE:
            raise InputError(
                f"A safetensors file cannot hold `{name}`, which is {leaf.dtype.name}; save with "
                '`format="orbax"`, or cast it.',
                code="bad_argument",
                path=name,
            )
    # safetensors copies the memory of an array: it must be contiguous and in C order.
    content = {name: np.asarray(leaf, order="C") for name, leaf in arrays.items()}
    write_whole(path, [serialise(content, metadata=facts)], durable=True)


def _read_safetensors(path: Path) -> tuple[Arrays, Facts]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _write_orbax(path: Path, arrays: Arrays, facts: Facts) -> None:
    import orbax.checkpoint as ocp

    for name, leaf in arrays.items():
        if leaf.size == 0:
            raise InputError(
                f"An orbax folder cannot hold `{name}`, which has no elements; save with "
                '`format="safetensors"`.',
                code="bad_argument",
                path=name,
            )
    # Orbax refuses a tree without arrays.
    items = {"arrays": ocp.args.StandardSave(dict(arrays))} if arrays else {}
    args = ocp.args.Composite(facts=ocp.args.JsonSave(facts | {_COUNT: str(len(arrays))}), **items)
    # One name in all processes of a cluster, which write together. A folder of its own, because orbax
    # leaves its unfinished work beside the folder it was to become.
    folder = path.with_name(f".{path.name}.writing")
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder / "new", args, force=True)
        if jax.process_index() == 0:
            _replace_folder(path, folder)
        ocp.multihost.sync_global_processes("chainrule.stateful.save")
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _replace_folder(path: Path, folder: Path) -> None:
    """Put the new checkpoint of a folder where an old one may be, or leave that one there."""
    # No call replaces a folder that is not empty. So the old one is renamed first, and renamed back if the
    # new one cannot take its place; at every moment one of the two is whole on the disk.
    old = folder / "old"
    try:
        if path.exists():
            os.rename(path, old)
        os.rename(folder / "new", path)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise


def _read_orbax(path: Path) -> tuple[Arrays, Facts]:
    import orbax.checkpoint as ocp

    facts = dict(ocp.JsonCheckpointHandler().restore(path / "facts"))
    if facts.get(_COUNT) == "0":
        return {}, facts
    handler = ocp.PyTreeCheckpointHandler()
    # As NumPy arrays: orbax would ask for the very devices that the arrays were saved from.
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(path / "arrays").tree
    )
    arrays = handler.restore(path / "arrays", args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return dict(arrays), facts


_WRITERS: dict[Format, Callable[[Path, Arrays, Facts], None]] = {
    "safetensors": _write_safetensors,
    "orbax": _write_orbax,
}


Mapped = Mapping[str, str] | Callable[[str], str | None] | None
_ALIASES = "chainrule.aliases"
_KEYS = "chainrule.keys"
_VALUES = "chainrule.values"
_COMPLEX = "chainrule.complex"
_COUNT = "chainrule.count"
_METADATA = "chainrule.metadata"
_EXACT = (bool, int, float, complex, str)


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        loaded: paths that were set.
        missing: paths of the model without an entry in the file.
        unexpected: entries of the file without a place in the model.
        metadata: what `save` was given as such.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    mask: Any = None,
    format: Format = "safetensors",
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the parameters of a tree; an existing checkpoint is replaced as a whole or not at all.

    Args:
        path: a file (safetensors) or a folder (orbax).
        tree: a model, an optimiser, or a dictionary of them, with plain arrays, numbers and text beside them.
        mask: which parameters; by default all but caches. Those that are `None` have nothing to write. With a
            mask, plain values are left out.
        format: `"safetensors"` or `"orbax"`, which takes every dtype.
        metadata: facts about the checkpoint, as JSON has them; `load` reports them.

    Raises:
        InputError: the mask has a pattern that matches nothing, a plain value cannot be written, or a plain
            dictionary has keys of mixed types.
    """
    arrays, facts = _contents(tree, mask, metadata)
    write_arrays(Path(path), arrays, facts, format)


def _contents(tree: Any, mask: Any, metadata: Mapping[str, Any] | None) -> tuple[Arrays, Facts]:
    """What a checkpoint of a tree holds."""
    _check_keys(tree)
    structure = Structure().visit(tree)
    leaves = [
        pair for name, param in _chosen(structure, mask) for pair in _leaves(name, param.value)
    ]
    plain = dict(_plain(tree)) if mask is None else {}
    exact = {name: value for name, value in plain.items() if type(value) in _EXACT}
    leaves += [pair for pair in plain.items() if pair[0] not in exact and pair[1] is not None]
    arrays: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name, leaf in leaves:
        if not is_arraylike(leaf) or not _is_for_jax(leaf):
            dtype = f" of {leaf.dtype}" if isinstance(leaf, np.ndarray) else ""
            raise InputError(
                f"A checkpoint holds parameters, arrays of numbers, numbers and text; `{name}` is "
                f"{with_article(type(leaf).__name__)}{dtype}. Leave it out of what is saved.",
                code="bad_argument",
                path=name,
            )
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    parts = {name: (z.real, z.imag) for name, z in exact.items() if isinstance(z, complex)}
    values = {name: value for name, value in exact.items() if name not in parts}
    facts = {_ALIASES: structure.aliases, _KEYS: keys, _VALUES: values, _COMPLEX: parts}
    texts = {name: json.dumps(fact) for name, fact in facts.items()}
    return arrays, texts | {_METADATA: _as_json(metadata or {})}


def _check_keys(tree: Any, path: str = "") -> None:
    """Refuse plain dictionaries that JAX cannot take apart, because it sorts their keys."""
    if is_node(tree):
        return
    if type(tree) is dict:
        try:
            sorted(tree)
        except TypeError as error:
            kinds = sorted({type(key).__name__ for key in tree})
            raise InputError(
                f"The keys of a dictionary in a checkpoint are of one type that can be sorted; "
                f"{f'those of `{path}`' if path else 'the given ones'} are of the types "
                f"{', '.join(kinds)}. Use text for all of them.",
                code="bad_argument",
                path=path,
            ) from error
        for key, item in tree.items():
            _check_keys(item, join(path, key_path((DictKey(key),))))
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            _check_keys(item, join(path, key_path((SequenceKey(index),))))


def _as_json(metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata))
    except TypeError as error:
        raise InputError(
            f"`metadata` holds what JSON has: text, numbers, lists and dictionaries. {error}.",
            code="bad_argument",
            path="metadata",
        ) from error


def load(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    mask: Any = None,
    strict: bool = True,
    mapping: Mapped = None,
) -> LoadReport:
    """Set the parameters of a tree from a checkpoint, all or none.

    Arrays go where those they replace are: a model that is divided over devices stays so, also if the saved
    one was not. A parameter that holds a pytree has places for entries only when it is filled:
    call `optim.init(model)` before loading an optimiser's state.

    Args:
        path: a file or folder that `save` has written.
        tree: what to fill, usually of the form that was saved. Plain values are replaced in their
            dictionaries and lists by values of their own kind: NumPy's stay NumPy's, with all their bits.
            `None` takes what the file has.
        mask: which parameters; by default all but caches. With a mask, plain values are left out.
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
    _check_keys(tree)
    stored, facts = read_arrays(Path(path))
    entries, optional = _entries(stored, facts, mapping)
    targets = dict(_chosen(Structure().visit(tree), mask))
    plain = dict(_plain(tree)) if mask is None else {}
    fit = _fit({name: param.value for name, param in targets.items()} | plain, entries)
    unexpected = [name for name in entries if name not in fit.used and name not in optional]
    if fit.different or (strict and (fit.missing or unexpected)):
        raise _mismatch(path, fit, unexpected)
    new = {name: fit.values[name] for name in plain if name in fit.values}
    _check_replaceable(tree, new)
    write_all(
        (param, _placed(param.value, fit.values[name]))
        for name, param in targets.items()
        if name in fit.values
    )
    _replace_plain(tree, {name: _placed(plain[name], value) for name, value in new.items()})
    metadata = json.loads(facts.get(_METADATA, "{}"))
    return LoadReport(tuple(fit.values), tuple(fit.missing), tuple(unexpected), metadata)


@dataclass
class _Fit:
    """How the entries of a checkpoint fit some parameters and plain values."""

    values: dict[str, Any]
    missing: list[str]
    different: list[str]
    used: set[str]
    empty: list[str]


def _fit(templates: Mapping[str, Any], entries: Mapping[str, Any]) -> _Fit:
    fit = _Fit({}, [], [], set(), [])
    for name, template in templates.items():
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


def _entries(stored: Arrays, facts: Facts, mapping: Mapped) -> tuple[dict[str, Any], set[str]]:
    """The entries of a checkpoint by their new names, and those that are second names of others.

    Any path of a shared parameter will do: a model may share less, or in another order.
    """
    aliases, keys, exact, parts = (
        json.loads(facts.get(fact, "{}")) for fact in (_ALIASES, _KEYS, _VALUES, _COMPLEX)
    )
    exact |= {name: complex(*pair) for name, pair in parts.items()}
    typed = {name: _typed(leaf, keys.get(name)) for name, leaf in stored.items()} | exact
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


def _plain(tree: Any) -> list[tuple[str, Any]]:
    """The values of a tree that no module or parameter holds; `None` is a place for one."""
    pairs, _ = flatten(tree, lambda x: x is None or is_node(x))
    return [(name, leaf) for name, leaf in pairs if not is_node(leaf)]


def _check_replaceable(tree: Any, new: Mapping[str, Any]) -> None:
    if new and (isinstance(tree, Node) or not isinstance(tree, (dict, list))):
        raise CheckpointError(
            f"`load` replaces plain values in dictionaries and lists, and found {listed(new)} in "
            f"{with_article(type(tree).__name__)}. Pass a dictionary. Nothing was changed.",
        )


def _replace_plain(tree: Any, new: Mapping[str, Any]) -> None:
    """Put new plain values into the dictionaries and lists of a tree."""
    if not new:
        return
    pairs, treedef = flatten(tree, lambda x: x is None or is_node(x))
    _replace_items(tree, jax.tree.unflatten(treedef, [new.get(name, leaf) for name, leaf in pairs]))


def _replace_items(old: Any, new: Any) -> None:
    for key in list(old) if isinstance(old, dict) else range(len(old)):
        item = old[key]
        if isinstance(item, (dict, list)) and not is_node(item):
            _replace_items(item, new[key])
        elif any(not is_node(leaf) for leaf in jax.tree.leaves(new[key], is_leaf=is_node)):
            old[key] = new[key]


def _chosen(structure: Structure, mask: Any) -> Iterator[tuple[str, DynamicParam]]:
    chosen = ~Mask(ParamCache) if mask is None else Mask(mask)
    check_patterns(chosen, [*structure.params, *structure.aliases])
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
    if type(new) in _EXACT:
        return new
    if template is None:
        return jax.tree.map(_as_jax, new)
    return jax.tree.map(_placed_leaf, template, new)


def _as_jax(new: Any) -> Any:
    """A JAX array, or a NumPy array where JAX would narrow it: 64 bits while x64 is off."""
    is_narrowed = (
        isinstance(new, np.ndarray) and jax.dtypes.canonicalize_dtype(new.dtype) != new.dtype
    )
    return new if is_narrowed else jnp.asarray(new)


def _placed_leaf(old: Any, new: Any) -> Any:
    if isinstance(old, np.ndarray):
        return new
    if isinstance(old, np.generic):
        return new[()]
    is_placed = isinstance(old, jax.Array) and not isinstance(old, jax.core.Tracer)
    # The old array has the dtype of the new one. It may have 64 bits while x64 is off, if it was made where
    # x64 was on; JAX would narrow the new one without a word.
    with enable_x64(True):
        if is_placed and old.committed:
            return jax.device_put(new, old.sharding)
        return jnp.asarray(new)


def _is_for_jax(leaf: Any) -> bool:
    """Whether JAX has the dtype of an array or number: not dates, text, objects, or 80 bits."""
    if isinstance(leaf, str):  # NumPy's; `result_type` would take it for the name of a dtype
        return False
    try:
        jnp.result_type(leaf)
    except TypeError:
        return False
    return True


def _typed(leaf: Any, key_implementation: str | None) -> Any:
    if key_implementation is None:
        return leaf
    return jax.random.wrap_key_data(jnp.asarray(leaf), impl=key_implementation)


def _differences(name: str, template: Any, new: Any) -> list[str]:
    if template is None:
        return []
    pairs = zip(_leaves(name, template), _leaves(name, new), strict=True)
    return [
        f"`{leaf_path}` is {_type(old)} in the model and {_type(found)} in the file"
        for (leaf_path, old), (_, found) in pairs
        if _type(old) != _type(found)
    ]


def _type(value: Any) -> str:
    return type(value).__name__ if type(value) in _EXACT else describe(value)


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
        parts.append(f"no entry for {listed(fit.missing)}")
    if unexpected:
        parts.append(f"no parameter for the entries {listed(unexpected)}")
    parts += fit.different
    empty = [name for name in fit.empty if any(e.startswith(f"{name}.") for e in unexpected)]
    hint = (
        f" {listed(empty)} holds nothing yet, so its entries have no places: fill it first, an optimiser "
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


class Checkpoints:
    """The checkpoints of one run: a folder with one file per step, of which the newest are kept.

    Saving does not wait for the disk: arrays are copied to the memory of this machine, and a thread writes
    them. The next `save`, `load` or `wait` waits for it, and raises what went wrong there.

    Args:
        folder: where; it is made when needed.
        keep: how many checkpoints to keep, the newest ones; `None` for all.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Checkpoints, Param
        >>> weight = Param(jnp.zeros(2))
        >>> with Checkpoints(tempfile.mkdtemp(), keep=2) as checkpoints:
        ...     for step in range(4):
        ...         weight += 1
        ...         checkpoints.save(step, {"weight": weight}, metadata={"loss": 1 / (step + 1)})
        >>> checkpoints.steps()
        (2, 3)
        >>> report = checkpoints.load({"weight": weight}, step=2)
        >>> weight.get().tolist(), report.metadata["loss"]
        ([3.0, 3.0], 0.3333333333333333)
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise InputError(f"`keep` is 1 or more, or None; found {keep}.", code="bad_argument")
        self.folder = Path(folder)
        self._keep = keep
        # One thread, and one write under way at most (`wait` before `submit`): checkpoints reach the disk in
        # the order of the steps, and one that fails is reported before the next begins.
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.folder)!r}, keep={self._keep}): steps {list(self.steps())}"

    def save(
        self, step: int, tree: Any, *, mask: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Write a tree as it is now under a step's number; arguments as in `chainrule.stateful.save`."""
        arrays, facts = _contents(tree, mask, metadata)
        # Copied before this returns: the next step may donate the buffers.
        copies = {name: np.array(array) for name, array in arrays.items()}
        self.wait()
        self._writing = self._writer.submit(self._write, step, copies, facts)

    def load(
        self,
        tree: Any,
        *,
        step: int | None = None,
        mask: Any = None,
        strict: bool = True,
        mapping: Mapped = None,
    ) -> LoadReport:
        """Fill a tree from a step, by default the newest; arguments as in `chainrule.stateful.load`.

        Raises:
            StorageError: there is no checkpoint, or it cannot be read.
        """
        self.wait()
        known = self.steps()
        if not known and step is None:
            raise StorageError(
                f"There is no checkpoint in {str(self.folder)!r}.", code="file_missing"
            )
        path = self._path(known[-1] if step is None else step)
        return load(path, tree, mask=mask, strict=strict, mapping=mapping)

    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that there are, in order."""
        self.wait()
        names = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.safetensors"))
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def wait(self) -> None:
        """Wait until what was saved is on disk.

        Raises:
            Exception: what went wrong while it was written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def _write(self, step: int, arrays: Arrays, facts: Facts) -> None:
        write_arrays(self._path(step), arrays, facts, "safetensors")
        old = sorted(self.folder.glob("step-*.safetensors"))[: -self._keep] if self._keep else []
        for path in old:
            path.unlink()
