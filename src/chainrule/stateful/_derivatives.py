"""Derivatives: `grad` and its like, `jvp`, `vjp`, `linearize`, `custom_vjp`, `custom_jvp`, `checkpoint`.

JAX differentiates positional arguments. Where a mask selects parameters, their values become one more, last
positional argument: a dictionary `{keyword: {path: value}}` (`Selection`). Every rule of JAX about arguments
(`argnums`, the structure of gradients, Jacobians and Hessians, tangents and cotangents) then holds for
parameters too. What a function writes comes back as auxiliary output, which no derivative goes through.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from chainrule._errors import DefinitionError, InputError
from chainrule.stateful._call import (
    Call,
    Retracing,
    Transformation,
    decorator,
    keyword_of,
    tracking_self,
    with_callees,
)
from chainrule.stateful._masks import TRAINABLE, Mask, nothing_selected, resolve_places
from chainrule.stateful._values import is_inexact

Tree = dict[str, Any]


class Selection:
    """The parameters of a call that a mask selects.

    Args:
        call: the call.
        mask: a `kwargs_mask` of truth values; `True` stands for all trainable parameters, `None` for
            no selection at all. What is not a real or complex number is never selected.
    """

    def __init__(self, call: Call, mask: Any) -> None:
        self.is_given = mask is not None
        self._call = call
        chosen = resolve_places(_with_default(mask), call.inventory, False)
        self._paths = {
            slot: path
            for slot, (is_on, path) in enumerate(chosen)
            if is_on and is_inexact(call.values[slot])
        }
        self._check_not_empty(mask)

    def _check_not_empty(self, mask: Any) -> None:
        """Refuse a mask that asks for parameters and finds none, and a dictionary with such an entry.

        Raises:
            InputError: it is one.
        """
        found = {keyword_of(path) for path in self._paths.values()}
        names = self._call.inventory.names
        asked = {names: mask} if not isinstance(mask, dict) else mask
        kwargs = self._call.inventory.live_kwargs([None] * len(self._call.inventory.plain))
        for keywords, entry in asked.items():
            wanted = keywords if isinstance(keywords, tuple) else (keywords,)
            is_question = entry is True or isinstance(entry, (Mask, type, types.UnionType))
            if is_question and not found & set(wanted):
                shown = TRAINABLE if entry is True else entry
                raise nothing_selected(
                    "kwargs_mask", shown, {name: kwargs[name] for name in wanted}
                )

    def tree(self, values: Sequence[Any]) -> Tree:
        """Flat values of all slots → `{keyword: {path: value}}` of the selected ones.

        A parameter that is a keyword argument itself has no path: `{keyword: value}`.
        """
        tree: Tree = {name: {} for name in self._call.inventory.names} if self._paths else {}
        for slot, path in self._paths.items():
            name = keyword_of(path)
            if path == name:
                tree[name] = values[slot]
            else:
                tree[name][path[len(name) + 1 :]] = values[slot]
        return {name: entry for name, entry in tree.items() if not _is_empty(entry)}

    def merge(self, tree: Tree, values: Sequence[Any]) -> list[Any]:
        """The values of all slots: the selected ones from a tree, the others as given."""
        merged = list(values)
        for slot, path in self._paths.items():
            name = keyword_of(path)
            merged[slot] = tree[name] if path == name else tree[name][path[len(name) + 1 :]]
        return merged

    def explicit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The pure function of `(*args, selected parameters if any, all values)`.

        JAX gives the rules of `custom_vjp` and `custom_jvp` no access to values that are differentiated
        around them: none may be closed over.
        """
        pure = self._call.pure(function)

        def run(*args: Any) -> Any:
            *rest, values = args
            if self.is_given:
                *rest, tree = rest
                values = self.merge(tree, values)
            return pure(values, *rest)

        run.__name__ = run.__qualname__ = pure.__name__
        return run

    def with_aux(self, function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
        """As a function that JAX differentiates: `(*args, tree) -> (value, (aux, values))`."""
        explicit = self.explicit(function)

        def run(*args: Any) -> tuple[Any, tuple[Any, list[Any]]]:
            result, values = explicit(*args, self._call.values)
            value, aux = result if has_aux else (result, None)
            return value, (aux, values)

        run.__name__ = run.__qualname__ = explicit.__name__
        return run

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, followed by the selected parameters if any were asked for."""
        return (*args, self.tree(self._call.values)) if self.is_given else args


def _is_empty(entry: Any) -> bool:
    return isinstance(entry, dict) and not entry


def _with_default(mask: Any) -> Any:
    if mask is True:
        return TRAINABLE
    if isinstance(mask, dict):
        return {name: TRAINABLE if entry is True else entry for name, entry in mask.items()}
    return mask


def _derivative(
    call: Call,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    transform: Callable[..., Any],
    argnums: int | Sequence[int] | None,
    has_aux: bool,
    kwargs_mask: Any,
    **jax_options: Any,
) -> Any:
    """What a call of `grad` and its like does; `transform` is JAX's, which takes `argnums` and `has_aux`."""
    selection = Selection(call, kwargs_mask)
    transformed = transform(
        selection.with_aux(fun, has_aux),
        argnums=_argnums(argnums, selection, len(args)),
        has_aux=True,
        **jax_options,
    )
    found = transformed(*selection.arguments(args))
    if transform is jax.value_and_grad:
        (value, (aux, values)), gradient = found
        result = ((value, aux) if has_aux else value), gradient
    else:
        derivative, (aux, values) = found
        result = (derivative, aux) if has_aux else derivative
    return call.finish(result, values)


def _argnums(
    argnums: int | Sequence[int] | None, selection: Selection, count: int
) -> int | tuple[int, ...]:
    """Without a mask as in JAX (by default the first); with one, the parameters come last.

    Raises:
        InputError: a number is not the position of an argument (`bad_argnums`).
    """
    if not selection.is_given:
        return 0 if argnums is None else argnums if isinstance(argnums, int) else tuple(argnums)
    # The selected parameters are argument number `count`, after the user's. A negative number counts from the
    # end of the user's arguments, as in JAX, where the parameters are not.
    if argnums is None or argnums == ():
        return count
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    for num in chosen:
        if not -count <= num < count:
            raise InputError(
                f"Expected argnums to be positions of positional arguments, of which this call has {count}; "
                f"found {num}. Parameters are selected by `kwargs_mask` alone.",
                code="bad_argnums",
            )
    return (*(num % count for num in chosen), count)


def _make(transform: Callable[..., Any], summary: str, example: str = "") -> Any:
    def derivative(
        fun: Callable[..., Any] | None = None,
        argnums: int | Sequence[int] | None = None,
        has_aux: bool = False,
        *,
        kwargs_mask: Any = None,
        **jax_options: Any,
    ) -> Any:
        return decorator(
            Retracing, fun, name=transform.__name__, run=_derivative, transform=transform, argnums=argnums,
            has_aux=has_aux, kwargs_mask=kwargs_mask, **jax_options,
        )  # fmt: skip

    derivative.__name__ = derivative.__qualname__ = transform.__name__
    derivative.__doc__ = f"""{summary}

    Args:
        fun: the function. Without it, a decorator is returned.
        argnums: positional arguments to differentiate, as in JAX. By default the first one; none when
            `kwargs_mask` is given.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters to differentiate: a mask of truth values, `True` for all trainable ones,
            or a dictionary per keyword. They count as one more, last argument, `{{keyword: {{path: …}}}}`.
        **jax_options: `holomorphic`, `allow_int` and the like, as in JAX.

    Returns:
        A function with the return structure of its JAX counterpart. Changes made to parameters while
        the function runs are kept; gradients are those at the values it began with.
{example}"""
    return derivative


grad = _make(jax.grad, "The gradient of a scalar function.")
value_and_grad = _make(
    jax.value_and_grad,
    "The value and the gradient of a scalar function.",
    """
    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, value_and_grad
        >>> w = Param(jnp.array([1.0, 2.0]))
        >>> loss = value_and_grad(lambda x, *, w: jnp.sum(w * x), kwargs_mask=True)
        >>> value, grads = loss(jnp.array([3.0, 4.0]), w=w)
        >>> float(value), grads["w"].tolist()
        (11.0, [3.0, 4.0])
    """,
)
jacfwd = _make(jax.jacfwd, "The Jacobian, by forward mode.")
jacrev = _make(jax.jacrev, "The Jacobian, by reverse mode.")
hessian = _make(jax.hessian, "The Hessian, by forward over reverse mode.")


def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    /,
    has_aux: bool = False,
    *,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and its derivative in a direction.

    Args:
        fun: the function.
        primals: its positional arguments.
        tangents: the direction; with `kwargs_mask`, one more entry for the selected parameters.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters that move too (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, tangent)`, or `(value, tangent, aux)`.
    """

    def transform(function: Callable[..., Any], *arguments: Any, has_aux: bool) -> Any:
        return jax.jvp(function, arguments, tuple(tangents), has_aux=has_aux)

    return _at_point(transform, fun, tuple(primals), has_aux, kwargs_mask, tracked)


def _at_point(
    transform: Callable[..., Any],
    fun: Callable[..., Any],
    primals: tuple[Any, ...],
    has_aux: bool,
    kwargs_mask: Any,
    tracked: Mapping[str, Any],
) -> Any:
    """`(value, derivative)`, or with an aux, of a transformation of JAX that is given a point."""
    (fun,), tracked = with_callees((fun,), tracked)
    call = Call(tracked)
    selection = Selection(call, kwargs_mask)
    function = selection.with_aux(fun, has_aux)
    value, derivative, (aux, values) = transform(
        function, *selection.arguments(primals), has_aux=True
    )
    return call.finish((value, derivative, aux) if has_aux else (value, derivative), values)


def vjp(
    fun: Callable[..., Any],
    /,
    *primals: Any,
    has_aux: bool = False,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and the function that pulls cotangents back.

    Args:
        fun: the function.
        *primals: its positional arguments.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters to pull back to (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, pull)`, or `(value, pull, aux)`; `pull(cotangent)` is a tuple with one entry per primal,
        and with `kwargs_mask` one more for the selected parameters.
    """
    return _at_point(jax.vjp, fun, primals, has_aux, kwargs_mask, tracked)


def linearize(
    fun: Callable[..., Any],
    /,
    *primals: Any,
    has_aux: bool = False,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and its linear approximation there.

    Args:
        fun: the function.
        *primals: its positional arguments.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters that move too (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, push)`, or `(value, push, aux)`; `push(*tangents)` takes one tangent per primal, and with
        `kwargs_mask` one more for the selected parameters.
    """
    return _at_point(jax.linearize, fun, primals, has_aux, kwargs_mask, tracked)


class _CustomDerivative(Transformation):
    """A function with a derivative rule, which is set after the function is made."""

    _setter: ClassVar[str]
    """How the rule is set, for messages."""
    _rule: Any = None

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        nondiff_argnums: Sequence[int] = (),
        kwargs_mask: Any = None,
    ) -> None:
        super().__init__(fun, nondiff_argnums=nondiff_argnums, kwargs_mask=kwargs_mask)
        self._nondiff = tuple(nondiff_argnums)
        self._mask = kwargs_mask

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._rule is None:
            raise DefinitionError(
                f"{self!r} has no rule yet; call `.{self._setter}` before using it.",
                code="missing_rule",
            )
        call = Call(kwargs)
        selection = Selection(call, self._mask)
        function = self._with_rule(call, selection)
        result, values = function(*selection.arguments(args), call.values)
        return call.finish(result, values)

    @property
    def _as_method(self) -> _CustomDerivative:
        made = type(self)(tracking_self(self._fun), **self._options)
        made._rule = None if self._rule is None else self._rule_as_method()
        return made

    def _rule_as_method(self) -> Any:
        """The rule of a method: what it takes first is the module."""
        raise NotImplementedError

    def _with_rule(self, call: Call, selection: Selection) -> Callable[..., Any]:
        """JAX's function with the rule: explicit arguments and values in, result and values out."""
        raise NotImplementedError


