"""`sow`: one primitive that is the identity and carries a name.

The primitive works on the array leaves of a pytree; everything else (name, tag, tree structure, mode) sits
in its one parameter. It is linear, so each derivative rule sows what it is given under the composed mode
and hands it on. It lowers to nothing.

While a capture with its tag is being traced, a sow has an *effect*, which does nothing but keep JAX's
dead-code elimination away from it, also inside `jit`, `scan` and `checkpoint`. The capture removes it
again. The set of tags being captured is part of JAX's trace cache key, so programs traced without a
capture are never mistaken for programs traced with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from chainrule._errors import InputError
from chainrule._jaxpr import (
    Effect,
    JaxprEqn,
    Primitive,
    SourceLocation,
    call_sites,
    is_transforming,
    loop_input,
    permit_effect,
)
from chainrule.harvest._mode import PRIMAL, Mode
from chainrule.harvest._slots import NOTHING, Slot, fill, is_array

__all__ = [
    "Part",
    "Reduce",
    "Sowing",
    "capturing",
    "check_options",
    "is_sow",
    "sow",
    "sow_part",
    "sowing_of",
]

Part = Literal["whole", "forward", "backward"]
Reduce = Literal["stack", "last", "sum", "mean", "max"]
_MAX_CALLS = 16
_REDUCTIONS: tuple[Reduce, ...] = get_args(Reduce)

capturing = jax.make_user_context(frozenset())
"""The tags that are being captured around the code that is traced now."""


@dataclass(frozen=True)
class Sowing:
    """What a sow equation says about its operands.

    Attributes:
        name: the user's name.
        tag: the user's group of names.
        tree: structure of the sown pytree.
        slots: per leaf of the tree, what fills it: an operand, or a value kept here.
        mode: the value itself, or which derivative.
        reduce: how loops combine iterations; `None` leaves it to the capture.
        buffer: how many of the last iterations a `while` loop keeps; `None` leaves it to the capture.
        shared: sizes of the `vmap` axes that the value does not depend on, outermost first.
        is_anchored: whether one more operand follows that ties the equation to its loop: JAX moves
            equations that only use constants of a `scan` out of it when it differentiates.
        part: which modes it stands for. A value inside a component that is called on the host is sown
            twice, where it comes out (it and its tangents) and where its cotangents come out.
        call_sites: the user's line and the calls that led there, for messages; two sowings may be equal
            without them.
    """

    name: str
    tag: str
    tree: Any
    slots: tuple[Slot, ...]
    mode: Mode = PRIMAL
    reduce: Reduce | None = None
    buffer: int | None = None
    shared: tuple[int, ...] = ()
    is_anchored: bool = False
    part: Part = "whole"
    call_sites: tuple[SourceLocation, ...] = field(default=(), compare=False)

    @property
    def where(self) -> SourceLocation | str:
        """The user's line."""
        return self.call_sites[0] if self.call_sites else "an unknown line"

    @property
    def is_reported(self) -> bool:
        """Whether a capture hands this mode out."""
        return self.part == "whole" or (self.part == "backward") == self.mode.is_pulled_back

    def value(self, operands: Sequence[Any]) -> Any:
        """The pytree, as it was sown."""
        return jax.tree.unflatten(self.tree, fill(self.slots, operands))

    def repeat(self, operands: Sequence[Any]) -> list[Any]:
        """The operands with the axes of the `vmap`s that they do not depend on."""
        if not self.shared:
            return list(operands)
        return [jnp.broadcast_to(each, (*self.shared, *jnp.shape(each))) for each in operands]

    def derivative(self, mode: Mode, differentiable: Sequence[bool]) -> Sowing:
        """The same place in another mode; leaves without derivatives become `None`."""
        carried = iter(differentiable)
        slots = tuple(
            slot if not slot.is_operand or next(carried) else NOTHING for slot in self.slots
        )
        return replace(self, mode=mode, slots=slots, is_anchored=False)


def sow(
    value: Any,
    name: str,
    *,
    tag: str = "intermediates",
    reduce: Reduce | None = None,
    buffer: int | None = None,
) -> Any:
    """Name a value, so that `save_intermediates` can find it; otherwise do nothing.

    Args:
        value: any pytree. Leaves that are not arrays or numbers are remembered and handed back.
        name: what to call it. Names are unique within one captured function and tag.
        tag: a group of names; a capture looks for one tag.
        reduce: how loops combine the iterations: `"stack"` keeps all of them (in `scan`, `map` and
            `fori_loop` with static bounds), the others keep one value. The capture's choice when `None`.
        buffer: keep this many of the last iterations of a `while_loop`, oldest first.

    Returns:
        The value. The compiled program is the same as without the call.

    Raises:
        InputError: the name is not a string, or `reduce` or `buffer` is not one of the above.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.harvest import save_intermediates, sow
        >>> def f(x):
        ...     h = sow(jnp.sin(x), "h")
        ...     return 2 * h
        >>> y, intermediates = save_intermediates(f)(0.0)
        >>> float(intermediates["h"]["primal"])
        0.0
    """
    check_options(name, reduce, buffer)
    return _sow(value, name, tag, reduce=reduce, buffer=buffer)


def sow_part(value: Any, name: str, tag: str, part: Part) -> Any:
    """Sow what stands for only some modes of a value, see `Sowing.part`."""
    return _sow(value, name, tag, part=part)


