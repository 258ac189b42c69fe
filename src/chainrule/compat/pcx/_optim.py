"""`Optim`: a native optimiser that takes and returns trees of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from chainrule import stateful
from chainrule._errors import InputError
from chainrule.compat.pcx._gradients import by_path, gradient_tree
from chainrule.stateful import DynamicParam, StaticParam
from chainrule.stateful.internal import params_of


class Optim(stateful.Optim):
    """An optax optimiser for the parameters that are left in a tree.

    Args:
        optax_opt: a function of no arguments that makes the optimiser, or the optimiser.
        parameters: a tree with `None` for parameters that are not to be trained, as a mask gives it.
    """

    def __init__(self, optax_opt: Callable[[], Any] | Any, parameters: Any = None) -> None:
        super().__init__(optax_opt)
        self.filter = StaticParam(None)
        if parameters is not None:
            self.init(parameters)

    def init(self, parameters: Any) -> None:
        """Choose the parameters, and start afresh."""
        self.filter.set(tuple(params_of(parameters)))
        super().init(parameters)

    def clear(self) -> None:
        """Forget the state and the choice of parameters."""
        self.filter.set(None)
        self.reset()

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
            raise no_parameters()
        return {path: param for path, param in params_of(tree).items() if path in chosen}


def no_parameters() -> InputError:
    """What to raise at a step without `init`."""
    return InputError(
        "The optimiser has no parameters: call `init` with those that it is to train, as a mask gives them, "
        "before the first step and after `clear`.",
        code="optim_not_initialised",
    )
