"""The two formats of checkpoints: one safetensors file, or an orbax folder.

Both hold named arrays and a few facts about them as text. What is written takes the place of what was there
only when it is complete; what is read comes as NumPy arrays, with the dtypes of the file and wherever it was
written: the model decides on which devices they go.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from chainrule._errors import InputError, StorageError
from chainrule._whole_files import write_whole

__all__ = ["Format", "read_arrays", "write_arrays"]

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
        StorageError: there is none, or it cannot be read.
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
    # safetensors takes memory as it lies: arrays must be contiguous and in C order.
    content = {name: np.asarray(leaf, order="C") for name, leaf in arrays.items()}
    write_whole(path, [serialise(content, metadata=facts)], durable=True)


def _read_safetensors(path: Path) -> tuple[Arrays, Facts]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _write_orbax(path: Path, arrays: Arrays, facts: Facts) -> None:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(
        arrays=ocp.args.StandardSave(dict(arrays)), facts=ocp.args.JsonSave(facts)
    )
    # One name in all processes of a cluster, which write together. A folder of its own, because orbax
    # leaves its unfinished work beside the folder it was to become.
    folder = path.with_name(f".{path.name}.writing")
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder / "new", args, force=True)
        if jax.process_index() == 0:
            _take_the_place_of(path, folder)
        ocp.multihost.sync_global_processes("chainrule.stateful.save")
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _take_the_place_of(path: Path, folder: Path) -> None:
    """Put the new checkpoint of a folder where an old one may be, or leave that one there."""
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

    handler = ocp.PyTreeCheckpointHandler()
    # As NumPy arrays: orbax would ask for the very devices that the arrays were saved from.
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(path / "arrays").tree
    )
    arrays = handler.restore(path / "arrays", args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    facts = ocp.JsonCheckpointHandler().restore(path / "facts")
    return dict(arrays), dict(facts)


_WRITERS: dict[Format, Callable[[Path, Arrays, Facts], None]] = {
    "safetensors": _write_safetensors,
    "orbax": _write_orbax,
}
