"""Loops and branches: `scan`, `map`, `fori_loop`, `while_loop`, `cond`, `switch`.

All tracked parameters are carried.

JAX turns what a loop's body passes through unchanged into a constant of the loop, and prunes what all
branches pass through unchanged, so parameters that are only read cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.stateful._call import Call, Transformation, decorator, with_callees
from chainrule.stateful._frames import TypesChangedError
from chainrule.stateful._mapping import vmap
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._params import BaseParam, unwrap

_NOT_GIVEN = object()


class Scan(Transformation):
    """A loop over the leading axis; see `scan`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        length: int | None = None,
        reverse: bool = False,
        unroll: int | bool = 1,
        kwargs_mask: Any = None,
    ) -> None:
        loop: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}
        super().__init__(fun, kwargs_mask=kwargs_mask, **loop)
        self._mask = kwargs_mask
        self._loop = loop

    def __call__(self, /, init: Any, xs: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        try:
            return self._run(Call(kwargs), init, xs, is_first_apart=False)
        except TypesChangedError as error:
            # What is `None` at first (the state of an optimiser, the value of a node) gets its type in the
            # first step. That step then runs by itself, and the loop goes over the others.
            if not error.is_from_none or _length(xs, self._loop["length"]) in (0, None):
                raise
        return self._run(Call(kwargs), init, xs, is_first_apart=True)

    def _run(self, call: Call, init: Any, xs: Any, *, is_first_apart: bool) -> tuple[Any, Any]:
        axes = resolve_mask(self._mask, call.inventory, None)
        sliced = [slot for slot, axis in enumerate(axes) if axis is not None]

        def step(carry: Any, x: Any, within: str | None = "the body of a scan") -> Any:
            inner, values = carry
            own, slices = x
            merged = list(values)
            for slot, value in zip(sliced, slices, strict=True):
                merged[slot] = value
            (inner, y), new = call.pure(self._fun, within=within)(merged, inner, own)
            new = [*new, *merged[len(new) :]]
            return (inner, _without(new, sliced)), (y, [new[slot] for slot in sliced])

        slices = [_move_axis(call.values[slot], axes[slot], 0) for slot in sliced]
        carry, steps = (init, _without(call.values, sliced)), (xs, slices)
        if is_first_apart:
            carry, outs = _first_apart(step, carry, steps, self._loop)
        else:
            carry, outs = jax.lax.scan(step, carry, steps, **self._loop)
        (inner, values), (ys, stacked) = carry, outs
        for slot, value in zip(sliced, stacked, strict=True):
            values[slot] = _move_axis(value, 0, axes[slot])
        return call.finish((inner, ys), values, is_loop=True)


def _first_apart(step: Any, carry: Any, xs: Any, loop: dict[str, Any]) -> tuple[Any, Any]:
    """A scan whose first step runs before the loop, so that it may change the types in the carry."""
    # In reverse the first step is the one at the last index, and its output belongs at the end.
    is_reverse = loop["reverse"]
    length = _length(xs, loop["length"])
    first, rest = (-1, slice(None, -1)) if is_reverse else (0, slice(1, None))
    carry, out = step(carry, jax.tree.map(lambda leaf: leaf[first], xs), within=None)
    others = jax.tree.map(lambda leaf: leaf[rest], xs)
    carry, outs = jax.lax.scan(step, carry, others, **{**loop, "length": length - 1})

    def joined(one: Any, many: Any) -> Any:
        parts = [jnp.expand_dims(one, 0), many]
        return jnp.concatenate(parts[::-1] if is_reverse else parts)

    return carry, jax.tree.map(joined, out, outs)


def _length(xs: Any, length: int | None) -> Any:
    return next((jnp.shape(leaf)[0] for leaf in jax.tree.leaves(xs)), length)


def _without(values: list[Any], slots: list[int]) -> list[Any]:
    return [None if slot in slots else value for slot, value in enumerate(values)]


def _move_axis(value: Any, source: int, target: int) -> Any:
    if source == target:
        return value
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, target), value)


