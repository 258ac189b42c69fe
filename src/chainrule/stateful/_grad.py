"""Derivatives by argument: `grad`, `value_and_grad`, `jacfwd`, `jacrev`, `hessian`.

They differ in the JAX transformation behind them and in one fact: whether the value comes back too. What is
selected by `kwargs_mask` counts as one more, last argument (see `_selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._selection import Selection
from chainrule.stateful._transformation import Transformation, decorator

__all__ = [
    "Grad", "Hessian", "Jacfwd", "Jacrev", "ValueAndGrad",
    "grad", "hessian", "jacfwd", "jacrev", "value_and_grad",
]  # fmt: skip


class _Derivative(Transformation):
    """A derivative function.

    Attributes:
        transform: the JAX transformation; it understands `argnums` and `has_aux`.
        returns_value: whether its result is `((value, aux), derivative)` or `(derivative, aux)`.
    """

    transform: ClassVar[Callable[..., Any]]
    returns_value: ClassVar[bool] = False

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        argnums: int | Sequence[int] | None = None,
        has_aux: bool = False,
        kwargs_mask: Any = None,
        **jax_options: Any,
    ) -> None:
        super().__init__(
            fun, argnums=argnums, has_aux=has_aux, kwargs_mask=kwargs_mask, **jax_options
        )
        self._argnums = argnums
        self._has_aux = has_aux
        self._mask = kwargs_mask
        self._jax_options = jax_options

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(kwargs)
        selection = Selection(call, self._mask)
        transformed = type(self).transform(
            selection.with_aux(self._fun, self._has_aux),
            argnums=self._argnums_for(args),
            has_aux=True,
            **self._jax_options,
        )
        if self.returns_value:
            (value, (aux, values)), derivative = transformed(*selection.arguments(args))
            result = ((value, aux) if self._has_aux else value), derivative
        else:
            derivative, (aux, values) = transformed(*selection.arguments(args))
            result = (derivative, aux) if self._has_aux else derivative
        return call.finish(result, values)

    def _argnums_for(self, args: tuple[Any, ...]) -> int | tuple[int, ...]:
        """Without a mask as in JAX (by default the first); with one, the parameters come last."""
        argnums = self._argnums
        if self._mask is None:
            return 0 if argnums is None else argnums if isinstance(argnums, int) else tuple(argnums)
        if argnums is None or argnums == ():
            return len(args)
        chosen = (argnums,) if isinstance(argnums, int) else argnums
        return (*(num % len(args) for num in chosen), len(args))


class Grad(_Derivative):
    """A gradient function; see `grad`."""

    transform = staticmethod(jax.grad)


class ValueAndGrad(_Derivative):
    """A function that returns its value and gradient; see `value_and_grad`."""

    transform = staticmethod(jax.value_and_grad)
    returns_value = True


class Jacfwd(_Derivative):
    """A Jacobian function, column by column; see `jacfwd`."""

    transform = staticmethod(jax.jacfwd)


class Jacrev(_Derivative):
    """A Jacobian function, row by row; see `jacrev`."""

    transform = staticmethod(jax.jacrev)


class Hessian(_Derivative):
    """A Hessian function; see `hessian`."""

    transform = staticmethod(jax.hessian)


def _make(cls: type[_Derivative], summary: str, example: str = "") -> Any:
    def derivative(
        fun: Callable[..., Any] | None = None,
        argnums: int | Sequence[int] | None = None,
        has_aux: bool = False,
        *,
        kwargs_mask: Any = None,
        **jax_options: Any,
    ) -> Any:
        return decorator(
            cls, fun, argnums=argnums, has_aux=has_aux, kwargs_mask=kwargs_mask, **jax_options
        )

    name = {"ValueAndGrad": "value_and_grad"}.get(cls.__name__, cls.__name__.lower())
    derivative.__name__ = derivative.__qualname__ = name
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


grad = _make(Grad, "The gradient of a scalar function.")
value_and_grad = _make(
    ValueAndGrad,
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
jacfwd = _make(Jacfwd, "The Jacobian, by forward mode.")
jacrev = _make(Jacrev, "The Jacobian, by reverse mode.")
hessian = _make(Hessian, "The Hessian, by forward over reverse mode.")
