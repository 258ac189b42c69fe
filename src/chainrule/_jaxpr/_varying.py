"""What the type of an array says about a mesh: the axes it varies over inside `shard_map`, and its sharding.

JAX checks both. A result that does not say that it varies passes for one that is equal on all devices, and
its cotangent does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core

__all__ = ["array_aval", "as_type", "varies", "vary_alike"]

# Named after what it does with an argument that varies less than the others, until JAX 0.8.
_insert_casts: Any = getattr(_core, "auto_insert_reshard", None) or _core.standard_insert_pvary  # type: ignore[attr-defined]


def array_aval(shape: Sequence[int], dtype: Any, operands: Sequence[Any] = ()) -> Any:
    """The abstract value of an array that is computed from operands with these abstract values."""
    axes = frozenset[Any]().union(*map(_varying_axes, operands))
    aval = _core.ShapedArray(tuple(shape), np.dtype(dtype))
    if not axes:
        return aval
    if not hasattr(_core, "ManualAxisType"):
        return aval.update(vma=axes)
    manual = _core.ManualAxisType(varying=axes)
    sharding = _core.get_cur_mesh_sharding(jax.P(*(None for _ in shape)))
    return aval.update(sharding=sharding, manual_axis_type=manual)


def _varying_axes(aval: Any) -> frozenset[Any]:
    return aval.mat.varying if hasattr(aval, "mat") else getattr(aval, "vma", frozenset())


def varies(aval: Any) -> bool:
    """Whether an array is another one on every device, inside of `shard_map`."""
    return bool(_varying_axes(aval))


def vary_alike(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands that vary over the same axes, as those of one operation have to."""
    return _insert_casts(*operands) if operands else operands


def as_type(value: Any, aval: Any) -> Any:
    """A value with the sharding of a type, where the mesh's axes are part of types."""
    wanted = getattr(aval, "sharding", None)
    if wanted is None or wanted.mesh.empty or jax.typeof(value).sharding == wanted:
        return value
    return jax.sharding.reshard(value, wanted)