def scan(
    f: Callable[..., Any] | None = None,
    /,
    init: Any = _NOT_GIVEN,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """Loop over the leading axis of arrays, carrying a value and every tracked parameter.

    A parameter keeps its type in the loop. One that is `None` may get its type in the first step.

    `scan(f, init, xs, **tracked)` runs at once, as in JAX; `scan(f)` and `@scan(length=…)` make a function
    `(init, xs=None, **tracked)`.

    Args:
        f: the body, `f(carry, x, **tracked) -> (carry, y)`.
        init: the first carry.
        xs: arrays whose leading axis the loop goes along.
        length: as in `jax.lax.scan`.
        reverse: as in `jax.lax.scan`.
        unroll: as in `jax.lax.scan`.
        kwargs_mask: the axis of parameters the loop goes along (one slice per step, as in a scan over
            layers); `None`, the default, for parameters that are carried from step to step.
        **tracked: the body's keyword arguments.

    Returns:
        `(carry, ys)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, scan
        >>> total = Param(jnp.zeros(()))
        >>> def body(carry, x, *, total):
        ...     total += x
        ...     return carry + 1, carry * x
        >>> count, products = scan(body, 0, jnp.array([1.0, 2.0, 3.0]), total=total)
        >>> int(count), products.tolist(), float(total)
        (3, [0.0, 2.0, 6.0], 6.0)
    """
    looped = decorator(
        Scan, f, length=length, reverse=reverse, unroll=unroll, kwargs_mask=kwargs_mask
    )
    return looped if init is _NOT_GIVEN else looped(init, xs, **tracked)


class WhileLoop(Transformation):
    """A loop until a condition fails; see `while_loop`."""

    def __init__(self, cond_fun: Callable[..., Any], body_fun: Callable[..., Any]) -> None:
        super().__init__(body_fun)
        self._cond = cond_fun

    def __call__(self, /, init_val: Any, **kwargs: Any) -> Any:
        functions, kwargs = with_callees((self._cond, self._fun), kwargs)
        call = Call(kwargs)
        condition = call.pure(functions[0], within="the condition of a while_loop")
        step = call.pure(functions[1], within="the body of a while_loop")
        plain = call.values[len(call.inventory.params) :]

        # JAX's condition cannot return state. It is evaluated ahead, at the end of every step, and its
        # answer is carried: so it may draw random keys and write like any other function.
        def body(carry: Any) -> Any:
            _, value, values = carry
            value, values = step([*values, *plain], value)
            go_on, values = condition([*values, *plain], value)
            return go_on, value, values

        go_on, values = condition(call.values, init_val)
        _, value, values = jax.lax.while_loop(
            lambda carry: carry[0], body, (go_on, init_val, values)
        )
        return call.finish(value, values, is_loop=True)


def while_loop(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: Any = _NOT_GIVEN,
    **tracked: Any,
) -> Any:
    """Repeat a function while a condition holds, carrying every tracked parameter.

    `while_loop(cond_fun, body_fun, init_val, **tracked)` runs at once, as in JAX; without `init_val` it makes
    a function `(init_val, **tracked)`.

    Args:
        cond_fun: `cond_fun(value, **tracked) -> bool`; what it writes and draws is kept.
        body_fun: `body_fun(value, **tracked) -> value`.
        init_val: the first value.
        **tracked: keyword arguments of both.
    """
    loop = WhileLoop(cond_fun, body_fun)
    return loop if init_val is _NOT_GIVEN else loop(init_val, **tracked)


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    **tracked: Any,
) -> Any:
    """Repeat a function for the numbers from `lower` to `upper` - 1, carrying every tracked parameter.

    Args:
        lower: the first number.
        upper: the number after the last.
        body_fun: `body_fun(number, value, **tracked) -> value`.
        init_val: the first value.
        unroll: as in `jax.lax.fori_loop`.
        **tracked: the body's keyword arguments.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, fori_loop
        >>> total = Param(jnp.zeros(()))
        >>> def body(i, value, *, total):
        ...     total += value
        ...     return value * 2
        >>> int(fori_loop(0, 3, body, 1, total=total)), float(total)
        (8, 7.0)
    """
    (body_fun,), tracked = with_callees((body_fun,), tracked)
    call = Call(tracked)
    step = call.pure(body_fun, within="the body of a fori_loop")
    count = len(call.inventory.params)
    plain = call.values[count:]

    def body(number: Any, carry: Any) -> Any:
        value, values = carry
        return step([*values, *plain], number, value)

    value, values = jax.lax.fori_loop(
        unwrap(lower), unwrap(upper), body, (init_val, call.values[:count]), unroll=unroll
    )
    return call.finish(value, values, is_loop=True)


