"""`save_intermediates` and `intermediate_stats`: what flowed through a function, beside its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import Extra, Fold, SourceLocation
from chainrule.harvest._capture import (
    Duplicates,
    Rewrite,
    Tap,
    check_duplicates,
    collect,
    compile_capture,
    run_with_taps,
    stage_capture,
    tap_values,
)
from chainrule.harvest._sow import Mode, Reduce, Sowing, check_options


def save_intermediates(
    fn: Callable[..., Any],
    *,
    tag: str = "intermediates",
    duplicates: Duplicates = "error",
    reduce: Reduce | None = None,
    buffer: int | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    mode: str | None = None,
) -> Callable[..., tuple[Any, dict[str, dict[str, Any]]]]:
    """Get every sown value of a function, with its derivatives when the function takes some.

    The new function returns `(fn(*args, **kwargs), intermediates)`, where `intermediates[name]` maps a
    mode to a pytree like the sown one: `primal`; `tangent` when `fn` pushes forward (`jvp`, `jacfwd`);
    `cotangent` when it pulls back (`grad`, `vjp`, `jacrev`); `tangent_of_cotangent` and so on when it does
    both. Of two nested derivatives of one kind the outer one is called `outer_…`. Leaves that have no
    derivative (integers) are `None` there. A value that was pulled back through more than once has the
    list of its cotangents.

    | around the sow | what comes back |
    | --- | --- |
    | `scan`, `map`, `fori_loop` | values stacked over the iterations, or reduced |
    | `while_loop` | the last value, or the last `buffer` ones; `count` says how many there were |
    | `cond`, `switch` | the value, zeros when its branch did not run, and `taken` |
    | `vmap` | batch axis first, also of values that do not depend on it |
    | `shard_map` | one leading axis per mesh axis |

    Args:
        fn: any function that JAX can trace; `jax.grad(f)` for cotangents.
        tag: only sows with this tag are captured.
        duplicates: what a name that is sown twice means: an error (`"error"`), a list in execution
            order (`"append"`, for every name), or the last one (`"last"`).
        reduce: how loops combine iterations, for sows that do not say so themselves.
        buffer: how many of the last iterations a `while_loop` keeps, likewise.
        static_argnums: as in `jax.jit`. Strings, functions and other arguments that are not arrays need
            not be named.
        static_argnames: as in `jax.jit`.
        mode: the former name of `duplicates`; deprecated. Its `"strict"` is `"error"`.

    Returns:
        A function like `fn`, compiled once per signature; capturing the same `fn` again in the same way
        finds what was compiled. It is an ordinary JAX function: jit, differentiate, vmap or capture it.

    Raises:
        DuplicateNameError: (a `ValueError`, when called) a name was sown twice.
        CapabilityError: (when called) a sow sits inside a primitive whose use of it is not known.

    Example:
        >>> import jax
        >>> from chainrule.harvest import save_intermediates, sow
        >>> def f(x):
        ...     return sow(x**2, "square") * 3
        >>> slope, intermediates = save_intermediates(jax.grad(f))(2.0)
        >>> {mode: float(value) for mode, value in intermediates["square"].items()}
        {'cotangent': 3.0, 'primal': 4.0}
    """
    check_options("", reduce, buffer)
    chosen = check_duplicates(duplicates, mode, stacklevel=2)
    return compile_capture(
        fn,
        _rewrite(tag, tap_values(reduce, buffer), lambda taps: collect(taps, chosen)),
        ("values", tag, chosen, reduce, buffer),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )


def _rewrite(tag: str, tap: Tap, collected: Callable[[Sequence[Extra]], dict[str, Any]]) -> Rewrite:
    """Runs a function so that its result comes with what was collected from the sows of a tag."""

    def rewrite(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        traced = stage_capture(function, args, kwargs, tag)
        outputs, taps = run_with_taps(traced, tag, tap)
        return traced.rebuild(outputs), collected(taps)

    return rewrite


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stats:
    """A summary of one array, or of all its values over the iterations of the loops around it.

    Attributes:
        norm: Euclidean norm.
        min: smallest value (of the modulus, for complex numbers).
        max: largest value, likewise.
        nonfinite: how many entries are NaN or infinite.
        shape: shape of one value.
        dtype: its dtype.
    """

    norm: Any
    min: Any
    max: Any
    nonfinite: Any
    shape: tuple[int, ...] = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})


def intermediate_stats(
    fn: Callable[..., Any],
    *,
    tag: str = "intermediates",
    duplicates: Duplicates = "error",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    mode: str | None = None,
) -> Callable[..., tuple[Any, dict[str, dict[str, Any]]]]:
    """Summaries of every sown value: shape, norm, smallest and largest entry, number of NaN/inf.

    Like `save_intermediates`, but with a `Stats` in the place of each array; the arrays themselves are not
    kept, and loops fold into one summary, so the cost in memory is a few numbers per name.

    Args:
        fn: any function that JAX can trace; `jax.grad(f)` for summaries of cotangents.
        tag: only sows with this tag are looked at.
        duplicates: what a name that is sown twice means, as in `save_intermediates`.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        mode: the former name of `duplicates`; deprecated.

    Returns:
        A function that gives `(fn(*args, **kwargs), stats)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.harvest import intermediate_stats, sow
        >>> _, stats = intermediate_stats(lambda x: sow(x, "x"))(jnp.array([3.0, 4.0]))
        >>> float(stats["x"]["primal"].norm)
        5.0
    """
    chosen = check_duplicates(duplicates, mode, stacklevel=2)
    return compile_capture(
        fn,
        _rewrite(tag, _tap, lambda taps: collect(taps, chosen, _value)),
        ("statistics", tag, chosen),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )


@dataclass(frozen=True)
class _Measured:
    """The label of a tap: a sowing whose operands were replaced by four measurements of each.

    Attributes:
        sowing: the sowing.
        forms: per operand its shape and dtype, or `None` for one that has no numbers (random keys).
    """

    sowing: Sowing
    forms: tuple[tuple[tuple[int, ...], Any] | None, ...]

    @property
    def name(self) -> str:
        return self.sowing.name

    @property
    def call_sites(self) -> tuple[SourceLocation, ...]:
        return self.sowing.call_sites

    @property
    def mode(self) -> Mode:
        return self.sowing.mode


def _tap(sowing: Sowing, values: list[Any]) -> Extra:
    arrays = [jnp.asarray(value) for value in sowing.repeat(values)]
    has_numbers = [not jnp.issubdtype(array.dtype, jax.dtypes.extended) for array in arrays]
    pairs = list(zip(arrays, has_numbers, strict=True))
    forms = tuple((array.shape, array.dtype) if usable else None for array, usable in pairs)
    leaves = [number for array, usable in pairs if usable for number in _measure(array)]
    return Extra(tuple(leaves), _Measured(sowing, forms), fold=_COMBINE)


def _measure(array: Any) -> tuple[Any, Any, Any, Any]:
    """Sum of squares, smallest, largest, number of NaN/inf."""
    # Short floats are widened before they are squared: the largest number of float16 is 65504, and a norm of
    # 256 would already be infinite.
    magnitude = jnp.abs(array) if jnp.iscomplexobj(array) else array
    is_wide = magnitude.dtype in (jnp.float32, jnp.float64)
    real = magnitude if is_wide else magnitude.astype(float)
    return (
        jnp.sum(jnp.square(real)),
        jnp.min(real, initial=jnp.inf),
        jnp.max(real, initial=-jnp.inf),
        jnp.sum(~jnp.isfinite(real)),
    )


def _combine(state: Sequence[Any], leaves: Sequence[Any], count: Any) -> list[Any]:
    # Sums of squares and counts are added, so that the norm is that of all iterations as one vector. The
    # state before the first iteration is zeros, which are neutral for sums only: that iteration replaces it.
    combined = []
    for position, (old, new) in enumerate(zip(state, leaves, strict=True)):
        both = (jnp.add, jnp.minimum, jnp.maximum, jnp.add)[position % 4](old, new)
        combined.append(jnp.where(count == 0, new, both))
    return combined


_COMBINE = Fold(
    "statistics",
    lambda avals: [jnp.zeros(aval.shape, aval.dtype) for aval in avals],
    _combine,
    lambda state, count: list(state),
)


def _value(tap: Extra) -> Any:
    """The sown pytree with a `Stats` in the place of each array."""
    numbers = iter(tap.leaves)

    def stats(form: tuple[tuple[int, ...], Any] | None) -> Stats | None:
        if form is None:
            return None
        squares, smallest, largest, nonfinite = itertools.islice(numbers, 4)
        return Stats(jnp.sqrt(squares), smallest, largest, nonfinite, *form)

    return tap.label.sowing.value([stats(form) for form in tap.label.forms])
