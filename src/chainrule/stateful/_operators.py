"""Arithmetic on boxes: every operator works on what the box holds, in-place operators write into it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul",
    "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert")


def unwrap(x: Any) -> Any:
    """The value of a `Param`; anything else as it is."""
    return x.get() if isinstance(x, Operators) else x


class Operators:
    """Mix-in that forwards operators to `self.get()`; in-place forms end in `self.set(...)`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise, as for arrays

    def get(self) -> Any:
        """The value."""
        raise NotImplementedError

    def set(self, value: Any) -> Any:
        """Replace the value."""
        raise NotImplementedError

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.get(), unwrap(other))

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(unwrap(other), self.get())

    def __getitem__(self, index: Any) -> Any:
        return self.get()[unwrap(index)]

    def __len__(self) -> int:
        return len(self.get())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __contains__(self, item: Any) -> bool:
        return unwrap(item) in self.get()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return operator.index(self.get())

    def __round__(self, digits: int = 0) -> Any:
        return jnp.round(self.get(), digits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.get(), dtype=dtype)

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.get())

    def __bool__(self) -> bool:
        raise TypeError(
            f"The truth of a {type(self).__name__} is ambiguous: did you mean its value, "
            "`bool(param.get())`, or whether it is set, `param.get() is not None`?"
        )


def _forward(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return function(self.get(), unwrap(other))

    return method


def _reflected(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return function(unwrap(other), self.get())

    return method


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return self.set(function(self.get(), unwrap(other)))

    return method


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators) -> Any:
        return function(self.get())

    return method


def _install() -> None:
    makers = (("", _BINARY + _COMPARISONS, _forward), ("r", _BINARY, _reflected),
              ("i", _BINARY, _in_place), ("", _UNARY, _unary))  # fmt: skip
    for prefix, names, make in makers:
        for name in names:
            dunder = f"__{prefix}{name}__"
            method = make(name)
            method.__name__ = dunder
            setattr(Operators, dunder, method)


_install()
