"""`sow`: one primitive that is the identity and carries a name.

The primitive works on the array leaves of a pytree; everything else (name, tag, tree structure, mode) sits
in its one parameter. It is linear, so each derivative rule sows what it is given under the composed mode
and hands it on. It lowers to nothing.

What a capture wants of the sows of its tag stands in a *watch*, a value that is set while the capture traces
and that is part of JAX's trace cache key: a program traced without a capture is never mistaken for one
traced with it. Without a watch, a sow changes nothing around it. With one, three things differ:

    kept      the sow has an *effect*. It does nothing but keep JAX's dead-code elimination away from the sow,
              also inside `jit`, `scan` and `checkpoint`; the capture removes it again.
    placed    `vmap` moves its axis to the front of the sown value.
    thawed    a leaf with a symbolic zero as tangent gets a tangent of real zeros (see `_jvp`).

Convention: cotangents are JAX's. A cotangent c and a tangent t of one value are paired as Re Σ c·t, without
conjugation. For a real result L and a value a + ib the cotangent is therefore ∂L/∂a − i ∂L/∂b.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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
    aval_of,
    call_sites,
    capture_context,
    is_transforming,
    loop_input,
    permit_effect,
    register_dead_code_rule,
)
from chainrule._partition import Static, Template, is_array_or_number, partition

Kind = Literal["tangent", "cotangent"]


@dataclass(frozen=True)
class Mode:
    """What a sown value is: the value itself, or which derivative of it.

    A mode is a list of derivative steps, the latest first: `()` is the value, `tangent` its directional
    derivative, `cotangent` the derivative of a result with respect to it, `tangent_of_cotangent` what
    `jvp(grad(f))` adds, and so on. Each step knows at which depth of nested derivatives it was taken (the
    innermost is 0), which tells the two cotangents of `grad(grad(f))` apart.

    Attributes:
        steps: (kind, depth) of each step.
        depth: how many derivative transformations the value has been through.
    """

    steps: tuple[tuple[Kind, int], ...] = ()
    depth: int = 0

    def deeper(self) -> Mode:
        """The mode of the value itself after one more derivative was taken around it."""
        return replace(self, depth=self.depth + 1)

    def tangent(self) -> Mode:
        """The mode of the tangent of a value in this mode."""
        return Mode((("tangent", self.depth), *self.steps), self.depth + 1)

    def cotangent(self) -> Mode:
        """The mode after transposition: a tangent turns into the cotangent of the same step."""
        if self.is_tangent:
            (_, depth), *rest = self.steps
            return replace(self, steps=(("cotangent", depth), *rest))
        return Mode((("cotangent", self.depth), *self.steps), self.depth + 1)

    def undeepened(self) -> Mode:
        """The steps alone, without what happened around the value since."""
        return replace(self, depth=0)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depth of each step, the latest first."""
        return tuple(depth for _, depth in self.steps)

    @property
    def is_primal(self) -> bool:
        """Whether this is the value itself."""
        return not self.steps

    @property
    def is_tangent(self) -> bool:
        """Whether the latest step was a push forward."""
        return bool(self.steps) and self.steps[0][0] == "tangent"

    @property
    def is_pulled_back(self) -> bool:
        """Whether any of the steps pulled back."""
        return any(kind == "cotangent" for kind, _ in self.steps)

    @property
    def label(self) -> str:
        """`primal`, `tangent`, `cotangent`, `tangent_of_cotangent`, …"""
        return "_of_".join(kind for kind, _ in self.steps) or "primal"


PRIMAL = Mode()


Part = Literal["whole", "forward", "backward"]
Reduce = Literal["stack", "last", "sum", "mean", "max"]
_MAX_CALLS = 16
_REDUCTIONS: tuple[Reduce, ...] = get_args(Reduce)
_NOTHING = Static(None)


