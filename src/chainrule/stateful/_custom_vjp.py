"""`custom_vjp`: a function that brings its own backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from chainrule._errors import DefinitionError
from chainrule.stateful._call import Call
from chainrule.stateful._selection import Selection
from chainrule.stateful._transformation import Transformation, decorator

__all__ = ["CustomVjp", "custom_vjp"]


class CustomVjp(Transformation):
    """A function with a derivative rule; see `custom_vjp`."""

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
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rule.

        Args:
            fwd: `fwd(*args, **tracked) -> (result, residuals)`; it may write parameters, as the function.
            bwd: `bwd(*nondiff_args, residuals, cotangent)` → a tuple of cotangents, one per other
                argument, and with `kwargs_mask` one more: `{keyword: {path: cotangent}}`.
        """
        self._rules = fwd, bwd

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._rules is None:
            raise DefinitionError(
                f"{self!r} has no rule yet; call `.defvjp(fwd, bwd)` before using it.",
                code="missing_rule",
            )
        fwd, bwd = self._rules
        call = Call(kwargs)
        selection = Selection(call, self._mask)

        def explicit(function: Callable[..., Any]) -> Callable[..., Any]:
            """The pure function of `(*args, selected if any, all values)`.

            JAX gives a rule no access to values that are differentiated around it: none may be closed over.
            """
            pure = call.pure(function)

            def run(*args: Any) -> Any:
                *rest, values = args
                if selection.is_given:
                    *rest, tree = rest
                    values = selection.merge(tree, values)
                return pure(values, *rest)

            return run

        primal, forward = explicit(self._fun), explicit(fwd)

        def rule_forward(*args: Any) -> Any:
            args = _each(CustomVJPPrimal, lambda primal: primal.value, args)
            (result, residuals), values = forward(*args)
            return (result, values), residuals

        def rule_backward(*args: Any) -> Any:
            # The cotangents of written parameters are dropped: a rule speaks about the result only.
            *nondiff_and_residuals, (cotangent, _) = args
            cotangent = _each(SymbolicZero, _instantiated, cotangent)
            return (*bwd(*nondiff_and_residuals, cotangent), None)

        function = jax.custom_vjp(primal, nondiff_argnums=self._nondiff)
        # Symbolic: JAX makes no zeros for the parameters that pass through, some of which may live on a
        # mesh that the rule has nothing to do with.
        function.defvjp(rule_forward, rule_backward, symbolic_zeros=True)
        result, values = function(*selection.arguments(args), call.values)
        return call.finish(result, values)


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
