"""Masks: which parameters, said by kind, attribute, path or predicate.

    M(Weight) & ~M(Param).has(frozen=True)      weights that are not frozen
    M((Weight, Bias)).at("encoder.*")           by kind and place
    M(State).to((None, 0))                      axis 0 for states, None for the rest

A mask is immutable. Asked about one parameter it answers yes or no, or one of two chosen values; called on a
tree, it gives the same tree with only the selected parameters left.
"""

from __future__ import annotations

import fnmatch
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chainrule._errors import InputError
from chainrule.stateful._containers import Container
from chainrule.stateful._module import Module
from chainrule.stateful._params import BaseParam, Param, ParamCache, StaticParam
from chainrule.stateful._plan import Plan, keyword_of
from chainrule.stateful._random import RKG
from chainrule.stateful._statics import same
from chainrule.stateful._values import is_inexact
from chainrule.stateful._walk import Structure, join, named_pairs, replicate

__all__ = ["TRAINABLE", "M", "Mask", "resolve_mask", "resolve_places", "select"]

Predicate = Callable[[Any, tuple[str, ...]], bool]


class Mask:
    """A selection of parameters.

    Args:
        select: a kind (type), several kinds (tuple or union), a mask, a function of the parameter, or
            `None` for everything.

    Example:
        >>> from chainrule.stateful import M, Param
        >>> class Weight(Param): ...
        >>> mask = M(Weight).hasnot(frozen=True)
        >>> mask.matches(Weight(1.0)), mask.matches(Weight(1.0, frozen=True))
        (True, False)
    """

    __slots__ = ("_choice", "_predicate", "_text")

    def __init__(self, select: Any = None) -> None:
        self._predicate: Predicate
        self._text: str
        self._choice: tuple[Any, Any] | None
        self._predicate, self._text, self._choice = _parse(select)

    @classmethod
    def _make(cls, predicate: Predicate, text: str, choice: Any = None) -> Mask:
        self = cls.__new__(cls)
        self._predicate, self._text, self._choice = predicate, text, choice
        return self

    def matches(self, param: Any, *paths: str) -> bool:
        """Whether a parameter is selected; a shared one may have several paths."""
        return bool(self._predicate(param, paths))

    def value(self, param: Any, *paths: str) -> Any:
        """`True` or `False`, or the value chosen with `to`."""
        selected = self.matches(param, *paths)
        return selected if self._choice is None else self._choice[selected]

    def __call__(self, tree: Any) -> Any:
        """The tree with only the selected parameters, `None` for others; or with the chosen values."""

        def replace(path: str, param: BaseParam) -> Any:
            if isinstance(param, StaticParam):
                return param
            if self._choice is None:
                return param if self.matches(param, path) else None
            return self.value(param, path)

        return replicate(tree, replace)

    def to(self, choice: tuple[Any, Any]) -> Mask:
        """A mask that answers with `choice[0]` when off and `choice[1]` when on."""
        off, on = choice
        return Mask._make(self._predicate, self._text, (off, on))

    def has(self, **attributes: Any) -> Mask:
        """And: every attribute is present and equal (attributes of the value, like `ndim`, count)."""
        return self & Mask._make(
            lambda param, paths: all(_has(param, *item) for item in attributes.items()),
            f"has({_keywords(attributes)})",
        )

    def hasnot(self, **attributes: Any) -> Mask:
        """And: every attribute is absent or different."""
        return self & Mask._make(
            lambda param, paths: not any(_has(param, *item) for item in attributes.items()),
            f"hasnot({_keywords(attributes)})",
        )

    def at(self, pattern: str) -> Mask:
        """And: a path of the parameter matches a pattern with `*` and `?`, for example `"encoder.*"`."""
        # Paths contain brackets ("[0]"), which fnmatch would read as character sets.
        literal = pattern.replace("[", "[[]")
        return self & Mask._make(
            lambda param, paths: any(fnmatch.fnmatchcase(path, literal) for path in paths),
            f"at({pattern!r})",
        )

    def __or__(self, other: Any) -> Mask:
        a, b = self, Mask(other)
        return Mask._make(
            lambda p, paths: a.matches(p, *paths) or b.matches(p, *paths), f"({a} | {b})"
        )

    def __and__(self, other: Any) -> Mask:
        a, b = self, Mask(other)
        return Mask._make(
            lambda p, paths: a.matches(p, *paths) and b.matches(p, *paths), f"({a} & {b})"
        )

    def __xor__(self, other: Any) -> Mask:
        a, b = self, Mask(other)
        return Mask._make(
            lambda p, paths: a.matches(p, *paths) != b.matches(p, *paths), f"({a} ^ {b})"
        )

    def __sub__(self, other: Any) -> Mask:
        return self & ~Mask(other)

    def __rsub__(self, other: Any) -> Mask:
        return Mask(other) - self

    def __ror__(self, other: Any) -> Mask:
        return Mask(other) | self

    def __rand__(self, other: Any) -> Mask:
        return Mask(other) & self

    def __rxor__(self, other: Any) -> Mask:
        return Mask(other) ^ self

    def __invert__(self) -> Mask:
        return Mask._make(lambda param, paths: not self.matches(param, *paths), f"~{self}")

    def __repr__(self) -> str:
        return self._text if self._choice is None else f"{self._text}.to({self._choice!r})"