def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None, **tracked: Any) -> Any:
    """Apply a function to the slices of arrays along their leading axis, one after the other.

    Args:
        f: `f(x, **tracked) -> y`. What one application writes is there in the next.
        xs: arrays whose leading axis the loop goes along.
        batch_size: how many slices to take at once, by `vmap`; the rules of `vmap` hold for them.
        **tracked: the function's keyword arguments.

    Returns:
        The results, stacked.
    """
    (f,), tracked = with_callees((f,), tracked)
    at_once = f if batch_size is None else vmap(f)

    def body(carry: None, x: Any, **kwargs: Any) -> tuple[None, Any]:
        return None, at_once(x, **kwargs)

    if batch_size is None:
        return scan(body, None, xs, **tracked)[1]
    length = _length(xs, None)
    whole = length - length % batch_size
    batches = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, batch_size, *leaf.shape[1:]), xs)
    ys = scan(body, None, batches, **tracked)[1]
    ys = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), ys)
    if whole == length:
        return ys
    rest = at_once(jax.tree.map(lambda leaf: leaf[whole:], xs), **tracked)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), ys, rest)


class Branches(Transformation):
    """One of several functions; `choose` is `jax.lax.switch`, or has its arguments. See `switch`, `cond`."""

    def __init__(
        self, branches: Sequence[Callable[..., Any]], choose: Callable[..., Any] = jax.lax.switch
    ) -> None:
        super().__init__(branches[0])
        self._branches = tuple(branches)
        self._choose = choose

    def __call__(self, index: Any, /, *operands: Any, **kwargs: Any) -> Any:
        functions, kwargs = with_callees(self._branches, kwargs)
        call = Call(kwargs)
        branches = [call.pure(branch, within="a branch") for branch in functions]
        result, values = self._choose(unwrap(index), branches, call.values, *operands)
        return call.finish(result, values)


def _cond(pred: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    return jax.lax.cond(pred, *branches, *operands)


def cond(pred: Any, /, *functions_and_operands: Any, **tracked: Any) -> Any:
    """Run one of two functions.

    `cond(pred, true_fun, false_fun, *operands, **tracked)` runs at once, as in JAX;
    `cond(true_fun, false_fun)` makes a function `(pred, *operands, **tracked)`.

    Args:
        pred: a scalar truth value.
        *functions_and_operands: `true_fun`, `false_fun`, and their positional arguments.
        **tracked: their keyword arguments.
    """
    if callable(pred) and not isinstance(pred, BaseParam):
        (false_fun,) = functions_and_operands
        return Branches((pred, false_fun), _cond)
    true_fun, false_fun, *operands = functions_and_operands
    return Branches((true_fun, false_fun), _cond)(pred, *operands, **tracked)


def switch(index: Any, /, *branches_and_operands: Any, **tracked: Any) -> Any:
    """Run one of several functions.

    `switch(index, branches, *operands, **tracked)` runs at once, as in JAX; `switch(branches)` makes a
    function `(index, *operands, **tracked)`.

    Args:
        index: which one; clamped to the range, as in JAX.
        *branches_and_operands: a sequence of functions, and their positional arguments.
        **tracked: their keyword arguments.
    """
    if not branches_and_operands:
        return Branches(index)
    branches, *operands = branches_and_operands
    return Branches(branches)(index, *operands, **tracked)
