"""From taps to the dictionary of intermediates: names, modes, duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from chainrule._errors import InputError
from chainrule._jaxpr import Extra
from chainrule.harvest._mode import Mode
from chainrule.harvest._sow import Sowing

__all__ = ["DUPLICATES", "DuplicateNameError", "Duplicates", "collect"]

Duplicates = Literal["strict", "append", "last"]
DUPLICATES: tuple[Duplicates, ...] = ("strict", "append", "last")


class DuplicateNameError(InputError):
    """A name was sown twice in one captured function."""

    default_code = "duplicate_name"


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
    return {
        name: _entry(by_mode, duplicates, value_of)
        for name, by_mode in by_name.items()
        if duplicates != "strict" or _check_single(name, by_mode)
    }


def _check_single(name: str, by_mode: dict[Mode, list[Extra]]) -> bool:
    for mode, taps in by_mode.items():
        if mode.is_primal and len(taps) > 1:
            raise _duplicate(name, [tap.label for tap in taps])
    return True


def _duplicate(name: str, places: list[Sowing]) -> DuplicateNameError:
    shown = "\n".join(f"  {place.where or 'an unknown line'}" for place in places)
    return DuplicateNameError(
        f"The name {name!r} was sown {len(places)} times in one captured function:\n{shown}\n"
        'Give each its own name, or capture with mode="append" (a list, in execution order) or '
        'mode="last".',
        details={"name": name, "places": [str(place.where) for place in places]},
    )


def _entry(
    by_mode: dict[Mode, list[Extra]], duplicates: Duplicates, value_of: Callable[[Extra], Any]
) -> dict[str, Any]:
    """The values of one name per mode, and beside them whether and how often they were reached."""

    def choose(values: list[Any]) -> Any:
        if duplicates == "append":
            return values
        if duplicates == "last" or len(values) == 1:
            return values[-1]
        # One value, several backward passes (or pushforwards): all of them, in order.
        return values

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
