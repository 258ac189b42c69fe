"""Running a function with other values in the place of sown ones: `plant` and `grad_wrt`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import InputError, PathError
from chainrule._jaxpr import (
    ClosedJaxpr,
    Extra,
    JaxprEqn,
    Rewriter,
    aval_of,
    bind_equation,
    walk,
)
from chainrule._partition import is_array_or_number
from chainrule.harvest._capture import (
    StagedFunction,
    collect,
    compile_rewrite,
    run_with_taps,
    sowings,
    stage,
)
from chainrule.harvest._sow import Sowing, SowWatch, is_sow, sowing_of


def plant(
    fn: Callable[..., Any],
    values: Mapping[str, Any],
    *,
    tag: str = "intermediates",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Any]:
    """Run a function with given values in the place of sown ones.

    Everything after the sow uses the planted value; what led to it is still computed but no longer
    matters, so a derivative taken around the new function does not flow past it. With
    `values = intermediates-of-another-run` this is activation patching.

    Args:
        fn: a function with sows in it.
        values: per name a pytree like the sown one; a leaf `None` leaves the sown one in place. What
            `save_intermediates` found fits: inside loops and under `vmap` it has their axes in front.
            Without the axes of the loops, a value is used in every iteration; without those of `vmap` as
            well, for every example. A name that is sown several times is replaced everywhere.
        tag: the sows to look for.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.

    Returns:
        A function like `fn`, compiled once per signature.

    Raises:
        PathError: (when called) a name is not sown in `fn`.
        InputError: (when called) a value does not fit the structure, shape or dtype of the sown one.

    Example:
        >>> from chainrule.harvest import plant, sow
        >>> def f(x):
        ...     return sow(x + 1, "h") * 10
        >>> int(plant(f, {"h": 5})(0))
        50
    """
    planted = dict(values)

    def rewrite(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traced = stage(function, args, kwargs, SowWatch(placed=frozenset({tag})))
        _check_known(planted, traced.program, tag)
        spread = _differ_by_example(traced.program, tag, planted)
        if spread:
            watch = SowWatch(placed=frozenset({tag}), spread=spread)
            traced = stage(function, args, kwargs, watch)
        return traced.rebuild(_substitute(traced, tag, planted, _replace))

    return compile_rewrite(
        fn, rewrite, static_argnums=static_argnums, static_argnames=static_argnames
    )


def grad_wrt(
    fn: Callable[..., Any],
    names: str | Iterable[str],
    *,
    tag: str = "intermediates",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., dict[str, Any]]:
    """The gradient of a scalar function with respect to sown values instead of arguments.

    The gradient of `fn` by `h` is that by a perturbation added to `h`, at zero:
    ∂/∂δ fn(…, h + δ, …) at δ = 0. None of the arguments needs to be differentiable. Inside loops and under
    `vmap`, δ has their axes in front, as the value that `save_intermediates` finds. A value that all examples
    of a `vmap` share has one gradient, which is the sum over the examples.

    Args:
        fn: a function with a scalar result and sows in it.
        names: one or more sown names.
        tag: the sows to look for.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.

    Returns:
        A function of the arguments of `fn` that gives `{name: gradient}`, each like the cotangent that
        `save_intermediates(jax.grad(fn))` finds. Leaves without derivative (integers) are `None`.

    Raises:
        PathError: (when called) a name is not sown in `fn`.
        DuplicateNameError: (when called) a name is sown several times.

    Example:
        >>> from chainrule.harvest import grad_wrt, sow
        >>> def loss(x):
        ...     return sow(2.0 * x, "h") ** 2
        >>> float(grad_wrt(loss, "h")(3.0)["h"])
        12.0
    """
    wanted = (names,) if isinstance(names, str) else tuple(names)

    def rewrite(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        traced = stage(function, args, kwargs, SowWatch(placed=frozenset({tag})))
        _check_known(wanted, traced.program, tag)
        shapes = _sown_shapes(traced, tag, wanted)
        # The gradient by δ at δ = 0 is the cotangent of the sown value in JAX's convention: for complex
        # values ∂L/∂a - i ∂L/∂b, not conjugated.
        zeros = {name: jax.tree.map(_zero_like, shapes[name]) for name in wanted}

        def perturbed(perturbations: dict[str, Any]) -> Any:
            return traced.rebuild(_substitute(traced, tag, perturbations, _add))

        return jax.grad(perturbed)(zeros)

    return compile_rewrite(
        fn, rewrite, static_argnums=static_argnums, static_argnames=static_argnames
    )


def _sown_shapes(traced: StagedFunction, tag: str, names: tuple[str, ...]) -> dict[str, Any]:
    def found(operands: list[Any]) -> dict[str, Any]:
        _, taps = run_with_taps(
            replace(traced, operands=operands),
            tag,
            lambda sowing, values: Extra(tuple(values), sowing),
        )
        entries = collect([tap for tap in taps if tap.label.name in names], "error")
        return {name: _arrays_only(entry["primal"]) for name, entry in entries.items()}

    return jax.eval_shape(found, traced.operands)


def _arrays_only(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if is_array_or_number(leaf) else None, tree)


def _zero_like(aval: Any) -> Any:
    return jnp.zeros(aval.shape, aval.dtype) if jnp.issubdtype(aval.dtype, jnp.inexact) else None


Change = Callable[[Sowing, Any, Any], Any]
"""The sow, its leaf and the given one, to the leaf that is used."""


def _replace(sowing: Sowing, sown: Any, given: Any) -> Any:
    expected, found = aval_of(sown).dtype, jnp.result_type(given)
    if _rank(found) > _rank(expected):
        raise InputError(
            f"Expected a value of dtype {expected} for {sowing.name!r}, sown at {sowing.where}; found "
            f"{found}, which would lose what makes it one. Cast the value, or what is sown.",
            code="planted_dtype",
            details={"name": sowing.name},
        )
    return jnp.asarray(given, expected)


def _rank(dtype: Any) -> int:
    """Truth values, integers, real, complex numbers: each can stand for the ones before it."""
    # ℤ₂ ⊂ ℤ ⊂ ℝ ⊂ ℂ: a value may be planted where a larger set is expected, never the other way round.
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((rank for rank, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 0)


def _add(sowing: Sowing, sown: Any, given: Any) -> Any:
    return sown if given is None else sown + given


def _substitute(
    traced: StagedFunction, tag: str, values: Mapping[str, Any], change: Change
) -> list[Any]:
    """The outputs of a program with sown values changed."""

    def claim(eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]) -> Any:
        sowing = sowing_of(eqn)
        sown = operands[: len(eqn.outvars)]
        given = _leaves_for(sowing, values[sowing.name])
        changed = [
            old if new is None else change(sowing, old, _place(sowing, old, new, loops))
            for old, new in zip(sown, given, strict=True)
        ]
        # A capture around this function finds the value that is used.
        return bind_equation(eqn, [*changed, *operands[len(sown) :]]), []

    is_claimed = functools.partial(_is_named, tag=tag, names=values)
    rewriter = Rewriter(claim, is_claimed=is_claimed, substitutes=True)
    return rewriter.run(traced.program, traced.operands)[0]


def _is_named(eqn: JaxprEqn, tag: str, names: Collection[str]) -> bool:
    """Whether an equation sows a value (not a derivative of it) under one of the names."""
    if not is_sow(eqn, tag):
        return False
    sowing = eqn.params["sowing"]
    return sowing.name in names and sowing.mode.is_primal


def _differ_by_example(
    program: ClosedJaxpr, tag: str, values: Mapping[str, Any]
) -> frozenset[tuple[str, str]]:
    """The names whose sown value is the same for all examples of a `vmap`, and whose given one is not."""
    found = set()
    for eqn in walk(program):
        if _is_named(eqn, tag, values):
            sowing = sowing_of(eqn)
            given = _leaves_for(sowing, values[sowing.name])
            results: Sequence[Any] = eqn.outvars
            own = [var.aval.ndim - sowing.n_axes for var in results]
            has_more = any(jnp.ndim(new) > n for new, n in zip(given, own, strict=True))
            if has_more and any(size is not None for size in sowing.axes):
                found.add((tag, sowing.name))
    return frozenset(found)


def _leaves_for(sowing: Sowing, value: Any) -> list[Any]:
    """The leaves of a given value that stand for the operands of a sow."""
    try:
        leaves = sowing.template.structure.flatten_up_to(value)
    except ValueError as error:
        raise InputError(
            f"Expected a value with the structure {sowing.template.structure} for {sowing.name!r}, sown at "
            f"{sowing.where}; found {jax.tree.structure(value)}.",
            code="planted_structure",
            details={"name": sowing.name},
        ) from error
    return sowing.template.arrays_of(leaves)


def _place(sowing: Sowing, old: Any, new: Any, loops: tuple[Any, ...]) -> Any:
    """The part of a given leaf that belongs to this iteration of the loops around the sow."""
    given, sown = jnp.shape(new), jnp.shape(old)
    one = sown[sowing.n_axes :]
    if given == sown:
        return new
    if given == one:
        return jnp.broadcast_to(new, sown)
    if len(given) == len(loops) + len(sown) and given[len(loops) :] == sown:
        return jnp.asarray(new)[loops]
    axes = f"{len(loops)} loop axes and the batch axes {sown[: sowing.n_axes]}"
    raise InputError(
        f"Expected a value of shape {one} for {sowing.name!r}, sown at {sowing.where}, or of that shape "
        f"with {axes} in front; found {given}.",
        code="planted_shape",
        details={"name": sowing.name},
    )


def _check_known(names: Iterable[str], program: ClosedJaxpr, tag: str) -> None:
    known = {sowing.name for sowing in sowings(program, tag)}
    missing = [name for name in names if name not in known]
    if missing:
        raise PathError(
            f"No value named {', '.join(map(repr, missing))} is sown with the tag {tag!r}; "
            f"found: {', '.join(map(repr, sorted(known))) or 'none'}.",
            code="name_unknown",
            details={"missing": missing},
        )