def _sow(value: Any, name: str, tag: str, **options: Any) -> Any:
    if not is_transforming():
        return value
    leaves, tree = jax.tree.flatten(value)
    slots = tuple(Slot.of(leaf) for leaf in leaves)
    operands = [leaf for leaf in leaves if is_array(leaf)]
    anchor = loop_input() if tag in capturing.value else None
    sowing = Sowing(name, tag, tree, slots, is_anchored=anchor is not None, **options)
    return sowing.value(_bind(operands if anchor is None else [*operands, anchor], sowing))


def check_options(name: Any, reduce: Any, buffer: Any) -> None:
    """Raise `InputError` for options that mean nothing."""
    if not isinstance(name, str):
        raise InputError(
            f"Expected a string as name of a sown value, found {type(name).__name__}.",
            code="sow_name",
        )
    if reduce is not None and reduce not in _REDUCTIONS:
        raise InputError(
            f"Expected reduce to be one of {', '.join(map(repr, _REDUCTIONS))}, found {reduce!r}.",
            code="sow_reduce",
        )
    if buffer is not None and (not isinstance(buffer, int) or buffer < 1):
        raise InputError(
            f"Expected buffer to be a positive number of iterations, found {buffer!r}.",
            code="sow_buffer",
        )


def is_sow(eqn: JaxprEqn, tag: str) -> bool:
    """Whether an equation is a sow with a tag."""
    return eqn.primitive is _sow_p and eqn.params["sowing"].tag == tag


def sowing_of(eqn: JaxprEqn) -> Sowing:
    """What a sow equation says, with the user's line."""
    return replace(eqn.params["sowing"], call_sites=call_sites(eqn, _MAX_CALLS))


# --- the primitive and its rules -----------------------------------------------------------------


class _Captured(Effect):
    """Keeps a sow alive while it is being captured. Has no meaning at run time."""

    def __repr__(self) -> str:
        return "Captured"


permit_effect(_Captured)
_CAPTURED = _Captured()
_sow_p = Primitive("sow")
_sow_p.multiple_results = True


def _bind(operands: Sequence[Any], sowing: Sowing) -> list[Any]:
    return _sow_p.bind(*operands, sowing=sowing)


def _is_captured(sowing: Sowing) -> bool:
    return sowing.tag in capturing.value


def _sown(operands: Sequence[Any], sowing: Sowing) -> list[Any]:
    return list(operands[:-1] if sowing.is_anchored else operands)


@_sow_p.def_impl
def _run(*operands: Any, sowing: Sowing) -> list[Any]:
    return _sown(operands, sowing)


@_sow_p.def_effectful_abstract_eval
def _abstract(*avals: Any, sowing: Sowing) -> tuple[list[Any], set[Effect]]:
    return _sown(avals, sowing), {_CAPTURED} if _is_captured(sowing) else set()


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _jvp(primals: Any, tangents: Any, *, sowing: Sowing) -> tuple[list[Any], list[Any]]:
    values = _bind(primals, replace(sowing, mode=sowing.mode.deeper()))
    tangents = _sown(tangents, sowing)
    if all(map(_is_zero, tangents)):
        return values, tangents
    # Integers have tangents of type float0: nothing to sow. Symbolic zeros are sown as zeros, and
    # handed on as symbolic zeros.
    differentiable = [_dtype(tangent) != jax.dtypes.float0 for tangent in tangents]
    carried = [
        t for t, has_derivative in zip(tangents, differentiable, strict=True) if has_derivative
    ]
    derivative = sowing.derivative(sowing.mode.tangent(), differentiable)
    sown = iter(_bind(list(map(ad.instantiate_zeros, carried)), derivative))
    results = [next(sown) if has_derivative else None for has_derivative in differentiable]
    return values, [t if _is_zero(t) else r for t, r in zip(tangents, results, strict=True)]


def _transpose(cotangents: Any, *operands: Any, sowing: Sowing) -> list[Any]:
    if all(map(_is_zero, cotangents)) and not _is_captured(sowing):
        sown = cotangents
    else:
        # The cotangent of a value shared by a batch is a sum over the batch: it has no such axis.
        mode = replace(sowing, mode=sowing.mode.cotangent(), shared=(), is_anchored=False)
        sown = _bind(list(map(ad.instantiate_zeros, cotangents)), mode)
    handed_on = [c if _is_zero(c) else s for c, s in zip(cotangents, sown, strict=True)]
    handed_on += [None] * (len(operands) - len(handed_on))
    return [
        value if ad.is_undefined_primal(operand) else None
        for value, operand in zip(handed_on, operands, strict=True)
    ]


def _batch(
    axis: Any, operands: Sequence[Any], dims: Sequence[int | None], *, sowing: Sowing
) -> tuple[list[Any], list[int | None]]:
    leaf_dims = _sown(dims, sowing)
    if not _is_captured(sowing):
        return _bind(operands, sowing), leaf_dims
    if all(dim is None for dim in leaf_dims):
        shared = replace(sowing, shared=(axis.size, *sowing.shared))
        return _bind(operands, shared), leaf_dims
    in_front = [
        jnp.broadcast_to(value, (axis.size, *jnp.shape(value)))
        if dim is None
        else jnp.moveaxis(value, dim, 0)
        for value, dim in zip(operands, leaf_dims, strict=False)
    ]
    anchor = operands[len(leaf_dims) :]
    return _bind([*in_front, *anchor], sowing), [0] * len(in_front)


def _dtype(tangent: Any) -> Any:
    return (tangent.aval if _is_zero(tangent) else tangent).dtype


ad.primitive_jvps[_sow_p] = _jvp
ad.primitive_transposes[_sow_p] = _transpose
batching.fancy_primitive_batchers[_sow_p] = _batch
mlir.register_lowering(_sow_p, lambda context, *operands, sowing: list(operands))
