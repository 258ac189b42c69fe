"""`Layer`: an equinox module whose arrays are parameters; `StatefulLayer`: one that keeps state."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax

from chainrule._errors import DefinitionError
from chainrule._paths import Segment, split_path
from chainrule.stateful._module import List, Module
from chainrule.stateful._params import DynamicParam, Param, StaticParam
from chainrule.stateful._random import RKG, RandomKeyGenerator
from chainrule.stateful._snapshots import Snapshot
from chainrule.stateful._walk import key_path


class LayerParam(Param):
    """A weight of a layer."""

    __slots__ = ()


class LayerState(Param):
    """State of a layer that is computed, not trained: running statistics."""

    __slots__ = ()
    frozen = True


class _Namespace(Module):
    """Parameters of a part of an equinox module."""


@dataclass(frozen=True)
class _Place:
    """Stands in an equinox module for the array that a parameter holds: where the parameter is."""

    segments: tuple[Segment, ...]


class Layer(Module):
    """An equinox module inside a model: its arrays are parameters with the paths they have in it.

    `Layer(eqx.nn.MLP(...))` has parameters `layers.[0].weight`, and so on; calling it calls the equinox
    module with their current values. Assigning an equinox module to an attribute of a `Module` makes a
    `Layer` of it.

    Args:
        module: an equinox module.
        kind: the kind of its parameters.
        select: which leaves of the module are parameters; by default all arrays.
        rkg: where the key of a call comes from that requires `key`, or takes one for dropout, and got none.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> layer = Layer(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
        >>> layer.weight
        LayerParam(f32[2,3])
        >>> layer(jnp.ones(3)).shape
        (2,)
    """

    def __init__(
        self,
        module: eqx.Module,
        *,
        kind: type[DynamicParam] = LayerParam,
        select: Callable[[Any], bool] = eqx.is_array,
        rkg: RandomKeyGenerator = RKG,
    ) -> None:
        pairs, structure = jax.tree_util.tree_flatten_with_path(module)
        leaves: list[Any] = []
        for keys, leaf in pairs:
            if select(leaf):
                place = _Place(split_path(key_path(keys)))
                _put(self, place.segments, kind(leaf))
                leaf = place
            leaves.append(leaf)
        # Kept as a module, not as a treedef: copies and pickles of an equinox treedef do not work.
        self._skeleton = Snapshot(jax.tree.unflatten(structure, leaves))
        parts = jax.tree.leaves(module, is_leaf=_has_flag)
        flags = {part.inference for part in parts if _has_flag(part)}
        if flags:
            # None: parts differ, and each keeps its own until the mode is switched.
            self.inference = StaticParam(flags.pop() if len(flags) == 1 else None)
        # The default generator is tracked everywhere; only one of the user's own has to be held.
        if rkg is not RKG:
            self.rkg = rkg

    def build(self) -> Any:
        """The equinox module with the current values."""
        module = jax.tree.map(
            lambda leaf: _at(self, leaf.segments).get() if isinstance(leaf, _Place) else leaf,
            self._skeleton.value,
        )
        flag = self.__dict__.get("inference")
        if flag is None or flag.get() is None:
            return module
        return eqx.nn.inference_mode(module, flag.get())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.build()
        if _asks_for_key(module, args, kwargs):
            kwargs["key"] = self.__dict__.get("rkg", RKG)()
        try:
            return module(*args, **kwargs)
        except NameError:
            for part in jax.tree.leaves(module, is_leaf=_is_batch_norm):
                if _is_batch_norm(part) and not part.inference:
                    check_axis(part.axis_name)
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.build(), name)


class StatefulLayer(Module):
    """An equinox module that keeps state, such as `equinox.nn.BatchNorm` or `equinox.nn.SpectralNorm`.

    Its arrays are parameters of `module`; its state is the parameter `state`, which each call replaces.

    Args:
        module: an equinox module that takes and returns an `equinox.nn.State`, and
        state: its first state: both as `equinox.nn.make_with_state` gives them.
        rkg: as in `Layer`.

    Example:
        >>> import equinox as eqx, jax.numpy as jnp
        >>> from chainrule.stateful import layers, vmap
        >>> make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
        >>> norm = layers.StatefulLayer(*make(2, "batch", mode="ema"))
        >>> vmap(norm, axis_name="batch")(jnp.ones((4, 2))).shape
        (4, 2)
    """

    def __init__(
        self, module: eqx.Module, state: eqx.nn.State, *, rkg: RandomKeyGenerator = RKG
    ) -> None:
        self.module = Layer(module, rkg=rkg)
        self.state = LayerState(state)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # equinox marks a state that was used; the parameter keeps an unmarked one.
        state = jax.tree.map(lambda leaf: leaf, self.state.get())
        result, state = self.module(*args, state, **kwargs)
        self.state.set(state)
        return result


def check_axis(name: Hashable) -> None:
    """Refuse to train a batch norm outside of `vmap`.

    Raises:
        DefinitionError: there is no axis of this name.
    """
    try:
        jax.lax.axis_index(name)
    except NameError as error:
        raise DefinitionError(
            f"BatchNorm takes means over the batch axis {name!r}, and no `vmap` around it has an axis of "
            f"this name. Call the model inside `vmap(…, axis_name={name!r})`, or switch to the running "
            "statistics with `model.eval()`.",
            code="missing_axis",
        ) from error


def _is_batch_norm(part: Any) -> bool:
    return isinstance(part, eqx.nn.BatchNorm)


def _asks_for_key(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has to be given a `key`: it takes one, got none, and requires it or drops entries."""
    signature = inspect.signature(type(module).__call__)
    if "key" in kwargs or "key" in signature.bind_partial(module, *args, **kwargs).arguments:
        return False
    key = signature.parameters.get("key")
    if key is not None:
        return key.default is key.empty or _drops(module)
    takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in signature.parameters.values())
    return takes_any and _drops(module)


def _drops(module: Any) -> bool:
    """Whether a part of an equinox module drops entries at random, and so needs a key."""
    parts = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, eqx.nn.Dropout))
    dropouts = [part for part in parts if isinstance(part, eqx.nn.Dropout)]
    return any(not part.inference and not _is_zero(part.p) for part in dropouts)


def _is_zero(p: Any) -> bool:
    return isinstance(p, (int, float)) and p == 0


def _has_flag(part: Any) -> bool:
    return isinstance(part, eqx.Module) and hasattr(part, "inference")


def _put(module: Any, place: tuple[Segment, ...], param: DynamicParam) -> None:
    """Assign a parameter at a place, making what lies on the way."""
    for here, following in itertools.pairwise(place):
        module = _child(module, here, List() if isinstance(following, int) else _Namespace())
    _assign(module, place[-1], param)


def _child(parent: Any, segment: Segment, new: Any) -> Any:
    try:
        child = _at(parent, (segment,))
    except (AttributeError, LookupError):
        child = None
    if child is None:
        _assign(parent, segment, new)
        child = new
    return child


def _assign(parent: Any, segment: Segment, value: Any) -> None:
    if isinstance(segment, str):
        setattr(parent, segment, value)
        return
    if not isinstance(parent, List):
        raise DefinitionError(f"Cannot place parameter [{segment}].", code="bad_definition")
    parent.extend([None] * (segment + 1 - len(parent)))
    parent[segment] = value


def _at(module: Any, place: tuple[Segment, ...]) -> Any:
    for segment in place:
        module = module[segment] if isinstance(segment, int) else module.__dict__[segment]
    return module
