"""Rulesets: what happens in a node when a slot is set or asked for, depending on its status.

    "h, u <- u"            on `set("u", v)`: store v in `h` and in `u`
    "h <- u:double:noise"  on `set("u", v)`: pass v through two transforms, store the result in `h`
    "h -> u"               on `get("h")`: answer with `u`
    "h -> h:noise"         on `get("h")`: answer with the stored value, passed through a transform

Rules are grouped by a regular expression that the whole status must match. Several input rules all run, in
order; of several output rules the first answers. Rules are parsed once, when the node is made.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chainrule._errors import DefinitionError

Transform = Callable[..., Any]
"""`transform(vode, key, value, rkg) -> value`; `key` is the slot that was set or asked for."""


@dataclass(frozen=True)
class InputRule:
    """`targets <- key:transforms`."""

    key: str
    targets: tuple[str, ...]
    transforms: tuple[str, ...]


@dataclass(frozen=True)
class OutputRule:
    """`key -> target:transforms`."""

    key: str
    target: str
    transforms: tuple[str, ...]


def _parse(text: str) -> InputRule | OutputRule:
    for arrow in ("<-", "->"):
        left, found, right = text.partition(arrow)
        if not found or arrow in right:
            continue
        source, *transforms = (part.strip() for part in right.split(":"))
        if arrow == "->" and left.strip() and source:
            return OutputRule(left.strip(), source, tuple(transforms))
        targets = tuple(part.strip() for part in left.split(","))
        if arrow == "<-" and all(targets) and source:
            return InputRule(source, targets, tuple(transforms))
    raise DefinitionError(
        'A rule is written "targets <- key:transform" (what `set` does) or "key -> target:transform" '
        f"(what `get` does); found {text!r}.",
        code="bad_rule",
    )


class Ruleset:
    """The rules of a node and the transforms they name.

    Args:
        rules: pattern of statuses → rules.
        transforms: name → function, see `Transform`.

    Raises:
        DefinitionError: a rule cannot be read, or names a transform that is not given.

    Example:
        >>> rules = Ruleset({"init": ["h, u <- u"]})
        >>> rules.inputs("init", "u")[0].targets
        ('h', 'u')
        >>> rules.inputs("inference", "u")
        ()
    """

    def __init__(
        self,
        rules: Mapping[str, Iterable[str]],
        transforms: Mapping[str, Transform] | None = None,
    ) -> None:
        self.rules = tuple(
            (pattern, tuple(map(_parse, _as_rules(pattern, texts))))
            for pattern, texts in rules.items()
        )
        self.transforms = dict(transforms or {})
        for rule in (rule for _, group in self.rules for rule in group):
            self._check(rule)

    def _check(self, rule: InputRule | OutputRule) -> None:
        unknown = [name for name in rule.transforms if name not in self.transforms]
        if unknown:
            known = ", ".join(sorted(self.transforms)) or "none"
            raise DefinitionError(
                f"A rule of `{rule.key}` names the transform {unknown[0]!r}, but given are: {known}. Pass "
                f"`tforms={{{unknown[0]!r}: function(vode, key, value, rkg)}}`.",
                code="unknown_transform",
            )

    def inputs(self, status: str | None, key: str) -> tuple[InputRule, ...]:
        """The rules that run when a slot is set, in order."""
        return tuple(r for r in self._active(status) if isinstance(r, InputRule) and r.key == key)

    def output(self, status: str | None, key: str) -> OutputRule | None:
        """The rule that answers when a slot is asked for; with several, the first, and a warning."""
        found = [r for r in self._active(status) if isinstance(r, OutputRule) and r.key == key]
        if len(found) > 1:
            warnings.warn(
                f"{len(found)} output rules answer for slot {key!r} in status {status!r}; the first is used.",
                UserWarning,
                stacklevel=4,
            )
        return found[0] if found else None

    def apply(self, rule: InputRule | OutputRule, vode: Any, value: Any, rkg: Any) -> Any:
        """Pass a value through the transforms of a rule, from left to right."""
        for name in rule.transforms:
            value = self.transforms[name](vode, rule.key, value, rkg)
        return value

    def _active(self, status: str | None) -> tuple[InputRule | OutputRule, ...]:
        return _active(self.rules, status or "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ruleset) and (self.rules, self.transforms) == (
            other.rules,
            other.transforms,
        )

    def __hash__(self) -> int:
        return hash(self.rules)

    def __repr__(self) -> str:
        return f"Ruleset({', '.join(pattern for pattern, _ in self.rules)})"


def _as_rules(pattern: str, texts: Iterable[str]) -> Iterable[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        raise DefinitionError(
            f"The status pattern {pattern!r} is not a regular expression: {error}.", code="bad_rule"
        ) from error
    return (texts,) if isinstance(texts, str) else texts


@functools.lru_cache(maxsize=1024)
def _active(
    rules: tuple[tuple[str, tuple[Any, ...]], ...], status: str
) -> tuple[InputRule | OutputRule, ...]:
    return tuple(
        rule for pattern, group in rules if re.fullmatch(pattern, status) for rule in group
    )
