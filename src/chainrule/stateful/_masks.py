"""Masks: which parameters, said by kind, attribute, path or predicate.

    M(Weight) & ~M(Param).has(frozen=True)      weights that are not frozen
    M((Weight, Bias)).at("encoder.*")           by kind and place
    M(State).to((None, 0))                      axis 0 for states, None for the rest

A mask is immutable. Asked about one parameter it answers yes or no, or one of two chosen values; called on a
tree, it gives the same tree with only the selected parameters left.
"""

from __future__ import annotations

import fnmatch
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chainrule._errors import InputError
from chainrule.stateful._call import Inventory, keyword_of
from chainrule.stateful._module import Module
from chainrule.stateful._nodes import Branch
from chainrule.stateful._params import BaseParam, Param, ParamCache, StaticParam
from chainrule.stateful._random import RKG
from chainrule.stateful._snapshots import Snapshot, same
from chainrule.stateful._values import is_inexact
from chainrule.stateful._walk import Structure, join, named_pairs, replicate

Paths = tuple[str, ...]


class _Rule:
    """When a parameter is selected. Rules are data: masks can be compared, copied and pickled."""

    def __call__(self, param: Any, paths: Paths) -> bool:
        raise NotImplementedError

    def parts(self) -> tuple[_Rule, ...]:
        """The rules that this one is made of."""
        return ()


@dataclass(frozen=True)
class _Everything(_Rule):
    def __call__(self, param: Any, paths: Paths) -> bool:
        return True

    def __str__(self) -> str:
        return "M()"


@dataclass(frozen=True)
class _Kind(_Rule):
    kinds: Any

    def __call__(self, param: Any, paths: Paths) -> bool:
        return isinstance(param, self.kinds)

    def __str__(self) -> str:
        return f"M({getattr(self.kinds, '__name__', None) or self.kinds})"


@dataclass(frozen=True)
class _Predicate(_Rule):
    function: Callable[[Any], Any]

    def __call__(self, param: Any, paths: Paths) -> bool:
        return bool(self.function(param))

    def __str__(self) -> str:
        return f"M({getattr(self.function, '__name__', repr(self.function))})"


@dataclass(frozen=True)
class _Has(_Rule):
    attributes: Snapshot
    is_present: bool

    def __call__(self, param: Any, paths: Paths) -> bool:
        found = (_has(param, *item) for item in self.attributes.value.items())
        return all(found) if self.is_present else not any(found)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.attributes.value.items())
        return f"{'has' if self.is_present else 'hasnot'}({shown})"


@dataclass(frozen=True)
class _At(_Rule):
    pattern: str

    def __call__(self, param: Any, paths: Paths) -> bool:
        # Paths contain brackets ("[0]"), which fnmatch would read as character sets.
        literal = self.pattern.replace("[", "[[]")
        return any(fnmatch.fnmatchcase(path, literal) for path in paths)

    def __str__(self) -> str:
        return f"at({self.pattern!r})"


@dataclass(frozen=True)
class _Not(_Rule):
    rule: _Rule

    def __call__(self, param: Any, paths: Paths) -> bool:
        return not self.rule(param, paths)

    def parts(self) -> tuple[_Rule, ...]:
        return (self.rule,)

    def __str__(self) -> str:
        return f"~{self.rule}"


_OPERATORS: dict[str, Callable[[bool, bool], bool]] = {
    "|": operator.or_,
    "&": operator.and_,
    "^": operator.xor,
}


