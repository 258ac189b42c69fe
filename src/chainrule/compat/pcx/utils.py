"""Masks, optimisers, checkpoints and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from chainrule import predictive, stateful
from chainrule._errors import InputError
from chainrule.compat.pcx._trees import by_path, each_once, gradient_tree, replaced
from chainrule.compat.pcx.core import Module
from chainrule.stateful import (
    BaseParam,
    CheckpointError,
    DynamicParam,
    Mask,
    OptimState,
    StaticParam,
)
from chainrule.stateful.internal import join, key_path, params_of
from chainrule.stateful.layers import LayerParam

__all__ = [
    "M",
    "M_has",
    "M_hasnot",
    "M_is",
    "Optim",
    "OptimTree",
    "load_params",
    "save_params",
    "step",
]
_Group = tuple[str, ...]
_Filter = Callable[[Any], bool] | type


class M(Mask):
    """A selection of parameters, by kind, predicate, attribute, or a combination.

    Example:
        >>> from chainrule.compat import pcx
        >>> weights = pcx.utils.M(pcx.nn.LayerParam).to((False, True))
        >>> weights.apply(pcx.Param(0.0)), weights.apply(pcx.nn.LayerParam(0.0))
        (False, True)
    """

    __slots__ = ()

    def __init__(self, mask: Any = None) -> None:
        super().__init__(mask)

    def apply(self, leaf: Any) -> Any:
        """Whether the mask selects one parameter; `to` has no influence."""
        return self.matches(leaf)

    def __call__(self, pydag: Any, is_pytree: bool = False) -> Any:
        """The tree with only the selected parameters, `None` for all other leaves; or with the chosen values.

        A shared parameter is there once. `jax.tree` sees the values.

        Args:
            pydag: modules, parameters and containers.
            is_pytree: accepted; sharing is always seen.
        """
        off, on = self._choice or (None, None)

        def replace(leaf: Any) -> Any:
            if not (isinstance(leaf, DynamicParam) and self.matches(leaf)):
                return off
            return leaf if self._choice is None else on

        return replaced(pydag, each_once(replace, off))

    def to(self, map_to: Any) -> M:
        """A mask that answers with `map_to[0]` when off and `map_to[1]` when on; `None` takes that back."""
        if map_to is None:
            return M(Mask._make(self._rule))
        return M(super().to(map_to))

    def has(self, **attributes: Any) -> M:
        """And: every attribute is present and equal."""
        return M(super().has(**attributes))

    def hasnot(self, **attributes: Any) -> M:
        """And: every attribute is absent or different."""
        return M(super().hasnot(**attributes))

    def __or__(self, other: Any) -> M:
        return M(super().__or__(other))

    def __and__(self, other: Any) -> M:
        return M(super().__and__(other))

    def __invert__(self) -> M:
        return M(super().__invert__())


def M_is(*masks: Any) -> M:  # noqa: N802 - the ancestor's name
    """What all masks select."""
    combined = M()
    for mask in masks:
        combined = combined & mask
    return combined


def M_has(mask: Any, **attributes: Any) -> M:  # noqa: N802
    """What a mask selects and has these attributes."""
    return M(mask).has(**attributes)


def M_hasnot(mask: Any, **attributes: Any) -> M:  # noqa: N802
    """What a mask selects and does not have these attributes."""
    return M(mask).hasnot(**attributes)


_NO_OPTIMISER = optax.identity()


class Optim(Module, stateful.Optim):
    """An optax optimiser for the parameters that are left in a tree.

    Args:
        optax_opt: a function of no arguments that makes the optimiser. `init` calls it, so an optimiser that
            draws random numbers may take a new seed each time. An optimiser is taken as it is.
        parameters: a tree with `None` for parameters that are not to be trained, as a mask gives it.
    """

    def __init__(self, optax_opt: Callable[[], Any] | Any, parameters: Any = None) -> None:
        stateful.Optim.__init__(self, _NO_OPTIMISER)
        self.optax_opt_fn = StaticParam(optax_opt)
        self.filter = StaticParam(None)
        if parameters is not None:
            self.init(parameters)

    def init(self, parameters: Any) -> None:
        """Choose the parameters, make the optimiser, and start afresh."""
        self.filter.set(tuple(params_of(parameters)))
        self._use(_made(self.optax_opt_fn.get()))
        super().init(parameters)

    def clear(self) -> None:
        """Forget the optimiser, its state and the choice of parameters."""
        self.filter.set(None)
        self._use(_NO_OPTIMISER)
        self.reset()

    @staticmethod
    def _ascent(gradient: Any) -> Any:
        return gradient  # handed to optax as it is, as in the ancestor

    def _use(self, optimiser: Any) -> None:
        self.optimizers.set(((None, optimiser),))

    def step(  # type: ignore[override]  # the arguments are the ancestor's
        self,
        module: Any,
        grads: Any,
        scale_by: float | None = None,
        apply_updates: bool = True,
        allow_none: bool = False,
    ) -> Any:
        """Change the chosen parameters of a module by one step.

        Args:
            module: the module.
            grads: a tree like it, as `value_and_grad` gives it.
            scale_by: factor for the gradients.
            apply_updates: whether to change the module, or only to compute.
            allow_none: return `None`, and leave everything alone, when a gradient is missing.

        Returns:
            A tree like the module with the updates in the chosen parameters, and `None` in the others.

        Raises:
            GradientError: (a `ValueError`) a gradient is missing.
            InputError: no parameters were chosen (`optim_not_initialised`).
        """
        given = by_path(grads)
        chosen = self._selected(module)
        if allow_none and not chosen.keys() <= given.keys():
            return None
        if scale_by is not None:
            given = {path: jax.tree.map(lambda g: g * scale_by, g) for path, g in given.items()}
        before = {path: param.get() for path, param in chosen.items()}
        updates = super().step(module, given[""] if "" in chosen else given)
        if not apply_updates:
            for path, param in chosen.items():
                param.set(before[path])
        return gradient_tree(module, updates[""] if "" in chosen else updates)

    def apply_updates(self, module: Any, updates: Any) -> None:
        """Add updates, as `step` returns them, to the chosen parameters."""
        new = by_path(updates)
        for path, param in self._selected(module).items():
            param.set(jax.tree.map(lambda value, update: value + update, param.get(), new[path]))

    def _selected(self, tree: Any) -> dict[str, DynamicParam]:
        chosen = self.filter.get()
        if chosen is None:
            raise _no_parameters()
        return {path: param for path, param in params_of(tree).items() if path in chosen}


def _made(optax_opt: Any) -> Any:
    """An optimiser from the function that makes it; an optimiser as it is."""
    return optax_opt if isinstance(optax_opt, optax.GradientTransformation) else optax_opt()


def _no_parameters() -> InputError:
    """What to raise at a step without `init`."""
    return InputError(
        "The optimiser has no parameters: call `init` with those that it is to train, as a mask gives them, "
        "before the first step and after `clear`.",
        code="optim_not_initialised",
    )


class OptimTree(Module):
    """One optimiser per selected part; a part whose gradients are not all there is left alone.

    Args:
        optax_opt: a function of no arguments that makes an optimiser; `init` calls it for each part.
        leaf_fn: which modules (or other nodes) are parts; parameters outside of them are parts themselves.
        parameters: a tree with `None` for parameters that are not to be trained, as a mask gives it.
    """

    def __init__(
        self,
        optax_opt: Callable[[], optax.GradientTransformation] | Any,
        leaf_fn: Callable[[Any], bool],
        parameters: Any = None,
    ) -> None:
        self.optax_opt = StaticParam(optax_opt)
        self.optimisers = StaticParam(())
        self.leaf_fn = StaticParam(leaf_fn)
        self.groups = StaticParam(())
        self.state = OptimState(None)
        if parameters is not None:
            self.init(parameters)

    def init(self, parameters: Any) -> None:
        """Choose the parts, and start afresh."""
        values = {path: param.get() for path, param in params_of(parameters).items()}
        groups = tuple(_groups(parameters, self.leaf_fn.get()))
        optimisers = tuple(_made(self.optax_opt.get()) for _ in groups)
        self.groups.set(groups)
        self.optimisers.set(optimisers)
        self.state.set(
            tuple(o.init(_part(values, g)) for o, g in zip(optimisers, groups, strict=True))
        )

    def clear(self) -> None:
        """Forget optimisers, their states and the parts."""
        self.groups.set(())
        self.optimisers.set(())
        self.state.set(None)

    def step(
        self,
        module: Any,
        grads: Any,
        scale_by: float | None = None,
        apply_updates: bool = True,
    ) -> Any:
        """Change the parts of a module that have gradients by one step.

        Args:
            module: the module.
            grads: a tree like it, as `value_and_grad` gives it.
            scale_by: factor for the gradients.
            apply_updates: whether to change the module, or only to compute.

        Returns:
            A tree like the module with updates, `None` where there are none.

        Raises:
            InputError: no parameters were chosen (`optim_not_initialised`).
        """
        if self.state.get() is None:
            raise _no_parameters()
        given = by_path(grads)
        if scale_by is not None:
            given = jax.tree.map(lambda gradient: gradient * scale_by, given)
        values = {path: param.get() for path, param in params_of(module).items()}
        updates: dict[str, Any] = {}
        states = list(self.state.get())
        for number, group in enumerate(self.groups.get()):
            if not given.keys() >= set(group):
                continue
            new, states[number] = self.optimisers.get()[number].update(
                _part(given, group), states[number], _part(values, group)
            )
            updates |= new
        self.state.set(tuple(states))
        tree = gradient_tree(module, updates)
        if apply_updates:
            self.apply_updates(module, tree)
        return tree

    def apply_updates(self, module: Any, updates: Any) -> None:
        """Add updates, as `step` returns them, to the parameters."""
        params = params_of(module)
        for path, update in by_path(updates).items():
            params[path].set(optax.apply_updates(params[path].get(), update))


def _groups(tree: Any, is_part: Callable[[Any], bool]) -> Iterator[_Group]:
    """The paths of the parameters in every part of a tree; a shared one belongs to the first."""
    seen: set[int] = set()
    nodes, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, DynamicParam) or is_part(node)
    )
    for keys, node in nodes:
        own = {p: param for p, param in params_of(node).items() if id(param) not in seen}
        seen.update(map(id, own.values()))
        if own:
            yield tuple(join(key_path(keys), path) for path in own)


def _part(values: dict[str, Any], group: _Group) -> dict[str, Any]:
    return {path: values[path] for path in group}


def save_params(model: Any, path: str, filter: _Filter = LayerParam) -> None:
    """Write parameters to `<path>.npz`; a shared one under each of its names, as the ancestor reads it.

    Args:
        model: the model.
        path: the file, `.npz` is appended.
        filter: which parameters: a kind or a predicate.
    """
    arrays: dict[str, Any] = {
        name: np.asarray(param.get()) for name, param in _named(model, filter)
    }
    np.savez_compressed(_file(path), **arrays)


def load_params(model: Any, path: str, filter: _Filter = LayerParam) -> None:
    """Set parameters from a file, all or none.

    Args:
        model: the model.
        path: the file, `.npz` is appended.
        filter: which parameters: a kind or a predicate.

    Raises:
        KeyError: the file has no entry for a parameter.
        CheckpointError: an entry has another shape than the parameter.
    """
    chosen = dict(_first_named(model, filter))
    with np.load(_file(path)) as file:
        values = {name: file[name] for name in chosen}
    for name, param in chosen.items():
        held = param.get()
        if held is not None and jnp.shape(held) != values[name].shape:
            raise CheckpointError(
                f"{name} has shape {list(jnp.shape(held))}, but {list(values[name].shape)} in {path}.",
                path=name,
            )
    for name, param in chosen.items():
        param.set(jnp.asarray(values[name]))


def _file(path: str) -> str:
    return path if path.endswith(".npz") else f"{path}.npz"


def _named(model: Any, filter: _Filter) -> Iterator[tuple[str, DynamicParam]]:
    mask = Mask(filter)
    pairs = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: isinstance(x, BaseParam))
    for keys, param in pairs[0]:
        if isinstance(param, DynamicParam) and mask.matches(param):
            yield jax.tree_util.keystr(keys), param


def _first_named(model: Any, filter: _Filter) -> Iterator[tuple[str, DynamicParam]]:
    """Each parameter once, under its first name: the ancestor writes `None` under the others."""
    seen: set[int] = set()
    for name, param in _named(model, filter):
        if id(param) not in seen:
            seen.add(id(param))
            yield name, param


def step(
    module: Any, status: Any = None, *, clear_params: Any = None
) -> AbstractContextManager[Any]:
    """Give a model a status inside a `with` block.

    Args:
        module: the model.
        status: inside; with a pair, the second one afterwards.
        clear_params: which parameters to empty afterwards; with a pair, before and afterwards.
    """
    return predictive.step(module, status, clear_params=clear_params)
