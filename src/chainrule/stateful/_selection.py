"""Parameters as one more argument of a function that is differentiated.

JAX differentiates positional arguments. Where a mask selects parameters, their values become one more, last
positional argument: a dictionary `{keyword: {path: value}}`. Every rule of JAX about arguments (`argnums`,
the structure of gradients, Jacobians and Hessians, tangents and cotangents) then holds for parameters too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from chainrule.stateful._call import Call
from chainrule.stateful._masks import TRAINABLE, Mask, nothing_selected, resolve_places
from chainrule.stateful._plan import keyword_of
from chainrule.stateful._values import is_inexact

Tree = dict[str, Any]


class Selection:
    """The parameters of a call that a mask selects.

    Args:
        call: the call.
        mask: a `kwargs_mask` of truth values; `True` stands for all trainable parameters, `None` for
            no selection at all. What is not a real or complex number is never selected.
    """

    def __init__(self, call: Call, mask: Any) -> None:
        self.is_given = mask is not None
        self._call = call
        chosen = resolve_places(_with_default(mask), call.plan, False)
        self._paths = {
            slot: path
            for slot, (is_on, path) in enumerate(chosen)
            if is_on and is_inexact(call.values[slot])
        }
        self._check_not_empty(mask)

    def _check_not_empty(self, mask: Any) -> None:
        """Refuse a mask that asks for parameters and finds none, and a dictionary with such an entry.

        Raises:
            InputError: it is one.
        """
        found = {keyword_of(path) for path in self._paths.values()}
        names = self._call.plan.names
        asked = {names: mask} if not isinstance(mask, dict) else mask
        kwargs = self._call.plan.live_kwargs([None] * len(self._call.plan.plain))
        for keywords, entry in asked.items():
            wanted = keywords if isinstance(keywords, tuple) else (keywords,)
            is_question = entry is True or isinstance(entry, (Mask, type, types.UnionType))
            if is_question and not found & set(wanted):
                shown = TRAINABLE if entry is True else entry
                raise nothing_selected("kwargs_mask", shown, {name: kwargs[name] for name in wanted})

    def tree(self, values: Sequence[Any]) -> Tree:
        """Flat values of all slots → `{keyword: {path: value}}` of the selected ones.

        A parameter that is a keyword argument itself has no path: `{keyword: value}`.
        """
        tree: Tree = {name: {} for name in self._call.plan.names} if self._paths else {}
        for slot, path in self._paths.items():
            name = keyword_of(path)
            if path == name:
                tree[name] = values[slot]
            else:
                tree[name][path[len(name) + 1 :]] = values[slot]
        return {name: entry for name, entry in tree.items() if not _is_empty(entry)}

    def merge(self, tree: Tree, others: Sequence[Any] | None = None) -> list[Any]:
        """The values of all slots: the selected ones from a tree, the others as given or as they are."""
        values = list(self._call.values if others is None else others)
        for slot, path in self._paths.items():
            name = keyword_of(path)
            values[slot] = tree[name] if path == name else tree[name][path[len(name) + 1 :]]
        return values

    def as_argument(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The pure function with the selected parameters as last argument: `(*args, tree)`."""
        pure = self._call.pure(function)

        def run(*args: Any) -> tuple[Any, list[Any]]:
            if not self.is_given:
                return pure(self._call.values, *args)
            *rest, tree = args
            return pure(self.merge(tree), *rest)

        run.__name__ = run.__qualname__ = pure.__name__
        return run

    def with_aux(self, function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
        """As a function that JAX differentiates: `(*args, tree) -> (value, (aux, values))`."""
        pure = self.as_argument(function)

        def run(*args: Any) -> tuple[Any, tuple[Any, list[Any]]]:
            result, values = pure(*args)
            value, aux = result if has_aux else (result, None)
            return value, (aux, values)

        run.__name__ = run.__qualname__ = pure.__name__
        return run

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, followed by the selected parameters if any were asked for."""
        return (*args, self.tree(self._call.values)) if self.is_given else args


def _is_empty(entry: Any) -> bool:
    return isinstance(entry, dict) and not entry


def _with_default(mask: Any) -> Any:
    if mask is True:
        return TRAINABLE
    if isinstance(mask, dict):
        return {name: TRAINABLE if entry is True else entry for name, entry in mask.items()}
    return mask