class CustomVjp(_CustomDerivative):
    """A function with a backward pass of its own; see `custom_vjp`."""

    _setter = "defvjp(fwd, bwd)"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rule.

        Args:
            fwd: `fwd(*args, **tracked) -> (result, residuals)`; it may write parameters, as the function.
                Of a method, it takes the module first, as the method does.
            bwd: `bwd(*nondiff_args, residuals, cotangent)` → a tuple of cotangents, one per other
                argument, and with `kwargs_mask` one more: `{keyword: {path: cotangent}}`.
        """
        self._rule = fwd, bwd

    def _rule_as_method(self) -> Any:
        fwd, bwd = self._rule
        return tracking_self(fwd), bwd

    def _with_rule(self, call: Call, selection: Selection) -> Callable[..., Any]:
        fwd, bwd = self._rule
        primal, forward = selection.explicit(self._fun), selection.explicit(fwd)

        def rule_forward(*args: Any) -> Any:
            args = _each(CustomVJPPrimal, lambda primal: primal.value, args)
            (result, residuals), values = forward(*args)
            return (result, values), residuals

        def rule_backward(*args: Any) -> Any:
            # The function is (args, values) -> (result, new values). A rule speaks about the result only: the
            # cotangent of the new values is dropped, and that of all values (the last argument) is zero.
            *nondiff_and_residuals, (cotangent, _) = args
            cotangent = _each(SymbolicZero, _instantiated, cotangent)
            return (*bwd(*nondiff_and_residuals, cotangent), None)

        function = jax.custom_vjp(primal, nondiff_argnums=self._nondiff)
        # Symbolic: JAX makes no zeros for the parameters that pass through, some of which may live on a
        # mesh that the rule has nothing to do with.
        function.defvjp(rule_forward, rule_backward, symbolic_zeros=True)
        return function


def _instantiated(zero: Any) -> Any:
    """The zeros that JAX itself gives to a rule: `float0` is a type of NumPy only."""
    make = np.zeros if zero.dtype == jax.dtypes.float0 else jnp.zeros
    return make(zero.shape, zero.dtype)


def _each(kind: type, change: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with every leaf of a kind changed."""

    def is_leaf(node: Any) -> bool:
        return isinstance(node, kind)

    return jax.tree.map(lambda leaf: change(leaf) if is_leaf(leaf) else leaf, tree, is_leaf=is_leaf)


