"""Optimisers: optax on the parameters of a model, with its state as one more tracked parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from chainrule._errors import InputError
from chainrule.stateful._errors import GradientError
from chainrule.stateful._frames import make_outside
from chainrule.stateful._masks import TRAINABLE, Mask, check_patterns, nothing_selected, select
from chainrule.stateful._module import Module
from chainrule.stateful._params import DynamicParam, Param, StaticParam
from chainrule.stateful._values import describe, same_type
from chainrule.stateful._walk import Structure, join

_ABSENT = object()


class OptimState(Param):
    """The state of an optimiser: `None` until the first step, then optax's own pytree.

    Frozen, so that it is not trained: an optimiser may be part of the very tree it trains.
    """

    __slots__ = ()
    frozen = True
    keeps_type: ClassVar[bool] = False


class Optim(Module):
    """An optax optimiser for the parameters that a mask selects.

    Pass it by keyword to the transformed function that calls `step`; its state is made by `init`, or at the
    first step, and tracked like any parameter. Starting again (`reset`) compiles nothing anew. When
    parameters are frozen, thawed or added, the state of the others is kept.

    Args:
        optimizer: an optax transformation, or a function of no arguments that makes one. A dictionary
            from kind (or mask) to optimiser gives every kind its own; each parameter belongs to the
            first entry that matches.
        mask: which parameters are trained; by default all trainable ones (real or complex, not frozen,
            no caches), with a dictionary those that an entry matches.
        accumulate: apply the average of this many gradients at every such step.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from chainrule.stateful import Optim, Param, jit, value_and_grad
        >>> w, optim = Param(jnp.array([3.0])), Optim(optax.sgd(0.1))
        >>> @jit
        ... def step(*, w, optim):
        ...     loss = value_and_grad(lambda *, w: jnp.sum(w**2), kwargs_mask=True)
        ...     value, grads = loss(w=w)
        ...     optim.step(w, grads["w"])
        ...     return value
        >>> [round(float(step(w=w, optim=optim)), 3) for _ in range(3)]
        [9.0, 5.76, 3.686]
    """

    def __init__(self, optimizer: Any, mask: Any = None, *, accumulate: int = 1) -> None:
        self.optimizers = StaticParam(_groups(optimizer))
        self.mask = StaticParam(mask)
        self.accumulate = accumulate
        self.state = OptimState(None)
        self.count = Param(jnp.zeros((), jnp.int32), frozen=True)

    def step(
        self, tree: Any, gradients: Any, *, allow_missing: bool = False, **extra: Any
    ) -> dict[str, Any]:
        """Change the selected parameters of a tree by one step.

        Args:
            tree: a module, a parameter, or a container of them.
            gradients: `{path: gradient}` as `grad` and `value_and_grad` return for one keyword; for a
                single parameter, its gradient; for a dictionary of modules, one entry per module. Those of
                complex parameters are conjugated for optax: JAX's gradient by a + ib is ∂/∂a − i ∂/∂b, and
                the direction of steepest ascent is its conjugate.
            allow_missing: leave parameters without gradient unchanged instead of raising, and what
                the optimiser knows about them too.
            **extra: what the optimiser's `update` takes beyond that (a loss value for a line search).

        Returns:
            `{path: update}` as added to the parameters.

        Raises:
            GradientError: a selected parameter has no gradient, or one of another shape.
            InputError: the mask selects nothing.
        """
        selected = self._selected(tree)
        params, given = _match(selected, gradients, allow_missing)
        given = {path: jax.tree.map(self._ascent, gradient) for path, gradient in given.items()}
        state = self._state_for(selected)
        values, optimizer = _values(params), self._optimizer(params)
        # Parameters without a gradient keep their part of the state: the others are updated on a state of
        # their own.
        part = state if params == selected else _carried(state, optimizer, values)
        updates, new = optax.with_extra_args_support(optimizer).update(given, part, values, **extra)
        for path, value in optax.apply_updates(values, updates).items():
            params[path].set(value)
        self.state.set(new if part is state else _merged(state, new, selected))
        self.count.set(self.count.get() + 1)
        return updates

    @staticmethod
    def _ascent(gradient: Any) -> Any:
        """The direction of steepest ascent that belongs to a gradient of JAX."""
        return jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient

    def init(self, tree: Any) -> None:
        """Make the state now; otherwise the first step does."""
        params = self._selected(tree)
        self.state.set(self._optimizer(params).init(_values(params)))

    def reset(self) -> None:
        """Forget the state; the next step starts afresh."""
        self.state.set(None)
        self.count.set(jnp.zeros_like(self.count.get()))

    def _state_for(self, params: Mapping[str, DynamicParam]) -> Any:
        """The state for these parameters: a new one, or the old one with their parts of it.

        The selection changes when parameters are frozen or a model grows.
        """
        state, optimizer = self.state.get(), self._optimizer(params)
        if state is None:
            make_outside(self.state, params, optimizer.init)
            return optimizer.init(_values(params))
        return _carried(state, optimizer, _values(params))

    def _selected(self, tree: Any) -> dict[str, DynamicParam]:
        mask, groups = self.mask.get(), self.optimizers.get()
        params = select(tree, mask)
        if groups[0][0] is not None:
            every = [*Structure().visit(tree).params]
            for group, _ in groups:
                check_patterns(group, every)
            params = {
                path: p for path, p in params.items() if _group_of(groups, p, path) is not None
            }
        if not params:
            shown = TRAINABLE if mask is None or mask is True else mask
            if groups[0][0] is not None:
                shown = " | ".join(str(group) for group, _ in groups)
            raise nothing_selected("The mask of the optimiser", shown, tree)
        return params

    def _optimizer(self, params: Mapping[str, DynamicParam]) -> Any:
        groups = self.optimizers.get()
        if len(groups) == 1 and groups[0][0] is None:
            optimizer = groups[0][1]
        else:
            labels = {path: _group_of(groups, param, path) for path, param in params.items()}
            optimizer = optax.partition(
                {str(i): transformation for i, (_, transformation) in enumerate(groups)}, labels
            )
        if self.accumulate > 1:
            steps = optax.MultiSteps(optimizer, every_k_schedule=self.accumulate)
            optimizer = steps.gradient_transformation()
        return optimizer


def _values(params: Mapping[str, DynamicParam]) -> dict[str, Any]:
    return {path: param.value for path, param in params.items()}


def _match(
    selected: Mapping[str, DynamicParam], gradients: Any, allow_missing: bool
) -> tuple[dict[str, DynamicParam], dict[str, Any]]:
    """The parameters that have a gradient, and their gradients."""
    given = _by_path(gradients, selected)
    missing = {path: param for path, param in selected.items() if given.get(path) is None}
    if missing and not allow_missing:
        raise _missing(missing, len(selected), given)
    params = {path: param for path, param in selected.items() if path not in missing}
    for path, param in params.items():
        if jax.tree.map(jnp.shape, param.value) != jax.tree.map(jnp.shape, given[path]):
            raise GradientError(
                f"The gradient of `{path}` is {describe(given[path])}, the parameter is "
                f"{describe(param.value)}.",
                code="gradient_shape",
                path=path,
            )
    return params, {path: given[path] for path in params}


def _carried(state: Any, optimizer: Any, values: Mapping[str, Any]) -> Any:
    """A state for these parameters that begins where another one is."""
    # The state's type says which parameters it belongs to, because optax keeps trees like theirs. Shapes are
    # enough to compare, so nothing is computed in the usual case.
    if same_type(state, jax.eval_shape(optimizer.init, values)):
        return state
    return _merged(optimizer.init(values), state, values)


def _merged(template: Any, source: Any, paths: Collection[str]) -> Any:
    """A state like the template, with the content of another one where that has something of the same type.

    optax keeps what it knows about parameters in trees like theirs, here dictionaries by path: they are
    merged path by path. Everything else (counters, random keys, what belongs to no parameter) is taken from
    the source.
    """

    def is_per_parameter(node: Any) -> bool:
        return isinstance(node, dict) and node.keys() == set(paths)

    def either(old: Any, new: Any) -> Any:
        return new if same_type(old, new) else old

    def merge(old: Any, new: Any) -> Any:
        if is_per_parameter(old) and isinstance(new, dict):
            return {path: either(entry, new.get(path, _ABSENT)) for path, entry in old.items()}
        return either(old, new)

    treedef: Any
    leaves, treedef = jax.tree.flatten(template, is_leaf=is_per_parameter)
    try:
        others = treedef.flatten_up_to(source)
    except ValueError as error:
        raise InputError(
            "The optimiser's state was made by an optimiser of another kind. Start again with "
            "`optim.reset()`, or `optim.init(model)`.",
            code="bad_state",
        ) from error
    return jax.tree.unflatten(treedef, list(map(merge, leaves, others)))


def _groups(optimizer: Any) -> tuple[tuple[Mask | None, Any], ...]:
    if not isinstance(optimizer, Mapping):
        return ((None, _made(optimizer)),)
    return tuple((Mask(kind), _made(entry)) for kind, entry in optimizer.items())


def _made(optimizer: Any) -> Any:
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    if callable(optimizer):
        return _made(optimizer())
    raise InputError(
        f"Expected an optax optimiser such as `optax.adam(1e-3)`, found {type(optimizer).__name__}.",
        code="bad_argument",
    )


def _group_of(groups: Any, param: Any, path: str) -> str | None:
    return next((str(i) for i, (mask, _) in enumerate(groups) if mask.matches(param, path)), None)


def _by_path(gradients: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Gradients by path, whether they come for one keyword, for several, or for a bare parameter."""
    if "" in params:
        return {"": gradients.value if isinstance(gradients, DynamicParam) else gradients}
    if not isinstance(gradients, Mapping):
        raise GradientError(
            f"Expected gradients as {{path: gradient}}, found {type(gradients).__name__}.",
            code="gradient_structure",
        )
    flat = {}
    for key, entry in gradients.items():
        if key not in params and isinstance(entry, Mapping):
            flat.update({join(key, path): gradient for path, gradient in entry.items()})
        else:
            flat[key] = entry
    return flat


def _missing(missing: Mapping[str, Any], total: int, given: Mapping[str, Any]) -> GradientError:
    shown = [f"`{path}` {describe(param.value)}" for path, param in list(missing.items())[:8]]
    hint = ""
    if given and not set(given) & set(missing):
        hint = f" The gradients given are for {', '.join(f'`{path}`' for path in list(given)[:4])}."
    return GradientError(
        f"No gradient reached {len(missing)} of {total} parameters: {', '.join(shown)}"
        f"{', …' if len(missing) > 8 else ''}.{hint} Select them in `kwargs_mask` of the gradient, leave "
        "them out of the optimiser's mask, or pass `allow_missing=True` to leave them unchanged.",
        path=next(iter(missing)),
        details={"missing": list(missing)},
    )
