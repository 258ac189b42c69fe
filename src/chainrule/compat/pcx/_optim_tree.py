"""`OptimTree`: one optimiser per part of a model, each of which can sit out a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax

from chainrule.compat.pcx._gradients import by_path, gradient_tree
from chainrule.compat.pcx._optim import no_parameters
from chainrule.stateful import DynamicParam, Module, OptimState, StaticParam
from chainrule.stateful.internal import join, key_path, params_of

Group = tuple[str, ...]


class OptimTree(Module):
    """One optimiser per selected part; a part whose gradients are not all there is left alone.

    Args:
        optax_opt: a function of no arguments that makes an optimiser.
        leaf_fn: which modules (or other nodes) are parts; parameters outside of them are parts themselves.
        parameters: a tree with `None` for parameters that are not to be trained, as a mask gives it.
    """

    def __init__(
        self,
        optax_opt: Callable[[], optax.GradientTransformation],
        leaf_fn: Callable[[Any], bool],
        parameters: Any = None,
    ) -> None:
        self.optimizer = StaticParam(optax_opt())
        self.leaf_fn = StaticParam(leaf_fn)
        self.groups = StaticParam(())
        self.state = OptimState(None)
        if parameters is not None:
            self.init(parameters)

    def init(self, parameters: Any) -> None:
        """Choose the parts, and start afresh."""
        values = {path: param.get() for path, param in params_of(parameters).items()}
        groups = tuple(_groups(parameters, self.leaf_fn.get()))
        optimizer = self.optimizer.get()
        self.groups.set(groups)
        self.state.set(tuple(optimizer.init(_part(values, group)) for group in groups))

    def clear(self) -> None:
        """Forget states and parts."""
        self.groups.set(())
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
            raise no_parameters()
        given = by_path(grads)
        if scale_by is not None:
            given = jax.tree.map(lambda gradient: gradient * scale_by, given)
        values = {path: param.get() for path, param in params_of(module).items()}
        updates: dict[str, Any] = {}
        states = list(self.state.get())
        for number, group in enumerate(self.groups.get()):
            if not given.keys() >= set(group):
                continue
            new, states[number] = self.optimizer.get().update(
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


def _groups(tree: Any, is_part: Callable[[Any], bool]) -> Iterator[Group]:
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


def _part(values: dict[str, Any], group: Group) -> dict[str, Any]:
    return {path: values[path] for path in group}
