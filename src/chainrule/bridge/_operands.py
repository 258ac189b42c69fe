"""What JAX can hold: the arrays that go into a call, and those that come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from chainrule._errors import InputError
from chainrule._jaxpr._meshes import has_mesh_in_type
from chainrule.bridge._skeleton import Skeleton
from chainrule.bridge._target import Target

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def as_operand(target: Target, path: str, leaf: Any) -> jax.Array:
    """An array of any framework as one of JAX.

    Raises:
        InputError: it has a dtype that JAX or NumPy does not have.
    """
    try:
        array = jnp.asarray(leaf)
    except TypeError as error:
        raise InputError(
            f"`{path}` of {target.name} is an array of {leaf.dtype}, which JAX does not have. Pass "
            "numbers, or text and objects outside of arrays.",
            code="not_an_array",
            path=path,
        ) from error
    if not isinstance(array.dtype, np.dtype):
        raise InputError(
            f"`{path}` of {target.name} is an array of {array.dtype}, which only JAX has. Pass the numbers "
            "behind random keys: `jax.random.key_data(key)`.",
            code="not_an_array",
            path=path,
        )
    if _is_wrapped(leaf, array):
        raise InputError(
            f"`{path}` of {target.name} has integers that do not fit into the 32 bits that JAX holds. Call "
            '`jax.config.update("jax_enable_x64", True)` at the start of your program.',
            code="array_value_out_of_range",
            path=path,
        )
    return array


def _is_wrapped(leaf: Any, array: Any) -> bool:
    """Whether integers became others because JAX is configured to hold 32 bits."""
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype == array.dtype:
        return False
    return leaf.dtype.kind in "iu" and not np.array_equal(leaf.astype(array.dtype), leaf)


def check_statics(target: Target, skeleton: Skeleton) -> None:
    """Check that no traced value is hidden in an object that nobody looks into.

    Raises:
        InputError: one is.
    """
    for path, leaf in skeleton.statics:
        if not isinstance(leaf, _PLAIN) and _hides_tracer(leaf):
            raise InputError(
                f"`{path}` of {target.name} is a {type(leaf).__name__} with traced values in it. Pass them "
                "in dictionaries, lists, tuples or models of pydantic (in dataclasses only where a schema "
                "declares arrays in their fields): inside of other objects they are not found.",
                code="hidden_tracer",
                path=path,
            )


def _hides_tracer(leaf: Any) -> bool:
    parts = jax.tree.leaves(leaf)
    if len(parts) == 1 and parts[0] is leaf:  # an object of a class that JAX does not know
        parts = list(getattr(leaf, "__dict__", {}).values())
    return any(isinstance(part, jax.core.Tracer) for part in parts)


def hand_out(results: Sequence[np.ndarray], operands: Sequence[Any]) -> list[jax.Array]:
    """Results of a call outside of `jit`, which nobody else writes to, where the operands are.

    That is on one device if an operand was put there, and whole on all devices of a mesh whose axes are part
    of an operand's type: such an operand can be combined with nothing else.
    """
    places = (_place_of(operand) for operand in operands if isinstance(operand, jax.Array))
    place = next((place for place in places if place is not None), None)
    return [jax.device_put(result, place) for result in results]


def _place_of(operand: jax.Array) -> Sharding | None:
    if operand.committed and len(operand.devices()) == 1:
        return operand.sharding
    if isinstance(operand.sharding, NamedSharding) and has_mesh_in_type(operand):
        return NamedSharding(operand.sharding.mesh, jax.P())
    return None
