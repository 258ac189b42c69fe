"""Computing in another precision than parameters are kept in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.stateful._call import Call, Retracing, decorator
from chainrule.stateful._masks import TRAINABLE, resolve_mask


def _precision(
    call: Call,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    compute: Any,
    output: Any,
    kwargs_mask: Any,
) -> Any:
    is_cast = resolve_mask(kwargs_mask, call.inventory, False)
    count = len(call.inventory.params)
    values = [
        _cast(value, compute) if chosen or slot >= count else value
        for slot, (value, chosen) in enumerate(zip(call.values, is_cast, strict=True))
    ]
    result, new = call.pure(fun)(values, *_cast(args, compute))
    kept = [_like(value, old) for value, old in zip(new, call.values[:count], strict=True)]
    return call.finish(result if output is None else _cast(result, output), kept)


def precision(
    fun: Callable[..., Any] | None = None,
    *,
    compute: Any,
    output: Any = None,
    kwargs_mask: Any = TRAINABLE,
) -> Any:
    """Run a function in another precision; parameters are kept, trained and saved in their own.

    Real arguments and parameters are cast on the way in; complex ones are not. What the function writes to a
    parameter is cast back. Gradients taken around it have the dtypes of the parameters.

    Args:
        fun: the function. Without it, a decorator is returned.
        compute: the dtype of its arguments and parameters, for example `jnp.bfloat16`.
        output: the dtype of its results; by default that in which they were computed.
        kwargs_mask: which parameters are cast: by default the trainable ones, so that running statistics are
            accumulated in their own precision. equinox's own `BatchNorm` needs its state in the precision of
            its input: `True` casts everything.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, grad, precision
        >>> w = Param(jnp.array([1.0, 2.0]))
        >>> @precision(compute=jnp.bfloat16, output=jnp.float32)
        ... def loss(x, *, w):
        ...     assert w.dtype == jnp.bfloat16
        ...     return jnp.sum(w * x)
        >>> grad(loss, kwargs_mask=True)(jnp.ones(2), w=w)["w"].dtype.name
        'float32'
    """
    return decorator(
        Retracing, fun, name="precision", run=_precision, compute=jnp.dtype(compute),
        output=None if output is None else jnp.dtype(output), kwargs_mask=kwargs_mask,
    )  # fmt: skip


def _cast(tree: Any, dtype: Any) -> Any:
    """A tree with its real arrays in a dtype."""

    def cast(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.asarray(leaf, dtype)

    return jax.tree.map(cast, tree)


def _like(new: Any, old: Any) -> Any:
    """A value that was written, in the dtypes of the one that it replaces."""
    treedef: Any = jax.tree.structure(new)
    if new is None or old is None or treedef != jax.tree.structure(old):
        return new
    return jax.tree.map(
        lambda n, o: jnp.asarray(n, o.dtype) if hasattr(o, "dtype") else n, new, old
    )
