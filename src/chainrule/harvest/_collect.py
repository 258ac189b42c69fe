"""From taps to the dictionary of intermediates: names, modes, duplicates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from chainrule._errors import InputError
from chainrule._jaxpr import Extra, SourceLocation
from chainrule.harvest._mode import PRIMAL, Mode

Duplicates = Literal["error", "append", "last"]
"""What a name that is sown twice means."""


class DuplicateNameError(InputError):
    """A name was sown twice in one captured function."""

    default_code = "duplicate_name"


def check_duplicates(duplicates: Any, mode: Any, *, stacklevel: int) -> Duplicates:
    """The option `duplicates`, or what the option `mode` says, its name until now.

    Raises:
        InputError: it is none of the known ones.
    """
    if mode is not None:
        duplicates = "error" if mode == "strict" else mode
        warnings.warn(
            f"The option `mode` is called `duplicates` now: write duplicates={duplicates!r} for "
            f"mode={mode!r}.",
            DeprecationWarning,
            stacklevel=stacklevel + 1,
        )
    choices = get_args(Duplicates)
    if duplicates not in choices:
        raise InputError(
            f"Expected duplicates to be one of {', '.join(map(repr, choices))}, found {duplicates!r}.",
            code="capture_mode",
        )
    chosen: Duplicates = duplicates
    return chosen


def collect(
    taps: Sequence[Extra],
    duplicates: Duplicates,
    value_of: Callable[[Extra], Any] = lambda tap: tap.label.value(tap.leaves),
) -> dict[str, dict[str, Any]]:
    """`{name: {mode: value}}` of taps in execution order; names in the order they first occur."""
    by_name: dict[str, dict[Mode, list[Extra]]] = {}
    for tap in taps:
        mode = tap.label.mode.undeepened()
        by_name.setdefault(tap.label.name, {}).setdefault(mode, []).append(tap)
    if duplicates == "error":
        for name, by_mode in by_name.items():
            _check_single(name, by_mode.get(PRIMAL, []))
    return {name: _entry(by_mode, duplicates, value_of) for name, by_mode in by_name.items()}


def _check_single(name: str, primals: list[Extra]) -> None:
    """One value may have several cotangents (backward passes), but a name has one value."""
    if len(primals) > 1:
        raise _duplicate(name, _places([tap.label.call_sites for tap in primals]))


def _places(stacks: list[tuple[SourceLocation, ...]]) -> list[str]:
    """The line of each sow; where a helper was called several times, the calls that tell them apart."""
    levels = enumerate(zip(*stacks, strict=False))
    parting = next((level for level, sites in levels if len(set(sites)) > 1), 0)
    lines = [str(stack[0]) if stack else "an unknown line" for stack in stacks]
    if not parting:
        return lines
    return [
        f"{line}, called at {stack[parting]}" for line, stack in zip(lines, stacks, strict=True)
    ]


def _duplicate(name: str, places: list[str]) -> DuplicateNameError:
    shown = "\n".join(f"  {place}" for place in places)
    return DuplicateNameError(
        f"The name {name!r} was sown {len(places)} times in one captured function:\n{shown}\n"
        'Give each its own name, or capture with duplicates="append" (a list, in execution order) or '
        'duplicates="last".',
        details={"name": name, "places": places},
    )


def _entry(
    by_mode: dict[Mode, list[Extra]], duplicates: Duplicates, value_of: Callable[[Extra], Any]
) -> dict[str, Any]:
    """The values of one name per mode, and beside them whether and how often they were reached."""

    def choose(values: list[Any]) -> Any:
        is_single = duplicates == "last" or (duplicates == "error" and len(values) == 1)
        return values[-1] if is_single else values

    entry: dict[str, Any] = {}
    for mode in sorted(by_mode, key=lambda mode: (len(mode.steps), mode.depths)):
        taps = by_mode[mode]
        entry[_free_label(mode.label, entry)] = choose([value_of(tap) for tap in taps])
        for fact in ("taken", "count"):
            if fact not in entry and all(getattr(tap, fact) is not None for tap in taps):
                entry[fact] = choose([getattr(tap, fact) for tap in taps])
    return entry


def _free_label(label: str, entry: dict[str, Any]) -> str:
    # Two derivatives of one kind nest, as in grad(grad(f)): the inner one has the plain name.
    while label in entry:
        label = f"outer_{label}"
    return label