@dataclass(frozen=True)
class _Combined(_Rule):
    operator: str
    left: _Rule
    right: _Rule

    def __call__(self, param: Any, paths: Paths) -> bool:
        return _OPERATORS[self.operator](self.left(param, paths), self.right(param, paths))

    def parts(self) -> tuple[_Rule, ...]:
        return self.left, self.right

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


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

    __slots__ = ("_choice", "_rule")

    def __init__(self, select: Any = None) -> None:
        is_mask = isinstance(select, Mask)
        self._rule: _Rule = select._rule if is_mask else _rule_of(select)
        self._choice: tuple[Any, Any] | None = select._choice if is_mask else None

    @classmethod
    def _make(cls, rule: _Rule, choice: tuple[Any, Any] | None = None) -> Mask:
        self = cls.__new__(cls)
        self._rule, self._choice = rule, choice
        return self

    def matches(self, param: Any, *paths: str) -> bool:
        """Whether a parameter is selected; a shared one may have several paths."""
        return self._rule(param, paths)

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
        return Mask._make(self._rule, (off, on))

    def has(self, **attributes: Any) -> Mask:
        """And: every attribute is present and equal (attributes of the value, like `ndim`, count)."""
        return self & Mask._make(_Has(_by_name(attributes), True))

    def hasnot(self, **attributes: Any) -> Mask:
        """And: every attribute is absent or different."""
        return self & Mask._make(_Has(_by_name(attributes), False))

    def at(self, pattern: str) -> Mask:
        """And: a path of the parameter matches a pattern with `*` and `?`, for example `"encoder.*"`."""
        return self & Mask._make(_At(pattern))

    def _combine(self, sign: str, other: Any) -> Mask:
        return Mask._make(_Combined(sign, self._rule, Mask(other)._rule))

    def __or__(self, other: Any) -> Mask:
        return self._combine("|", other)

    def __and__(self, other: Any) -> Mask:
        return self._combine("&", other)

    def __xor__(self, other: Any) -> Mask:
        return self._combine("^", other)

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
        return Mask._make(_Not(self._rule))

    def __eq__(self, other: object) -> bool:
        """Whether both are made in the same way, and so select the same."""
        if not isinstance(other, Mask):
            return NotImplemented
        return self._rule == other._rule and same(self._choice, other._choice)

    def __hash__(self) -> int:
        return hash(self._rule)

    def __deepcopy__(self, memo: Any) -> Mask:
        return self  # it never changes, and a copied predicate would be another one

    def __repr__(self) -> str:
        return str(self._rule) if self._choice is None else f"{self._rule}.to({self._choice!r})"


M = Mask


def _by_name(attributes: Mapping[str, Any]) -> Snapshot:
    """Attributes that compare equal in whatever order they were written."""
    return Snapshot(dict(sorted(attributes.items())))


def _rule_of(select: Any) -> _Rule:
    if select is None:
        return _Everything()
    if isinstance(select, (type, tuple, types.UnionType)):
        return _Kind(select)
    if callable(select):
        return _Predicate(select)
    raise InputError(
        f"A mask is made from a kind, a tuple of kinds, a mask or a function; found {select!r}.",
        code="bad_mask",
    )


def _patterns(rule: _Rule) -> Iterator[_At]:
    if isinstance(rule, _At):
        yield rule
    for part in rule.parts():
        yield from _patterns(part)


def check_patterns(mask: Mask, paths: Iterable[str]) -> None:
    """Refuse patterns that no path matches: a misspelled one would select nothing, silently.

    Raises:
        InputError: there is one.
    """
    known = tuple(paths)
    for pattern in _patterns(mask._rule):
        if not pattern(None, known):
            raise InputError(
                f"The pattern {pattern.pattern!r} in {mask!r} matches none of the parameters "
                f"{listed(known)}.",
                code="bad_mask",
                path=pattern.pattern,
            )


def nothing_selected(what: str, mask: Any, tree: Any) -> InputError:
    """The error for a selection that is empty although something has to be selected."""
    params = Structure().visit(tree).params
    frozen = sum(param.frozen for param in params.values())
    return InputError(
        f"{what} is {mask}, which selects none of the {len(params)} parameters {listed(params)}; "
        f"{frozen} of them are frozen. Correct the mask, or thaw parameters with `frozen(model, False)`.",
        code="bad_mask",
    )


def listed(paths: Iterable[str], most: int = 8) -> str:
    """Some paths, for a message."""
    names = [f"`{path}`" if path else "(the parameter itself)" for path in paths]
    return f"{', '.join(names[:most]) or '(none)'}{', …' if len(names) > most else ''}"


def _has(param: Any, name: str, value: Any) -> bool:
    try:
        return same(getattr(param, name), value)
    except AttributeError:
        return False


def trainable(param: Any) -> bool:
    return isinstance(param, Param) and not (param.frozen or isinstance(param, ParamCache)) and (
        is_inexact(param.get())
    )  # fmt: skip


TRAINABLE = Mask(trainable)
"""What `True` means where parameters are selected for training: real or complex, not frozen, no cache."""


def select(tree: Any, mask: Any) -> dict[str, Any]:
    """Path → parameter of what a mask selects in a tree; `None` and `True` mean `TRAINABLE`.

    Raises:
        InputError: a pattern of the mask matches no path.
    """
    chosen = TRAINABLE if mask is None or mask is True else Mask(mask)
    structure = Structure().visit(tree)
    check_patterns(chosen, [*structure.params, *structure.aliases])
    return {
        path: param
        for path, param in structure.params.items()
        if chosen.matches(param, *structure.paths_of(path))
    }


