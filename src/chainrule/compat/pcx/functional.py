"""The transformations, with the ancestor's arguments and results.

Each has a class (`Jit(fn, …)`) and a function: `jit(…)(fn)`, or, for loops and branches, `scan(fn, …)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from chainrule import stateful
from chainrule._errors import CapabilityError
from chainrule.compat.pcx._trees import gradient_tree
from chainrule.stateful import RKG, Mask
from chainrule.stateful.internal import is_node

__all__ = ["cond", "jit", "scan", "switch", "value_and_grad", "vmap", "while_loop"]

Function = Callable[..., Any]
_LANES = "pcx_lanes"


class _Transformation:
    """A transformed function.

    Args:
        fn: the function.
        call: what runs when the transformation is called.
    """

    def __init__(self, fn: Function, call: Function) -> None:
        self._call = call
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fn={getattr(self, '__name__', '…')})"


class Jit(_Transformation):
    """A compiled function; see `jit`."""

    def __init__(self, fn: Function, **options: Any) -> None:
        donated = options.pop("donate_argnames", None)
        super().__init__(fn, stateful.jit(fn, donate=donated or False, **options))


class Vmap(_Transformation):
    """A vectorised function; see `vmap`."""

    def __init__(
        self,
        fn: Function,
        kwargs_mask: Any = None,
        *,
        in_axes: int | Sequence[Any] | None = (),
        out_axes: Any = 0,
        axis_name: Hashable | None = None,
    ) -> None:
        lanes = _LANES if axis_name is None else axis_name

        @functools.wraps(fn)
        def lane(key: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            given = RKG.key.get()
            RKG.key.set(_own_key(key, lanes))
            result = fn(*args, **kwargs)
            left = RKG.key.get()
            RKG.key.set(given)
            return result, left

        def call(*args: Any, **kwargs: Any) -> Any:
            axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
            mapped = stateful.vmap(
                lane,
                kwargs_mask=_applied(kwargs_mask, kwargs),
                in_axes=(None, *axes),
                out_axes=(out_axes, 0),
                axis_name=lanes,
            )
            result, left = mapped(RKG.key.get(), *args, **kwargs)
            RKG.key.set(left[0])
            return result

        super().__init__(fn, call)


class ValueAndGrad(_Transformation):
    """A function that returns its value and gradients; see `value_and_grad`."""

    def __init__(
        self,
        fn: Function,
        kwargs_mask: Any = None,
        *,
        argnums: int | Sequence[int] = (),
        has_aux: bool = False,
        reduce_axes: Sequence[Hashable] = (),
    ) -> None:
        if reduce_axes:
            raise CapabilityError(
                "JAX no longer reduces gradients over named axes in `value_and_grad`. Leave `reduce_axes` "
                "empty, and sum the loss with `jax.lax.psum` inside `vmap`.",
                code="reduce_axes_not_supported",
            )
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

        @functools.wraps(fn)
        def loss_and_rest(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
            result = _as_tuple(fn(*args, **kwargs))
            return result[0], result[1:]

        def call(*args: Any, **kwargs: Any) -> Any:
            derivative = stateful.value_and_grad(
                loss_and_rest,
                argnums=numbers or None,
                has_aux=True,
                kwargs_mask=_applied(kwargs_mask, kwargs),
            )
            (loss, rest), found = derivative(*args, **kwargs)
            by_keyword = found[-1] if numbers else found
            gradients = {
                name: gradient_tree(tree, by_keyword.get(name)) for name, tree in kwargs.items()
            }
            return (
                (loss, rest) if has_aux else loss,
                (tuple(found[:-1]), gradients) if numbers else gradients,
            )

        super().__init__(fn, call)


class Scan(_Transformation):
    """A loop over the leading axis; see `scan`."""

    def __init__(
        self,
        fn: Function,
        xs: Any = None,
        length: int | None = None,
        reverse: bool = False,
        unroll: int | bool = 1,
    ) -> None:
        @functools.wraps(fn)
        def body(carry: tuple[Any, ...], x: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Any]:
            new, y = fn(x, *carry, **kwargs)
            return _as_tuple(new), y

        loop = stateful.scan(body, length=length, reverse=reverse, unroll=unroll)
        super().__init__(fn, lambda *init, **kwargs: loop(init, xs, **kwargs))


class WhileLoop(_Transformation):
    """A loop until a condition fails; see `while_loop`."""

    def __init__(self, fn: Function, cond_fun: Function) -> None:
        loop = stateful.while_loop(
            lambda values, **kwargs: cond_fun(*values, **kwargs),
            lambda values, **kwargs: _as_tuple(fn(*values, **kwargs)),
        )
        super().__init__(fn, lambda *args, **kwargs: loop(args, **kwargs))


class Cond(_Transformation):
    """One of two functions; see `cond`."""

    def __init__(self, true_fn: Function, false_fn: Function) -> None:
        super().__init__(true_fn, stateful.cond(true_fn, false_fn))


class Switch(_Transformation):
    """One of several functions; see `switch`."""

    def __init__(self, fns: Sequence[Function]) -> None:
        super().__init__(fns[0], stateful.switch(fns))


def jit(
    static_argnums: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    **kwargs: Any,
) -> Callable[[Function], Jit]:
    """Compile a function; changes to parameters in keyword arguments are kept.

    Args:
        static_argnums: as in `jax.jit`, of positional arguments.
        donate_argnums: as in `jax.jit`, of positional arguments.
        donate_argnames: keyword arguments whose parameters' memory may be reused.
        **kwargs: further options of `chainrule.stateful.jit`.
    """
    return functools.partial(
        Jit,
        static_argnums=static_argnums,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        **kwargs,
    )


def vmap(
    kwargs_mask: Any = None,
    in_axes: int | Sequence[Any] | None = (),
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
) -> Callable[[Function], Vmap]:
    """Vectorise a function, with one key per lane from the global generator.

    Args:
        kwargs_mask: the axis of every parameter, `None` where it is shared.
        in_axes: of positional arguments.
        out_axes: of results.
        axis_name: of the mapped axis.
    """
    return functools.partial(
        Vmap, kwargs_mask=kwargs_mask, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name
    )


def value_and_grad(
    kwargs_mask: Any = None,
    argnums: int | Sequence[int] = (),
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
) -> Callable[[Function], ValueAndGrad]:
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
    return functools.partial(
        ValueAndGrad,
        kwargs_mask=kwargs_mask,
        argnums=argnums,
        has_aux=has_aux,
        reduce_axes=reduce_axes,
    )


def scan(
    f: Function,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Scan:
    """A loop `(*init, **tracked) -> (carry as a tuple, ys)` over the leading axis of `xs`.

    Args:
        f: the body, `f(x, *carry, **tracked) -> (carry, y)`.
        xs: what to loop over.
        length: as in `jax.lax.scan`.
        reverse: as in `jax.lax.scan`.
        unroll: as in `jax.lax.scan`.
    """
    return Scan(f, xs, length, reverse, unroll)


def while_loop(f: Function, cond_fun: Function) -> WhileLoop:
    """A loop `(*args, **tracked) -> args as a tuple`, while a condition holds.

    Args:
        f: `f(*args, **tracked) -> args`.
        cond_fun: `cond_fun(*args, **tracked) -> bool`.
    """
    return WhileLoop(f, cond_fun)


def cond(true_fun: Function, false_fun: Function) -> Cond:
    """One of two functions: `(predicate, *args, **tracked)`."""
    return Cond(true_fun, false_fun)


def switch(branches: Sequence[Function]) -> Switch:
    """One of several functions: `(index, *args, **tracked)`."""
    return Switch(branches)


def _applied(mask: Any, kwargs: Mapping[str, Any]) -> Any:
    """A `kwargs_mask` whose functions have been called: with all keyword arguments, or with their own one."""
    if isinstance(mask, dict):
        entries = {
            name: entry
            for names, entry in mask.items()
            for name in (names if isinstance(names, tuple) else (names,))
        }
        return {name: _called(entry, kwargs.get(name)) for name, entry in entries.items()}
    return {} if mask is None else _called(mask, dict(kwargs))


def _called(mask: Any, subtree: Any) -> Any:
    if not callable(mask) or isinstance(mask, (Mask, type)) or is_node(mask):
        return mask
    takes_flag = "is_pytree" in inspect.signature(mask).parameters
    return mask(subtree, **({"is_pytree": True} if takes_flag else {}))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _own_key(key: Any, lanes: Hashable) -> Any:
    """Row i + 1 of the key split into (number of lanes) + 1."""
    count = jax.lax.psum(1, lanes)
    rows = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key), count + 1))
    return rows[jax.lax.axis_index(lanes) + 1]
