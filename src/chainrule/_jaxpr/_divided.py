"""Foreign calls on batches that are divided over devices.

XLA does not know that a foreign function treats the elements of a batch independently: it would gather the
whole batch on every device and let each of them compute all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

from chainrule._jaxpr._varying import divided_alike

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
        # Without a mesh nobody can say which axis is divided how.
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