def resolve_mask(mask: Any, inventory: Inventory, off: Any) -> list[Any]:
    """The value a `kwargs_mask` gives to every slot of an inventory.

    Args:
        mask: a `Mask` or kind for all parameters; a constant; a function of the keyword arguments that
            returns a tree; or a dictionary from keyword (or tuple of keywords) to any of those or to a
            tree of values. Keywords it does not mention are off.
        inventory: the tracked keyword arguments.
        off: the value of what is not selected.
    """
    return [value for value, _ in resolve_places(mask, inventory, off)]


def resolve_places(mask: Any, inventory: Inventory, off: Any) -> list[tuple[Any, str]]:
    """As `resolve_mask`, with the path under which every slot was selected.

    A parameter that several keywords share belongs to the first of them that selects it.
    """
    entries = _per_keyword(mask, inventory)
    _check_places(entries, inventory)
    choosers = {name: _chooser(entry, off) for name, entry in entries.items()}

    def choose(slot: int, path: str) -> tuple[Any, str]:
        param = inventory.params[slot] if slot < len(inventory.params) else None
        by_keyword: dict[str, list[str]] = {}
        for place in inventory.structure.paths_of(path):
            by_keyword.setdefault(keyword_of(place), []).append(place)
        for name, places in by_keyword.items():
            if name in choosers and param is not RKG.key:
                value = choosers[name](param, *(place[len(name) + 1 :] for place in places))
                if not same(value, off):
                    return value, places[0]
        return off, path

    return [choose(slot, path) for slot, path in enumerate(inventory.paths)]


def _per_keyword(mask: Any, inventory: Inventory) -> dict[str, Any]:
    if mask is None:
        return {}
    if callable(mask) and not isinstance(mask, (Mask, type, BaseParam, Module)):
        mask = mask(inventory.live_kwargs([None] * (len(inventory.paths) - len(inventory.params))))
    if not isinstance(mask, dict):
        return dict.fromkeys(inventory.names, mask)
    expanded = {}
    for names, entry in mask.items():
        for name in names if isinstance(names, tuple) else (names,):
            expanded[name] = entry
    unknown = sorted(set(expanded) - set(inventory.names))
    if unknown:
        raise InputError(
            f"kwargs_mask names {', '.join(map(repr, unknown))}, but the call has the keyword arguments "
            f"{', '.join(map(repr, inventory.names)) or 'none'}.",
            code="bad_mask",
        )
    return expanded


def _chooser(entry: Any, off: Any) -> Callable[..., Any]:
    """`(param, *paths) -> value` for one keyword; plain arrays have no parameter."""
    if isinstance(entry, (type, types.UnionType)):
        entry = Mask(entry)
    if isinstance(entry, Mask):
        return lambda param, *paths: off if param is None else entry.value(param, *paths)
    if isinstance(entry, (Branch, dict, list, tuple)) and not _is_spec(entry):
        places = dict(_places(entry))

        def choose(param: Any, *paths: str) -> Any:
            values = (_nearest(places, path) for path in paths)
            value = next((value for value in values if value is not None), off)
            is_mask = isinstance(value, (Mask, type, types.UnionType))
            return _chooser(value, off)(param, *paths) if is_mask else value

        return choose
    return lambda param, *paths: entry


def _check_places(entries: Mapping[str, Any], inventory: Inventory) -> None:
    """A misspelled place or pattern in a mask would select nothing, silently."""
    known = [*inventory.paths, *inventory.structure.aliases]
    # mask → the paths it is asked about, in all keywords it stands for
    reach: dict[Mask, list[str]] = {}
    for name, entry in entries.items():
        inside = [path[len(name) + 1 :] for path in known if keyword_of(path) == name]
        for place in _named_places(entry):
            if not any(each == place or each.startswith(f"{place}.") for each in inside):
                shown = listed(join(name, path) for path in inside)
                raise InputError(
                    f"kwargs_mask names `{join(name, place)}`, but `{name}` has the parameters {shown}.",
                    code="bad_mask",
                    path=join(name, place),
                )
        for _, leaf in _places(entry):
            if isinstance(leaf, Mask):
                reach.setdefault(leaf, []).extend(inside)
    for mask, paths in reach.items():
        check_patterns(mask, paths)


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
    if isinstance(entry, dict) and not isinstance(entry, Branch):
        for key, value in entry.items():
            yield from _named_places(value, join(path, str(key)))
    elif path and entry is not None and entry is not False:
        yield path


def _places(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, StaticParam):
        return
    if isinstance(tree, Branch):
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