@dataclass(frozen=True)
class SowWatch:
    """What the captures around the code that is traced now want of its sows.

    Attributes:
        kept: tags whose sows stay in the program, also where their results are not used.
        placed: tags whose sows have the axes of `vmap` in front.
        spread: (tag, name) of sows that get every axis of `vmap`, also those that they do not depend on.
        thawed: (tag, name, depth) of sows all of whose leaves take part in the derivative at that depth.
        pruned: tags of which tangents that no result needs may go, and with them cotangents of zero.
    """

    kept: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    spread: frozenset[tuple[str, str]] = frozenset()
    thawed: frozenset[tuple[str, str, int]] = frozenset()
    pruned: frozenset[str] = frozenset()

    def __or__(self, other: SowWatch) -> SowWatch:
        return SowWatch(
            self.kept | other.kept,
            self.placed | other.placed,
            self.spread | other.spread,
            self.thawed | other.thawed,
            self.pruned | other.pruned,
        )


_NO_WATCH = SowWatch()


def current_watch() -> SowWatch:
    """The watch around the code that is traced now."""
    return capture_context.value or _NO_WATCH


def is_captured(tag: str) -> bool:
    """Whether a capture of this tag is being traced."""
    return tag in current_watch().kept


@dataclass(frozen=True)
class Sowing:
    """What a sow equation says about its operands.

    Attributes:
        name: the user's name.
        tag: the user's group of names.
        template: the sown pytree without its operands.
        mode: the value itself, or which derivative.
        reduce: how loops combine iterations; `None` leaves it to the capture.
        buffer: how many of the last iterations a `while` loop keeps; `None` leaves it to the capture.
        axes: per `vmap` around a placed sow, outermost first: `None` where the operands have its axis (in
            front, in this order), its size where they do not depend on it.
        frozen: per operand of a derivative, the depths at which it is zero and takes no part.
        left_out: the depths at which leaves of this cotangent were frozen: they are missing here.
        is_anchored: whether one more operand follows that ties the equation to its loop: JAX moves
            equations that only use constants of a `scan` out of it when it differentiates.
        part: which modes it stands for. A value inside a component that is called on the host is sown
            twice, where it comes out (it and its tangents) and where its cotangents come out.
        call_sites: the user's line and the calls that led there, for messages; two sowings may be equal
            without them.
    """

    name: str
    tag: str
    template: Template
    mode: Mode = PRIMAL
    reduce: Reduce | None = None
    buffer: int | None = None
    axes: tuple[int | None, ...] = ()
    frozen: tuple[frozenset[int], ...] | None = None
    left_out: frozenset[int] = frozenset()
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

    @property
    def n_axes(self) -> int:
        """How many axes of `vmap` the operands have in front."""
        return self.axes.count(None)

    def value(self, operands: Sequence[Any]) -> Any:
        """The pytree, as it was sown."""
        return self.template.join(operands)

    def repeat(self, operands: Sequence[Any]) -> list[Any]:
        """The operands with the axes of all `vmap`s, also those that they do not depend on."""
        missing = [position for position, size in enumerate(self.axes) if size is not None]
        return [self._repeat(operand, missing) for operand in operands] if missing else [*operands]

    def _repeat(self, operand: Any, missing: list[int]) -> Any:
        wide = jnp.expand_dims(operand, missing)
        sizes = (
            own if size is None else size for own, size in zip(wide.shape, self.axes, strict=False)
        )
        return jnp.broadcast_to(wide, (*sizes, *wide.shape[len(self.axes) :]))

    def derivative(self, mode: Mode, selected: Sequence[bool]) -> Sowing:
        """The same place in another mode; leaves that are not selected become `None`."""
        carried = iter(selected)
        statics = tuple(
            static if static is not None else None if next(carried) else _NOTHING
            for static in self.template.statics
        )
        template = self.template._replace(statics=statics)
        return replace(self, mode=mode, template=template, frozen=None, is_anchored=False)

    @property
    def depths_frozen(self) -> tuple[frozenset[int], ...]:
        """Per operand, the depths at which it takes no part in a derivative."""
        n_operands = self.template.statics.count(None)
        return (frozenset[int](),) * n_operands if self.frozen is None else self.frozen


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
    template, operands = partition(value, is_array_or_number)
    anchor = loop_input() if is_captured(tag) else None
    sowing = Sowing(name, tag, template, is_anchored=anchor is not None, **options)
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


