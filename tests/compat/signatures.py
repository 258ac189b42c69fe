"""Comparing interfaces: can everything that was called there be called here, with the same defaults?"""

import enum
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SPECIAL = {
    "__call__",
    "__getitem__",
    "__len__",
    "__iter__",
    "__enter__",
    "__exit__",
    "__contains__",
}


def differences(there: ModuleType, here: ModuleType, names: set[str]) -> Iterator[str]:
    """`name: what differs` for the names of a module."""
    for name in sorted(names):
        one, other = getattr(there, name), getattr(here, name, None)
        if other is None:
            continue
        if inspect.isclass(one):
            yield from _of_classes(name, one, other)
        elif callable(one):
            yield from _of_calls(name, one, other)


def _of_classes(name: str, one: type, other: Any) -> Iterator[str]:
    if issubclass(one, enum.Enum):
        members = {key: value.value for key, value in one.__members__.items()}
        found = {key: value.value for key, value in other.__members__.items()}
        yield from () if members == found else [f"{name}: members"]
        return
    yield from _of_calls(name, one, other)
    for member in sorted(_members(one)):
        if not _has(other, member):
            yield f"{name}.{member}: missing"
        elif inspect.isfunction(value := getattr(one, member)) or inspect.ismethod(value):
            yield from _of_calls(f"{name}.{member}", value, getattr(other, member, None))


def _members(cls: type) -> set[str]:
    """What the package itself defines on a class: not what pydantic or the standard library do."""
    package = cls.__module__.partition(".")[0]
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == package]
    return {
        name
        for base in own
        for name, value in vars(base).items()
        if (not name.startswith("_") or name in _SPECIAL)
        and not inspect.isclass(value)
        and name not in {"model_config", "model_post_init"}
        and name not in _validators(cls)
    }


def _validators(cls: type) -> set[str]:
    decorators = getattr(cls, "__pydantic_decorators__", None)
    kinds = (
        [] if decorators is None else [getattr(decorators, kind) for kind in decorators.__slots__]
    )
    return {name for kind in kinds if isinstance(kind, dict) for name in kind}


def _has(cls: Any, member: str) -> bool:
    """Whether instances have it: by the class, by a slot, or because they pass on what they hold."""
    own = [base for base in cls.__mro__ if base.__module__.startswith("chainrule")]
    is_declared = any(member in vars(base).get("__annotations__", {}) for base in own)
    return hasattr(cls, member) or is_declared or any("__getattr__" in vars(base) for base in own)


def _of_calls(name: str, one: Any, other: Any) -> Iterator[str]:
    there, here = _parameters(one), _parameters(other)
    is_operator = name.rpartition(".")[2] in _SPECIAL - {
        "__call__"
    }  # their arguments are positional
    if there is None or here is None or is_operator:
        return
    catches_all = {p.kind for p in here}
    by_name = {p.name: p for p in here}
    places = {p.name: place for place, p in enumerate(here) if p.kind in _POSITIONAL}
    for place, parameter in enumerate(p for p in there if p.kind in _POSITIONAL):
        is_caught = inspect.Parameter.VAR_POSITIONAL in catches_all or place < len(places)
        if not is_caught or places.get(parameter.name, place) != place:
            yield f"{name}: {parameter.name} by position"
    for parameter in (p for p in there if p.kind in _BY_NAME):
        twin = by_name.get(parameter.name)
        if twin is None or twin.kind not in _BY_NAME:
            if inspect.Parameter.VAR_KEYWORD not in catches_all:
                yield f"{name}: {parameter.name} by name"
        elif parameter.default is not parameter.empty and not _same(
            parameter.default, twin.default
        ):
            yield f"{name}: default of {parameter.name}"
    required = [p for p in there if p.default is p.empty]
    named = {p.name: None for p in required if p.kind is inspect.Parameter.KEYWORD_ONLY}
    try:
        inspect.Signature(here).bind(*[p for p in required if p.kind in _POSITIONAL], **named)
    except TypeError as error:
        yield f"{name}: {error}"
    for kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        if any(p.kind is kind for p in there) and kind not in catches_all:
            yield f"{name}: {kind.description}"


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return None


def _same(there: Any, here: Any) -> bool:
    """Whether defaults are the same; objects of the two packages are compared by their class's name."""
    if _plain(there) == _plain(here):
        return True
    return type(there).__name__ == type(here).__name__ and callable(there)


def _plain(value: Any) -> Any:
    if inspect.isfunction(value) or inspect.isclass(value):
        return value.__name__
    if value in ((), [], {}, None) or str(value) in ("<factory>", "."):
        return None  # all of them: nothing was given
    if isinstance(value, (str, int, float, bool, tuple, list, dict)):
        return value
    return f"{type(value).__name__}: {value}"


def load_pair(name: str) -> tuple[ModuleType, ModuleType]:
    """The real module and ours."""
    return importlib.import_module(name), importlib.import_module(f"chainrule.compat.{name}")