M = Mask


def _parse(select: Any) -> tuple[Predicate, str, tuple[Any, Any] | None]:
    if isinstance(select, Mask):
        return select._predicate, select._text, select._choice
    if select is None:
        return (lambda param, paths: True), "M()", None
    if isinstance(select, (type, tuple, types.UnionType)):
        kinds = select
        name = getattr(select, "__name__", None) or str(select)
        return (lambda param, paths: isinstance(param, kinds)), f"M({name})", None
    if callable(select):
        function = select
        name = getattr(function, "__name__", repr(function))
        return (lambda param, paths: function(param)), f"M({name})", None
    raise InputError(
        f"A mask is made from a kind, a tuple of kinds, a mask or a function; found {select!r}.",
        code="bad_mask",
    )


def _has(param: Any, name: str, value: Any) -> bool:
    try:
        return same(getattr(param, name), value)
    except AttributeError:
        return False


def _keywords(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in attributes.items())


def _is_trainable(param: Any) -> bool:
    return isinstance(param, Param) and not (param.frozen or isinstance(param, ParamCache)) and (
        is_inexact(param.get())
    )  # fmt: skip


TRAINABLE = Mask(_is_trainable)
"""What `True` means where parameters are selected for training: real or complex, not frozen, no cache."""


def select(tree: Any, mask: Any) -> dict[str, Any]:
    """Path → parameter of what a mask selects in a tree; `None` and `True` mean `TRAINABLE`."""
    chosen = TRAINABLE if mask is None or mask is True else Mask(mask)
    structure = Structure().visit(tree)
    return {
        path: param
        for path, param in structure.params.items()
        if chosen.matches(param, *structure.paths_of(path))
    }


def resolve_mask(mask: Any, plan: Plan, off: Any) -> list[Any]:
    """The value a `kwargs_mask` gives to every slot of a plan.

    Args:
        mask: a `Mask` or kind for all parameters; a constant; a function of the keyword arguments that
            returns a tree; or a dictionary from keyword (or tuple of keywords) to any of those or to a
            tree of values. Keywords it does not mention are off.
        plan: the tracked keyword arguments.
        off: the value of what is not selected.
    """
    return [value for value, _ in resolve_places(mask, plan, off)]