def sown_names(eqn: JaxprEqn) -> tuple[str, ...]:
    """What the operands of a sow equation are called; nothing where they are derivatives of a value."""
    sowing: Sowing = eqn.params["sowing"]
    if not sowing.mode.is_primal:
        return ()
    structure = sowing.template.structure
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    leaves = jax.tree_util.tree_leaves_with_path(numbered)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    arrays = sowing.template.arrays_of(paths)
    return tuple(f"{sowing.name}.{path}" if path else sowing.name for path in arrays)


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
SOW = "sow"
"""The name of the primitive. Its results are its first operands."""

_sow_p = Primitive(SOW)
_sow_p.multiple_results = True


def _bind(operands: Sequence[Any], sowing: Sowing) -> list[Any]:
    return _sow_p.bind(*operands, sowing=sowing)


def _sown(operands: Sequence[Any], sowing: Sowing) -> list[Any]:
    return list(operands[:-1] if sowing.is_anchored else operands)


@_sow_p.def_impl
def _run(*operands: Any, sowing: Sowing) -> list[Any]:
    return _sown(operands, sowing)


@_sow_p.def_effectful_abstract_eval
def _abstract(*avals: Any, sowing: Sowing) -> tuple[list[Any], set[Effect]]:
    watch = current_watch()
    may_go = sowing.mode.is_tangent and sowing.tag in watch.pruned
    return _sown(avals, sowing), {_CAPTURED} if sowing.tag in watch.kept and not may_go else set()


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _jvp(primals: Any, tangents: Any, *, sowing: Sowing) -> tuple[list[Any], list[Any]]:
    """Sow the tangents of a tree, and hand them on.

    Integers have tangents of type float0: nothing to sow. A leaf that does not depend on what is
    differentiated is *frozen*: its tangent is a symbolic zero. It is sown as zeros and handed on as the
    symbolic zero it is, so that a sow changes nothing for what comes after it (a custom rule that asks
    for symbolic zeros, an operation that has no derivative with respect to this leaf).

    That is right for tangents, but a cotangent does not come back to a leaf that takes no part. So the
    transposed sow leaves frozen leaves out and says so; the capture then traces the function again with
    them *thawed*: the zeros themselves are handed on.
    """
    mode = sowing.mode
    values = _bind(primals, replace(sowing, mode=mode.deeper()))
    tangents = _sown(tangents, sowing)
    if all(map(_is_zero, tangents)):
        return values, tangents
    is_thawed = (sowing.tag, sowing.name, mode.depth) in current_watch().thawed
    differentiable = [_dtype(tangent) != jax.dtypes.float0 for tangent in tangents]
    frozen = tuple(
        depths | {mode.depth} if _is_zero(tangent) and not is_thawed else depths
        for tangent, depths in _select(
            zip(tangents, sowing.depths_frozen, strict=True), differentiable
        )
    )
    derivative = replace(sowing.derivative(mode.tangent(), differentiable), frozen=frozen)
    carried = _select(tangents, differentiable)
    sown = iter(_bind(list(map(ad.instantiate_zeros, carried)), derivative))
    results = [next(sown) if has_derivative else None for has_derivative in differentiable]
    return values, [
        tangent if result is None or (_is_zero(tangent) and not is_thawed) else result
        for tangent, result in zip(tangents, results, strict=True)
    ]