def custom_vjp(
    fun: Callable[..., Any] | None = None,
    nondiff_argnums: Sequence[int] = (),
    *,
    kwargs_mask: Any = None,
) -> Any:
    """Give a function its own backward pass.

    Args:
        fun: the function. Without it, a decorator is returned.
        nondiff_argnums: as in `jax.custom_vjp`.
        kwargs_mask: parameters the rule returns cotangents for (see `grad`); they count as one more,
            last argument. Parameters it does not name are constants for the rule.

    Returns:
        A function; call its `defvjp(fwd, bwd)` before using it.
    """
    return decorator(CustomVjp, fun, nondiff_argnums=nondiff_argnums, kwargs_mask=kwargs_mask)


class CustomJvp(_CustomDerivative):
    """A function with a forward derivative of its own; see `custom_jvp`."""

    _setter = "defjvp(rule)"

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, and return it.

        Args:
            rule: `rule(*nondiff_args, primals, tangents, **tracked) -> (result, tangent)`; it may write
                parameters, as the function. With `kwargs_mask`, the last of `primals` and of `tangents` are
                the selected parameters, `{keyword: {path: …}}`. Of a method, it takes the module first.
        """
        self._rule = rule
        return rule

    def _rule_as_method(self) -> Any:
        return tracking_self(self._rule)

    def _with_rule(self, call: Call, selection: Selection) -> Callable[..., Any]:
        rule = self._rule

        def derivative(*args: Any) -> Any:
            *nondiff, (*primals, values), (*tangents, _) = args
            merged = selection.merge(primals[-1], values) if selection.is_given else values
            pure = call.pure(rule)
            (result, tangent), new = pure(merged, *nondiff, tuple(primals), tuple(tangents))
            # No derivative goes through what is written.
            return (result, new), (tangent, jax.tree.map(_zero_tangent, new))

        function = jax.custom_jvp(selection.explicit(self._fun), nondiff_argnums=self._nondiff)
        function.defjvp(derivative)
        return function


def _zero_tangent(primal: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(primal), jnp.inexact):
        return jnp.zeros_like(primal)
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)


def custom_jvp(
    fun: Callable[..., Any] | None = None,
    nondiff_argnums: Sequence[int] = (),
    *,
    kwargs_mask: Any = None,
) -> Any:
    """Give a function its own forward derivative; JAX transposes it for reverse mode.

    Args:
        fun: the function. Without it, a decorator is returned.
        nondiff_argnums: as in `jax.custom_jvp`.
        kwargs_mask: parameters whose tangents the rule gets (see `grad`); they count as one more, last
            argument. Parameters it does not name are constants for the rule.

    Returns:
        A function; call its `defjvp(rule)` before using it.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import custom_jvp, grad
        >>> @custom_jvp
        ... def safe_sqrt(x):
        ...     return jnp.sqrt(x)
        >>> @safe_sqrt.defjvp
        ... def rule(primals, tangents):
        ...     root = jnp.sqrt(primals[0])
        ...     return root, tangents[0] / (2 * jnp.maximum(root, 1e-3))
        >>> float(grad(safe_sqrt)(4.0))
        0.25
    """
    return decorator(CustomJvp, fun, nondiff_argnums=nondiff_argnums, kwargs_mask=kwargs_mask)


def _checkpoint(
    call: Call,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    static_argnums: int | Sequence[int],
    **jax_options: Any,
) -> Any:
    nums = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
    # The values of the parameters come before the user's arguments.
    shifted = tuple(num + 1 if num >= 0 else num for num in nums)
    pure = jax.checkpoint(call.pure(fun), static_argnums=shifted, **jax_options)
    result, values = pure(call.values, *args)
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
        Retracing, fun, name="checkpoint", run=_checkpoint, prevent_cse=prevent_cse, policy=policy,
        static_argnums=static_argnums,
    )  # fmt: skip