def resolve_places(mask: Any, plan: Plan, off: Any) -> list[tuple[Any, str]]:
    """As `resolve_mask`, with the path under which every slot was selected.

    A parameter that several keywords share belongs to the first of them that selects it.
    """
    entries = _per_keyword(mask, plan)
    _check_places(entries, plan)
    choosers = {name: _chooser(entry, off) for name, entry in entries.items()}

    def choose(slot: int, path: str) -> tuple[Any, str]:
        param = plan.params[slot] if slot < len(plan.params) else None
        by_keyword: dict[str, list[str]] = {}
        for place in plan.structure.paths_of(path):
            by_keyword.setdefault(keyword_of(place), []).append(place)
        for name, places in by_keyword.items():
            if name in choosers and param is not RKG.key:
                value = choosers[name](param, *(place[len(name) + 1 :] for place in places))
                if not same(value, off):
                    return value, places[0]
        return off, path

    return [choose(slot, path) for slot, path in enumerate(plan.paths)]


def _per_keyword(mask: Any, plan: Plan) -> dict[str, Any]:
    if mask is None:
        return {}
    if callable(mask) and not isinstance(mask, (Mask, type, BaseParam, Module)):
        mask = mask(plan.live_kwargs([None] * (len(plan.paths) - len(plan.params))))
    if not isinstance(mask, dict):
        return dict.fromkeys(plan.names, mask)
    expanded = {}
    for names, entry in mask.items():
        for name in names if isinstance(names, tuple) else (names,):
            expanded[name] = entry
    unknown = sorted(set(expanded) - set(plan.names))
    if unknown:
        raise InputError(
            f"kwargs_mask names {', '.join(map(repr, unknown))}, but the call has the keyword arguments "
            f"{', '.join(map(repr, plan.names)) or 'none'}.",
            code="bad_mask",
        )
    return expanded


def _chooser(entry: Any, off: Any) -> Callable[..., Any]:
    """`(param, *paths) -> value` for one keyword; plain arrays have no parameter."""
    if isinstance(entry, (type, types.UnionType)):
        entry = Mask(entry)
    if isinstance(entry, Mask):
        return lambda param, *paths: off if param is None else entry.value(param, *paths)
    if isinstance(entry, (Module, Container, dict, list, tuple)) and not _is_spec(entry):
        places = dict(_places(entry))

        def choose(param: Any, *paths: str) -> Any:
            values = (_nearest(places, path) for path in paths)
            value = next((value for value in values if value is not None), off)
            is_mask = isinstance(value, (Mask, type, types.UnionType))
            return _chooser(value, off)(param, *paths) if is_mask else value

        return choose
    return lambda param, *paths: entry


def _check_places(entries: Mapping[str, Any], plan: Plan) -> None:
    """A misspelled place in a mask would select nothing, silently."""
    known = [*plan.paths, *plan.structure.aliases]
    for name, entry in entries.items():
        for place in _named_places(entry):
            path = join(name, place)
            if not any(each == path or each.startswith(f"{path}.") for each in known):
                shown = [f"`{each}`" for each in known if keyword_of(each) == name]
                raise InputError(
                    f"kwargs_mask names `{path}`, but `{name}` has the parameters "
                    f"{', '.join(shown[:8]) or 'none'}{', …' if len(shown) > 8 else ''}.",
                    code="bad_mask",
                    path=path,
                )


def _nearest(places: Mapping[str, Any], path: str) -> Any:
    """The value at a path, or at the nearest place above it."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    value = places.get(path)
    return True if isinstance(value, BaseParam) else value


def _is_spec(entry: Any) -> bool:
    """A PartitionSpec is a tuple in some versions of JAX, and always a value."""
    return type(entry).__name__ == "PartitionSpec"


def _named_places(entry: Any, path: str = "") -> Iterator[str]:
    """The places that a user's own containers name and do not switch off."""
    if isinstance(entry, dict) and not isinstance(entry, Container):
        for key, value in entry.items():
            yield from _named_places(value, join(path, str(key)))
    elif path and entry is not None and entry is not False:
        yield path


def _places(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, StaticParam):
        return
    if isinstance(tree, (Module, Container)):
        pairs = named_pairs(tree)
    elif isinstance(tree, dict):
        pairs = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)) and not _is_spec(tree):
        pairs = [(f"[{index}]", value) for index, value in enumerate(tree)]
    else:
        yield path, tree
        return
    for name, value in pairs:
        yield from _places(value, join(path, name))
