"""Arrays on several devices: what their types say about a mesh, and calls of the host on divided batches.

The type of an array holds the mesh axes that it varies over inside `shard_map`, and its sharding. JAX checks
both. A result that does not say that it varies passes for one that is equal on all devices, and its cotangent
then has the wrong type.

XLA does not know that a foreign function treats the elements of a batch independently. Without
`divided_over_batch` it gathers the whole batch on every device, and each of them computes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

# Named after what it does with an argument that varies less than the others, until JAX 0.8.
_insert_casts: Any = getattr(_core, "auto_insert_reshard", None) or _core.standard_insert_pvary  # type: ignore[attr-defined]


def array_aval(shape: Sequence[int], dtype: Any, operands: Sequence[Any] = ()) -> Any:
    """The abstract value of an array that is computed from operands with these abstract values."""
    axes = frozenset[Any]().union(*map(_varying_axes, operands))
    # Whole on every device, of a mesh where there is one: nothing else can be combined with its arrays.
    whole = _core.get_cur_mesh_sharding(jax.P(*(None for _ in shape)))
    aval = _core.ShapedArray(tuple(shape), np.dtype(dtype), sharding=whole)
    if not axes:
        return aval
    if not hasattr(_core, "ManualAxisType"):
        return aval.update(vma=axes)
    return aval.update(manual_axis_type=_core.ManualAxisType(varying=axes))


def _varying_axes(aval: Any) -> frozenset[Any]:
    return aval.mat.varying if hasattr(aval, "mat") else getattr(aval, "vma", frozenset())


def varies(aval: Any) -> bool:
    """Whether an array is another one on every device, inside of `shard_map`."""
    return bool(_varying_axes(aval))


def vary_alike(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands that vary over the same axes, as those of one operation have to."""
    return _insert_casts(*operands) if operands else operands


def has_mesh_in_type(array: Any) -> bool:
    """Whether axes of a mesh are part of an array's type."""
    sharding = getattr(jax.typeof(array), "sharding", None)
    return sharding is not None and jax.sharding.AxisType.Explicit in (
        sharding.mesh.axis_types or ()
    )


def divided_alike(results: Sequence[Any], operands: Sequence[Any], rank: int = 1) -> list[Any]:
    """Results whose first axes are divided as those of an operand are, as `vmap` over such axes expects.

    Args:
        results: with `rank` batch axes in front.
        operands: with the same.
        rank: the number of batch axes.
    """
    specs = (jax.typeof(each).sharding.spec[:rank] for each in operands if has_mesh_in_type(each))
    batch = next((spec for spec in specs if any(axis is not None for axis in spec)), None)
    if batch is None:
        return list(results)
    return [
        jax.sharding.reshard(each, jax.P(*batch, *(None for _ in each.shape[rank:])))
        for each in results
    ]


def as_type(value: Any, aval: Any) -> Any:
    """A value with the sharding of a type, where the mesh's axes are part of types."""
    wanted = getattr(aval, "sharding", None)
    if wanted is None or wanted.mesh.empty or jax.typeof(value).sharding == wanted:
        return value
    return jax.sharding.reshard(value, wanted)


Function = Callable[..., list[Any]]


def divided_over_batch(function: Function, rank: int) -> Function:
    """A function whose operands and results all have `rank` batch axes in front, computed where its batch is.

    Args:
        function: traceable for any lengths of these axes.
        rank: their number, at least 1.
    """
    divided = custom_partitioning(lambda *operands: list(function(*operands)))

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        operands, results = jax.tree.leaves(operands), jax.tree.leaves(results)
        place = _place_of_batch(mesh, [*operands, *results], rank)
        return (
            mesh,
            lambda *parts: list(function(*parts)),
            [place] * len(results),
            (place,) * len(operands),
        )

    def infer(mesh: Any, operands: Any, results: Any) -> Any:
        place = _place_of_batch(mesh, jax.tree.leaves(operands), rank)
        return [place] * len(jax.tree.leaves(results))

    divided.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        sharding_rule=lambda mesh, operands, results: _rule(operands, results, rank),
    )

    def call(*operands: Any) -> list[Any]:
        return divided_alike(divided(*operands), operands, rank)

    return call


def _place_of_batch(mesh: Any, arrays: Sequence[Any], rank: int) -> Any:
    """How the batch axes of the first array are divided that has any divided; everything else is whole."""
    shardings = [array.sharding for array in arrays]
    if not all(isinstance(sharding, NamedSharding) for sharding in shardings):
        # Without a mesh it is not known which axis is divided how.
        return type(shardings[0]).get_replicated(shardings[0]._device_assignment)
    specs = [sharding.spec[:rank] for sharding in shardings]
    found = (spec for spec in specs if any(axis is not None for axis in spec))
    return NamedSharding(mesh, jax.P(*next(found, ())))


def _rule(operands: Sequence[Any], results: Sequence[Any], rank: int) -> str:
    """Batch axes are the same everywhere, and no other axis is another array's."""
    batch = [f"batch{axis}" for axis in range(rank)]
    names = [
        " ".join([*batch, *(f"own{number}_{axis}" for axis in range(rank, len(type_.shape)))])
        for number, type_ in enumerate([*operands, *results])
    ]
    return f"{', '.join(names[: len(operands)])} -> {', '.join(names[len(operands) :])}"
