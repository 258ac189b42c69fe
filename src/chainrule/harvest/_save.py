"""`save_intermediates`: what flowed through a function, beside its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chainrule.harvest._capture import run_with_taps, stage_capture, tap_values
from chainrule.harvest._collect import Duplicates, check_duplicates, collect
from chainrule.harvest._sow import Reduce, check_options
from chainrule.harvest._staged import compile_capture


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
        static_argnums: as in `jax.jit`. Strings, functions and other arguments that are no arrays need
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
    tap = tap_values(reduce, buffer)

    def rewrite(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        traced = stage_capture(function, args, kwargs, tag)
        outputs, taps = run_with_taps(traced, tag, tap)
        return traced.rebuild(outputs), collect(taps, chosen)

    return compile_capture(
        fn,
        rewrite,
        ("values", tag, chosen, reduce, buffer),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