def _transpose(cotangents: Any, *operands: Any, sowing: Sowing) -> list[Any]:
    """Sow the cotangents of what takes part, and hand them on.

    JAX transposes the program of tangents, in which this sow is the identity t ↦ t of mode `tangent`. The
    transpose of the identity is the identity, c ↦ c, without conjugation: so what arrives here is the
    cotangent of the sown value itself, and it is sown as such. A capture keeps it also where it is zero:
    then the result does not depend on the value.
    """
    handed_on = list(cotangents)
    if is_captured(sowing.tag) or not all(map(_is_zero, cotangents)):
        frozen = sowing.depths_frozen
        moving = [not depths for depths in frozen]
        derivative = replace(
            sowing.derivative(sowing.mode.cotangent(), moving),
            # The cotangent of a value shared by a batch is a sum over the batch: it has no such axis.
            axes=(None,) * sowing.n_axes,
            left_out=sowing.left_out.union(*frozen),
        )
        given = _select(cotangents, moving)
        sown = iter(_bind(list(map(ad.instantiate_zeros, given)), derivative))
        results = [next(sown) if moves else None for moves in moving]
        handed_on = [
            cotangent if result is None or _is_zero(cotangent) else result
            for cotangent, result in zip(cotangents, results, strict=True)
        ]
    handed_on += [None] * (len(operands) - len(handed_on))
    return [
        value if ad.is_undefined_primal(operand) else None
        for value, operand in zip(handed_on, operands, strict=True)
    ]


def _batch(
    axis: Any, operands: Sequence[Any], dims: Sequence[int | None], *, sowing: Sowing
) -> tuple[list[Any], list[int | None]]:
    """Batch a sow; where a capture or `plant` looks at it, with the new axis in front of all operands.

    Rules of batching run from the innermost `vmap` outwards, so each of them puts its axis in front of
    those that are there: the axes of `sowing.axes` are the outermost first. A sow that does not depend on
    the axis keeps its operands and notes the size, so that the value can be repeated when it comes out.
    """
    leaf_dims = _sown(dims, sowing)
    watch = current_watch()
    if sowing.tag not in watch.placed | watch.kept:
        return _bind(operands, sowing), leaf_dims
    if all(dim is None for dim in leaf_dims) and (sowing.tag, sowing.name) not in watch.spread:
        shared = replace(sowing, axes=(axis.size, *sowing.axes))
        return _bind(operands, shared), leaf_dims
    in_front = [
        jnp.broadcast_to(value, (axis.size, *jnp.shape(value)))
        if dim is None
        else jnp.moveaxis(value, dim, 0)
        for value, dim in zip(operands, leaf_dims, strict=False)
    ]
    anchor = operands[len(leaf_dims) :]
    placed = replace(sowing, axes=(None, *sowing.axes))
    return _bind([*in_front, *anchor], placed), [0] * len(in_front)


def _drop_unused(used: list[bool], eqn: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    """Dead-code elimination: of a sown tangent, the leaves that nothing uses go, and the others stay.

    If one used leaf kept them all, JAX would transpose what leads to the others, which it may not be able to.
    """
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    sowing = eqn.params["sowing"]
    if eqn.effects or not sowing.mode.is_tangent:
        return [True] * len(eqn.invars), eqn
    # Results of frozen leaves are never used; the capture has to know of them.
    kept = [
        is_used or bool(depths) for is_used, depths in zip(used, sowing.depths_frozen, strict=True)
    ]
    frozen = tuple(_select(sowing.depths_frozen, kept))
    return kept, eqn.replace(
        invars=_select(eqn.invars, kept),
        outvars=_select(eqn.outvars, kept),
        params={"sowing": replace(sowing.derivative(sowing.mode, kept), frozen=frozen)},
    )


def _select(values: Iterable[Any], selected: Iterable[bool]) -> list[Any]:
    return list(itertools.compress(values, selected))


def _dtype(tangent: Any) -> Any:
    # A tangent may be a number of Python's.
    return (tangent.aval if _is_zero(tangent) else aval_of(tangent)).dtype


ad.primitive_jvps[_sow_p] = _jvp
ad.primitive_transposes[_sow_p] = _transpose
batching.fancy_primitive_batchers[_sow_p] = _batch
register_dead_code_rule(_sow_p, _drop_unused)
mlir.register_lowering(_sow_p, lambda context, *operands, sowing: list(operands))
