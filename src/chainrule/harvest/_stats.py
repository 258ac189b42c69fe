"""`intermediate_stats`: what the sown values look like, without keeping them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import Extra, Fold, SourceLocation
from chainrule.harvest._capture import run_with_taps, stage_capture
from chainrule.harvest._collect import Duplicates, check_duplicates, collect
from chainrule.harvest._mode import Mode
from chainrule.harvest._sow import Sowing
from chainrule.harvest._staged import compile_capture


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

    def rewrite(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        traced = stage_capture(function, args, kwargs, tag)
        outputs, taps = run_with_taps(traced, tag, _tap)
        return traced.rebuild(outputs), collect(taps, chosen, _value)

    return compile_capture(
        fn,
        rewrite,
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
