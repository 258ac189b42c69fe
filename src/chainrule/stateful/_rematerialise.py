"""`checkpoint`: recompute instead of remembering. Parameters are explicit inputs and outputs, so what a
function writes is written once, however often the backward pass runs it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._transformation import Transformation, decorator

__all__ = ["Checkpoint", "checkpoint"]


class Checkpoint(Transformation):
    """A function whose intermediate values are recomputed; see `checkpoint`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        prevent_cse: bool = True,
        policy: Callable[..., bool] | None = None,
        static_argnums: int | Sequence[int] = (),
    ) -> None:
        super().__init__(fun, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums)
        nums = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
        self._jax_options: dict[str, Any] = {
            "prevent_cse": prevent_cse,
            "policy": policy,
            "static_argnums": tuple(num + 1 if num >= 0 else num for num in nums),
        }

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(kwargs)
        result, values = jax.checkpoint(call.pure(self._fun), **self._jax_options)(
            call.values, *args
        )
        return call.finish(result, values)


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """Recompute a function's intermediate values in the backward pass instead of keeping them.

    Args:
        fun: the function. Without it, a decorator is returned.
        prevent_cse: as in `jax.checkpoint`.
        policy: as in `jax.checkpoint`.
        static_argnums: as in `jax.checkpoint`; positions count the positional arguments.
    """
    return decorator(
        Checkpoint, fun, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums
    )
