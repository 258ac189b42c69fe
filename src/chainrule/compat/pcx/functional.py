"""The transformations, as decorator factories, with the ancestor's arguments and results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from chainrule import stateful
from chainrule._errors import CapabilityError
from chainrule.compat.pcx._gradients import gradient_tree
from chainrule.stateful import RKG

__all__ = ["cond", "jit", "scan", "switch", "value_and_grad", "vmap", "while_loop"]

Function = Callable[..., Any]
_LANES = "pcx_lanes"


def jit(
    static_argnums: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    **options: Any,
) -> Callable[[Function], Function]:
    """Compile a function; changes to parameters in keyword arguments are kept.

    Args:
        static_argnums: as in `jax.jit`, of positional arguments.
        donate_argnums: as in `jax.jit`, of positional arguments.
        donate_argnames: keyword arguments whose parameters' memory may be reused.
        **options: further options of `chainrule.stateful.jit`.
    """
    return stateful.jit(
        static_argnums=static_argnums,
        donate_argnums=donate_argnums,
        donate=donate_argnames or False,
        **options,
    )


def vmap(
    kwargs_mask: Any = None,
    in_axes: int | Sequence[Any] | None = (),
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
) -> Callable[[Function], Function]:
    """Vectorise a function, with one key per lane from the global generator.

    Args:
        kwargs_mask: the axis of every parameter, `None` where it is shared.
        in_axes: of positional arguments.
        out_axes: of results.
        axis_name: of the mapped axis.
    """
    return functools.partial(
        _vmap_with_lane_keys,
        kwargs_mask=kwargs_mask or None,
        in_axes=in_axes,
        out_axes=out_axes,
        axis_name=axis_name,
    )


def value_and_grad(
    kwargs_mask: Any = None,
    argnums: int | Sequence[int] = (),
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
) -> Callable[[Function], Function]:
    """Differentiate the first thing that a function returns.

    Args:
        kwargs_mask: `True` for every parameter to differentiate.
        argnums: positional arguments to differentiate.
        has_aux: return what else the function returns.
        reduce_axes: has to be empty; JAX does not support it any more.

    Returns:
        A function that gives `(loss, G)`, or `((loss, (extra, …)), G)` with `has_aux`. `G` maps keyword
        arguments to trees like them with gradients in the parameters that were selected, and `None` in the
        others; with `argnums` it is `(gradients of positional arguments, that dictionary)`.

    Raises:
        CapabilityError: `reduce_axes` is not empty.
    """
    if reduce_axes:
        raise CapabilityError(
            "JAX no longer reduces gradients over named axes in `value_and_grad`. Leave `reduce_axes` "
            "empty, and sum the loss with `jax.lax.psum` inside `vmap`.",
            code="reduce_axes_not_supported",
        )
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def decorate(fn: Function) -> Function:
        native = stateful.value_and_grad(
            _loss_and_rest(fn),
            argnums=numbers or None,
            has_aux=True,
            kwargs_mask=kwargs_mask or (None if numbers else {}),
        )

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            (loss, rest), found = native(*args, **kwargs)
            by_position, by_path = _split(found, len(numbers), bool(kwargs_mask))
            gradients = {
                name: gradient_tree(tree, by_path.get(name)) for name, tree in kwargs.items()
            }
            return (
                (loss, rest) if has_aux else loss,
                (by_position, gradients) if numbers else gradients,
            )

        return call

    return decorate


def _loss_and_rest(fn: Function) -> Function:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        result = fn(*args, **kwargs)
        return (result[0], tuple(result[1:])) if isinstance(result, tuple) else (result, ())

    return run


def _split(found: Any, n_positional: int, has_mask: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the native derivative gives, taken apart: positional gradients, then those by keyword."""
    if not n_positional:
        return (), found
    return (tuple(found[:-1]), found[-1]) if has_mask else (tuple(found), {})


def scan(
    f: Function,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Function:
    """A loop `(*init, **tracked) -> (carry as a tuple, ys)` over the leading axis of `xs`.

    Args:
        f: the body, `f(x, *carry, **tracked) -> (carry, y)`.
        xs: what to loop over.
        length: as in `jax.lax.scan`.
        reverse: as in `jax.lax.scan`.
        unroll: as in `jax.lax.scan`.
    """

    @functools.wraps(f)
    def body(carry: tuple[Any, ...], x: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Any]:
        new, y = f(x, *carry, **kwargs)
        return _as_tuple(new), y

    loop = stateful.scan(body, length=length, reverse=reverse, unroll=unroll)
    return lambda *init, **kwargs: loop(init, xs, **kwargs)


def while_loop(f: Function, cond_fun: Function) -> Function:
    """A loop `(*args, **tracked) -> args as a tuple`, while a condition holds.

    Args:
        f: `f(*args, **tracked) -> args`.
        cond_fun: `cond_fun(*args, **tracked) -> bool`.
    """
    loop = stateful.while_loop(
        lambda values, **kwargs: cond_fun(*values, **kwargs),
        lambda values, **kwargs: _as_tuple(f(*values, **kwargs)),
    )
    return lambda *args, **kwargs: loop(args, **kwargs)


def cond(true_fun: Function, false_fun: Function) -> Function:
    """One of two functions: `(predicate, *args, **tracked)`."""
    return stateful.cond(true_fun, false_fun)


def switch(branches: Sequence[Function]) -> Function:
    """One of several functions: `(index, *args, **tracked)`."""
    return stateful.switch(branches)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _vmap_with_lane_keys(
    fn: Callable[..., Any],
    *,
    kwargs_mask: Any,
    in_axes: Any,
    out_axes: Any,
    axis_name: Hashable | None,
) -> Callable[..., Any]:
    """The vectorised function; arguments as in `chainrule.stateful.vmap`."""
    lanes = _LANES if axis_name is None else axis_name

    @functools.wraps(fn)
    def lane(key: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = RKG.key.get()
        RKG.key.set(_own_key(key, lanes))
        result = fn(*args, **kwargs)
        left = RKG.key.get()
        RKG.key.set(given)
        return result, left

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        mapped = stateful.vmap(
            lane,
            kwargs_mask=kwargs_mask,
            in_axes=(None, *axes),
            out_axes=(out_axes, 0),
            axis_name=lanes,
        )
        result, left = mapped(RKG.key.get(), *args, **kwargs)
        RKG.key.set(left[0])
        return result

    return call


def _own_key(key: Any, lanes: Hashable) -> Any:
    """Row i + 1 of the key split into (number of lanes) + 1."""
    count = jax.lax.psum(1, lanes)
    rows = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key), count + 1))
    return rows[jax.lax.axis_index(lanes) + 1]
